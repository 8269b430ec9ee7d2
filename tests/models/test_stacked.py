"""k models as one pytree with a leading axis, and as a matrix."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import SettingError
from coterie.models import stacked

ONE = {
    "b": jax.ShapeDtypeStruct((), jnp.float32),
    "w": [jax.ShapeDtypeStruct((2, 3), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.bfloat16)],
}
WIDTH = 1 + 6 + 4


def models(k=3, seed=0):
    """k models in NumPy; small whole numbers, which every dtype holds exactly."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda one: rng.integers(-99, 100, (k, *one.shape)).astype(one.dtype), ONE)


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one, float), np.asarray(other, float))


def test_a_matrix_has_one_row_of_parameters_per_model():
    given_ = models()
    matrix = np.asarray(stacked.to_matrix(given_))
    assert matrix.shape == (3, WIDTH)
    for j in range(3):
        row = [given_["b"][j : j + 1], given_["w"][0][j].ravel(), given_["w"][1][j]]
        np.testing.assert_array_equal(matrix[j], np.concatenate([np.asarray(a, np.float32) for a in row]))


@given(st.integers(1, 3), st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_models_survive_the_way_through_a_matrix(k, seed):
    assert_equal(stacked.from_matrix(stacked.to_matrix(models(k, seed)), ONE), models(k, seed))


@pytest.mark.parametrize("shape", [(3, WIDTH - 1), (WIDTH,), (2, 3, WIDTH), ()])
def test_a_matrix_of_the_wrong_shape_is_refused(shape):
    for call in (stacked.from_matrix, stacked.given):
        with pytest.raises(
            SettingError, match=re.escape(f"must have shape (k, {WIDTH}) for this learner, not {shape}")
        ):
            call(np.zeros(shape), ONE)


def test_given_models_may_be_a_pytree_or_a_matrix_and_take_the_learners_types():
    assert_equal(stacked.given(models(), ONE), models())
    assert_equal(stacked.given(np.asarray(stacked.to_matrix(models()), np.float64), ONE), models())
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), models())
    assert_equal(stacked.given(wide, ONE), models())


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_models_that_are_one_array_may_be_given_stacked_or_flat(shape):
    one = jax.ShapeDtypeStruct(shape, jnp.float32)
    stack = np.arange(5 * np.prod(shape, dtype=int), dtype=np.float32).reshape(5, *shape)
    for form in (stack, stack.reshape(5, -1)):
        assert_equal(stacked.given(form, one), stack)


def without_axis(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def uneven(tree):
    return {**tree, "b": np.zeros(4, np.float32)}


def transposed(tree):
    return {**tree, "w": [tree["w"][0].transpose(0, 2, 1), tree["w"][1]]}


SHAPES = "do not have this learner's shapes behind a leading cluster axis"
NO_MODELS = r"neither a \(k, d\) matrix nor a stack of this learner's models"


@pytest.mark.parametrize(
    "things, one, sentence",
    [
        (without_axis(models()), ONE, SHAPES),
        (uneven(models()), ONE, SHAPES),
        (transposed(models()), ONE, SHAPES),
        (np.float32(3), jax.ShapeDtypeStruct((), jnp.float32), "leading cluster axis"),
        ({"b": np.zeros(3)}, ONE, NO_MODELS),
        ([models(), models()], ONE, NO_MODELS),
        ("random", ONE, NO_MODELS),
        (None, ONE, NO_MODELS),
    ],
)
def test_things_that_are_no_such_models_are_refused(things, one, sentence):
    with pytest.raises(SettingError, match=sentence):
        stacked.given(things, one)


def test_take_picks_one_model_or_several():
    given_ = models()
    assert_equal(stacked.take(given_, 2), jax.tree.map(lambda leaf: leaf[2], given_))
    assert_equal(stacked.take(given_, np.array([2, 0])), jax.tree.map(lambda leaf: leaf[[2, 0]], given_))


def test_count_and_repeated_agree():
    assert stacked.count(models(4)) == 4
    assert jax.tree.map(lambda a: (a.shape, a.dtype), stacked.repeated(ONE, 4)) == jax.tree.map(
        lambda a: (a.shape, jnp.dtype(a.dtype)), models(4)
    )


def test_names_are_paths():
    assert {name: leaf.shape for name, leaf in stacked.named(models()).items()} == {
        "b": (3,),
        "w.0": (3, 2, 3),
        "w.1": (3, 4),
    }
    assert list(stacked.named(np.zeros(2))) == ["value"]


def test_named_arrays_become_the_models_again():
    shapes = stacked.repeated(ONE, 3)
    assert_equal(stacked.from_named(stacked.named(models()), shapes), models())


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda a: a.pop("w.0"), "'w.0' is on one side only"),
        (lambda a: a.update(extra=np.zeros(3)), "'extra' is on one side only"),
        (lambda a: a.update(b=np.zeros(4)), r"stored array 'b' has shape \(4,\), not \(3,\)"),
    ],
)
def test_named_arrays_that_do_not_fit_are_named(change, sentence):
    arrays = stacked.named(models())
    change(arrays)
    with pytest.raises(SettingError, match=sentence):
        stacked.from_named(arrays, stacked.repeated(ONE, 3))
