"""Losses of single examples against NumPy."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.errors import SettingError
from coterie.learn import losses

cross_entropy, squared, half_squared, correct = map(
    jax.jit, (losses.cross_entropy, losses.squared, losses.half_squared, losses.correct)
)
NUMBERS = st.floats(-50, 50, width=32)


def negative_log_softmax(outputs, y):
    """-log softmax(outputs)[y] of one example, in float64."""
    outputs = np.asarray(outputs, float)
    return np.log(np.exp(outputs - outputs.max()).sum()) + outputs.max() - outputs[y]


@given(arrays(np.float32, (6, 4), elements=NUMBERS), arrays(np.int32, 6, elements=st.integers(0, 3)))
@settings(max_examples=40, deadline=None)
def test_cross_entropy_is_minus_log_softmax(outputs, y):
    wanted = [negative_log_softmax(o, label) for o, label in zip(outputs, y, strict=True)]
    np.testing.assert_allclose(cross_entropy(outputs, y), wanted, rtol=1e-5, atol=2e-5)


def test_smoothed_labels_are_any_class_for_a_tenth():
    rng = np.random.default_rng(0)
    outputs, y = rng.standard_normal((5, 3, 4)).astype(np.float32), rng.integers(0, 4, (5, 3))
    each = np.array([[[negative_log_softmax(o, c) for c in range(4)] for o in row] for row in outputs])
    label = 0.9 * np.eye(4)[y] + 0.1 / 4
    wanted = (label * each).sum(-1).mean(-1)
    np.testing.assert_allclose(jax.jit(losses.smoothed_cross_entropy)(outputs, y), wanted, rtol=1e-5)


def test_cross_entropy_of_a_sequence_is_the_mean_over_positions():
    rng = np.random.default_rng(0)
    outputs, y = rng.standard_normal((5, 3, 4)).astype(np.float32), rng.integers(0, 4, (5, 3))
    wanted = [
        np.mean([negative_log_softmax(o, label) for o, label in zip(*pair, strict=True)])
        for pair in zip(outputs, y, strict=True)
    ]
    np.testing.assert_allclose(cross_entropy(outputs, y), wanted, rtol=1e-5)


@pytest.mark.parametrize("size", [1e3, 1e8, 3e38])
def test_large_outputs_do_not_lose_the_loss(size):
    outputs = np.full((2, 10), size, np.float32)
    np.testing.assert_allclose(cross_entropy(outputs, np.array([0, 9])), [np.log(10)] * 2, rtol=1e-6)
    apart = np.array([[1e4, 0.0], [0.0, 1e4]], np.float32)
    np.testing.assert_allclose(cross_entropy(apart, np.array([0, 0])), [0, 1e4])


@given(arrays(np.float32, 6, elements=NUMBERS), arrays(np.float32, 6, elements=NUMBERS))
@settings(max_examples=40, deadline=None)
def test_squared_and_half_squared_of_numbers(outputs, y):
    wanted = (y.astype(float) - outputs) ** 2
    np.testing.assert_allclose(squared(outputs, y), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(half_squared(outputs, y), wanted / 2, rtol=1e-5, atol=1e-6)


def test_squared_sums_over_the_coordinates_of_a_target():
    rng = np.random.default_rng(0)
    outputs, y = rng.standard_normal((2, 5, 2, 3)).astype(np.float32)
    wanted = ((y - outputs) ** 2).sum(axis=(1, 2))
    np.testing.assert_allclose(squared(outputs, y), wanted, rtol=1e-5)
    np.testing.assert_allclose(half_squared(outputs, y), wanted / 2, rtol=1e-5)


def test_correct_is_one_where_the_label_has_the_largest_output():
    outputs = np.array([[0, 2, 1], [3, 2, 1], [0, 0, 1.0]])
    assert correct(outputs, np.array([1, 1, 2])).tolist() == [1, 0, 1]
    # and the fraction of a sequence
    outputs = np.zeros((2, 4, 3))
    outputs[:, :, 1] = 1
    assert correct(outputs, np.array([[1, 1, 1, 0], [0, 2, 1, 0]])).tolist() == [0.75, 0.25]


def test_losses_are_known_by_name_and_a_function_is_its_own():
    for name in ("cross_entropy", "squared", "half_squared"):
        assert losses.named(name) is getattr(losses, name)
    assert losses.named(np.subtract) is np.subtract


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(SettingError) as raised:
        losses.named("hinge")
    assert str(raised.value) == (
        "unknown loss 'hinge': choose one of cross_entropy, smoothed_cross_entropy, squared, half_squared or "
        "give a function."
    )
