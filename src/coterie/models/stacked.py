"""k models as one pytree with a leading axis, and as a (k, d) matrix of flattened parameters."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie.errors import SettingError


def take(models: PyTree, index: Any) -> PyTree:
    """The model (or models) at an index of the leading axis."""
    if isinstance(index, slice | tuple) or _on_host((models, index)):
        return jax.tree.map(lambda leaf: leaf[index], models)
    return _taken(models, index)


class OneOf(NamedTuple):
    """One of k stacked models, before it is taken: what is known of all k need not be computed again."""

    models: PyTree
    which: Int[Array, ""]

    def taken(self) -> PyTree:
        return take(self.models, self.which)


def stack(models: Sequence[PyTree]) -> PyTree:
    """Trees of one structure as one, with a leading axis."""
    if _on_host(models):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    return _together(*models)


def _on_host(trees: PyTree) -> bool:
    """Whether there is nothing that JAX would have to compile a program for."""
    return all(isinstance(leaf, np.ndarray | np.integer | int) for leaf in jax.tree.leaves(trees))


@partial(jax.jit, inline=True)  # one small program, and not one for each array
def _taken(models: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], models)


@partial(jax.jit, inline=True)
def _together(*models: PyTree) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)


def count(models: PyTree) -> int:
    """How many models are stacked."""
    return int(jax.tree.leaves(models)[0].shape[0])


def parameters(models: PyTree) -> int:
    """How many numbers all of the models have together."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(models))


def weighted(models: PyTree, weights: Float[Any, "models k"]) -> PyTree:
    """k weighted sums of stacked models."""
    exact = jax.lax.Precision.HIGHEST
    return jax.tree.map(lambda a: jnp.einsum("mk,m...->k...", weights, a, precision=exact), models)


def alike(a: PyTree, b: PyTree) -> bool:
    """Whether two trees have the same structure."""
    return bool(jax.tree.structure(a) == jax.tree.structure(b))  # type: ignore[operator]


def repeated(one: PyTree, k: int) -> PyTree:
    """The shapes of k stacked models, given those of one."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((k, *leaf.shape), leaf.dtype), one)


def expand(vector: Array, like: Array) -> Array:
    """`vector` with axes of length one appended, so that it broadcasts against `like`."""
    return vector.reshape(vector.shape + (1,) * (like.ndim - vector.ndim))


def where(condition: Array, models: PyTree, others: PyTree) -> PyTree:
    """One of two stacks of models in each place of the leading axis."""
    return jax.tree.map(lambda a, b: jnp.where(expand(condition, a), a, b), models, others)


def to_matrix(models: PyTree) -> Float[Array, "k d"]:
    """Flattened parameters, one row per model. A (k, d) matrix is returned as it is."""
    leaves = jax.tree.leaves(models)
    return jnp.concatenate([jnp.reshape(leaf, (jnp.shape(leaf)[0], -1)) for leaf in leaves], axis=1)


def from_matrix(matrix: Any, like: PyTree) -> PyTree:
    """The inverse of `to_matrix`; `like` is one model, whose shapes and dtypes are taken."""
    matrix = matrix if isinstance(matrix, np.ndarray) else jnp.asarray(matrix)
    leaves, structure = jax.tree.flatten(like)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    if matrix.ndim != 2 or matrix.shape[1] != sum(sizes):
        raise SettingError(
            f"a matrix of models must have shape (k, {sum(sizes)}) for this learner, not {matrix.shape}."
        )
    stops = np.cumsum(sizes)
    parts = [
        matrix[:, stop - size : stop].reshape(-1, *leaf.shape).astype(leaf.dtype)
        for size, stop, leaf in zip(sizes, stops, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def given(models: Any, like: PyTree) -> PyTree:
    """Models that a user gave, as a stacked pytree or as a matrix, checked against one model's shapes."""
    if alike(models, like) and not (eqx.is_array_like(models) and np.ndim(models) == 2):
        shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(models)]
        if shapes != [(*shapes[0][:1], *leaf.shape) for leaf in jax.tree.leaves(like)] or () in shapes:
            raise SettingError(
                "the given models do not have this learner's shapes behind a leading cluster axis."
            )
        return jax.tree.map(lambda leaf, one: jnp.asarray(leaf, one.dtype), models, like)
    if not eqx.is_array_like(models):
        raise SettingError(
            "the given models are neither a (k, d) matrix nor a stack of this learner's models."
        )
    return from_matrix(models, like)


def named(tree: PyTree) -> dict[str, Array]:
    """The arrays of a pytree by path, such as `layers.0.weight`: the form that is stored and sent."""
    return {name_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def name_of(path: Any) -> str:
    """A pytree path as a dotted name."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def among(name: str, chosen: Iterable[str]) -> bool:
    """Whether an array of that name is chosen, or the layer that it belongs to."""
    return any(name == one or name.startswith(f"{one}.") for one in chosen)


def part(tree: PyTree, names: Container[str]) -> dict[str, Array]:
    """Those of the arrays of a pytree that have these names."""
    return {name: leaf for name, leaf in named(tree).items() if name in names}


def with_part(tree: PyTree, arrays: Mapping[str, Any]) -> PyTree:
    """The pytree with the arrays of these names replaced."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: arrays.get(name_of(path), leaf), tree)


def from_named(arrays: Mapping[str, Any], like: PyTree, exact: bool = True) -> PyTree:
    """The inverse of `named`, checked against the structure, shapes and dtypes of `like`.

    Unless `exact`, arrays may have other sizes along their axes.
    """
    wanted = named(like)
    if wanted.keys() != arrays.keys():
        odd = sorted(wanted.keys() ^ arrays.keys())[0]
        raise SettingError(f"stored arrays do not match this learner: {odd!r} is on one side only.")
    for name, leaf in wanted.items():
        sizes = tuple(leaf.shape), tuple(arrays[name].shape)
        if sizes[0] != sizes[1] if exact else len(sizes[0]) != len(sizes[1]):
            raise SettingError(
                f"stored array {name!r} has shape {tuple(arrays[name].shape)}, not {tuple(leaf.shape)}."
            )
    leaves = [jnp.asarray(arrays[name], leaf.dtype) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
