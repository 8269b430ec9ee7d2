"""Linear models and fully connected networks."""

from functools import partial

import jax
import numpy as np
import pytest

from coterie.data import Spec
from coterie.errors import SettingError
from coterie.models import MLP, Linear, Model, stacked

LABELS = Spec((2, 3), "float32", (), "int32", classes=5)
NUMBERS = Spec((2, 3), "float32", (), "float32")
VECTORS = Spec((2, 3), "float32", (4,), "float32")
X = np.random.default_rng(0).standard_normal((7, 2, 3)).astype(np.float32)
NET = MLP(hidden=(50, 20), outputs=5)


def fresh(model, x=X, seed=0):
    return compiled_init(model, jax.random.key(seed), x)


@partial(jax.jit, static_argnums=0)
def compiled_init(model, key, x):
    return model.init(key, x)


def arrays(params):
    return {name: np.asarray(a) for name, a in stacked.named(params).items()}


@pytest.mark.parametrize("outputs, shape, bias", [((), (), False), (1, (1,), True), ((2, 5), (2, 5), False)])
def test_linear_is_a_product_with_the_flattened_features(outputs, shape, bias):
    model = Linear(outputs=outputs, bias=bias)
    params = fresh(model)
    a = arrays(params)
    wanted = X.reshape(7, 6) @ a["layers.0.weight"].T + (a["layers.0.bias"] if bias else 0)
    assert ("layers.0.bias" in a) == bias
    np.testing.assert_allclose(
        jax.jit(model.apply)(params, X), wanted.reshape(7, *shape), rtol=1e-5, atol=1e-6
    )


def test_a_linear_model_for_numbers_has_theta_as_its_only_parameters():
    model = Linear().for_data(NUMBERS)
    made = fresh(model)
    assert {name: a.shape for name, a in arrays(made).items()} == {"layers.0.weight": (1, 6)}
    theta = np.arange(6, dtype=np.float32)
    params = stacked.take(stacked.from_matrix(theta[None], made), 0)
    np.testing.assert_allclose(jax.jit(model.apply)(params, X), X.reshape(7, 6) @ theta, rtol=1e-5)


def test_an_mlp_has_relu_between_dense_layers():
    params = fresh(NET)
    a = arrays(params)
    h = X.reshape(7, 6)
    for i in range(3):
        h = h @ a[f"layers.{i}.weight"].T + a[f"layers.{i}.bias"]
        h = np.maximum(h, 0) if i < 2 else h
    np.testing.assert_allclose(jax.jit(NET.apply)(params, X), h, rtol=1e-5, atol=1e-5)
    assert [a[f"layers.{i}.bias"].shape for i in range(3)] == [(50,), (20,), (5,)]


@pytest.mark.parametrize("model", [Linear(), MLP(hidden=(3,))])
@pytest.mark.parametrize(
    "spec, shape",
    [
        (LABELS, (5,)),
        (NUMBERS, ()),
        (VECTORS, (4,)),
        (Spec((6,), "float32", (9,), "int32", classes=3), (9, 3)),
    ],
)
def test_open_outputs_come_from_the_data(model, spec, shape):
    sized = model.for_data(spec)
    assert sized.output_shape == shape
    x = np.zeros((2, *spec.x_shape), np.float32)
    outputs = jax.eval_shape(lambda key: sized.apply(sized.init(key, x), x), jax.random.key(0))
    assert outputs.shape == (2, *shape)


def test_outputs_that_are_set_stay():
    assert MLP(outputs=12).for_data(LABELS) == MLP(outputs=12)
    assert MLP((7, 5)) == MLP(hidden=(7, 5))  # the widths come to mind first; outputs are only by name
    assert Linear(outputs=()).for_data(VECTORS) == Linear(outputs=())


def test_fresh_parameters_are_uniform_within_one_over_the_root_of_the_fan_in():
    params = fresh(NET)
    for name, fan_in in (("layers.0.weight", 6), ("layers.1.weight", 50)):
        values, bound = arrays(params)[name], 1 / np.sqrt(fan_in)
        assert 0.98 * bound < np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)


def test_keys_give_different_parameters():
    one, same, other = (arrays(fresh(NET, seed=s)) for s in (0, 0, 1))
    for name in one:
        np.testing.assert_array_equal(one[name], same[name])
        assert (one[name] != other[name]).all()
    # nor do layers share theirs: each has its own scale
    first, second = (
        one[f"layers.{i}.weight"].ravel()[:100] * np.sqrt(fan_in) for i, fan_in in enumerate((6, 50))
    )
    assert np.abs(first - second).max() > 0.1


def test_whatever_has_init_and_apply_is_a_model():
    class Own:
        def init(self, key, x): ...

        def apply(self, params, x): ...

    assert isinstance(Own(), Model) and isinstance(Linear(), Model)
    assert not isinstance(object(), Model)


def test_a_layer_needs_a_width():
    with pytest.raises(SettingError, match="widths from 1 up"):
        MLP(hidden=(8, 0))
