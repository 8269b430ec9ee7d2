"""LSTM layers over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.data import Spec
from coterie.errors import LearnerError, SettingError
from coterie.models import LSTM, lstm, stacked

SMALL = LSTM(embedding=3, hidden=5, outputs=7, vocabulary=7)
TOKENS = np.random.default_rng(0).integers(0, 7, (4, 6)).astype(np.uint8)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def by_the_formulas(params, tokens, depth=2):
    """The outputs for one sequence, token by token."""
    a = {name: np.asarray(leaf, float) for name, leaf in stacked.named(params).items()}
    sequence = [a["layers.0.weight"][token] for token in tokens]
    for layer in range(1, depth + 1):
        w_ih, w_hh, b = (a[f"layers.{layer}.{name}"] for name in ("weight_ih", "weight_hh", "bias"))
        h = c = np.zeros(w_hh.shape[1])
        for t, x in enumerate(sequence):
            i, f, g, o = np.split(w_ih @ x + w_hh @ h + b, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)  # c_t = f * c_{t-1} + i * g
            h = sigmoid(o) * np.tanh(c)  # h_t = o * tanh(c_t)
            sequence[t] = h
    return a[f"layers.{depth + 1}.weight"] @ sequence[-1] + a[f"layers.{depth + 1}.bias"]


def test_outputs_are_those_of_the_formulas():
    params = SMALL.init(jax.random.key(0), TOKENS)
    wanted = [by_the_formulas(params, tokens) for tokens in TOKENS]
    np.testing.assert_allclose(jax.jit(SMALL.apply)(params, TOKENS), wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_loop():
    rng = np.random.default_rng(1)
    z, weight = rng.standard_normal((6, 4, 20), np.float32), rng.standard_normal((20, 5), np.float32)

    def of(way):
        return jax.jit(jax.grad(lambda z, w: jnp.sin(way(z, w)).sum(), (0, 1)))(z, weight)

    for a, b in zip(of(lstm._recurrence), of(lstm._states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_shakespeare_network_has_the_sizes_of_the_paper():
    spec = Spec((80,), "uint8", (), "int32", classes=80)
    params = ct.Learner(LSTM()).for_data(spec).shapes(spec)
    gates = 4 * 256
    layers = gates * (8 + 256 + 1) + gates * (256 + 256 + 1)
    assert stacked.parameters(params) == 80 * 8 + layers + 256 * 80 + 80


def test_other_tokens_than_those_of_the_vocabulary_do_not_pass_for_one():
    params = SMALL.init(jax.random.key(0), TOKENS)
    wrong = TOKENS.astype(np.int32)
    wrong[1, 2], wrong[3, 0] = 7, -1
    assert np.isnan(jax.jit(SMALL.apply)(params, wrong)).all(axis=1).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    "spec, sentence",
    [
        (Spec((6,), "float32", (), "int32", 7), "needs sequences of whole numbers.*type float32"),
        (Spec((6, 2), "uint8", (), "int32", 7), r"shape \(length,\), not features of shape \(6, 2\)"),
        (Spec((6,), "uint8", (), "float32"), "needs a vocabulary"),
    ],
)
def test_data_that_are_no_tokens_are_refused(spec, sentence):
    loss = "squared" if spec.classes is None else "cross_entropy"
    with pytest.raises(LearnerError, match=sentence):
        ct.Learner(LSTM(hidden=4), loss=loss).for_data(spec)


def test_a_width_is_at_least_one():
    with pytest.raises(SettingError, match="hidden must be a whole number from 1 up, not 0"):
        LSTM(hidden=0)
