"""Local updates in the span of a client's own examples.

Steps on all n examples of a client move the weights W of a first dense layer only within the span of its
rows X: with the products G = X X^T between examples, known once and for all, a step costs a product with
G (n x n) instead of two with X (n x features), and W is not needed before the last step is done.

W is written as sum_j scale_j B_j + rows^T X, where the bases B are the weights at the start and, if there is
one, those of the model that a pull draws towards. A rule whose steps are linear in gradients and weights,
such as SGD with momentum, weight decay and proximal terms, is run as it is on these coordinates in the place
of W: the gradient with respect to W is dZ^T X, so it has the coordinates scale = 0 and rows = dZ. A bias is
the weight of one more feature that is 1 for every example, and 1 is added to G for it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.data.shards import Spec
from coterie.learn import losses, on_chip
from coterie.learn.local import Objective, Pull
from coterie.learn.shard import Shard
from coterie.models import stacked
from coterie.models.half import computed_in, rounded
from coterie.models.layers import DenseFirst, dense

if TYPE_CHECKING:
    from coterie.learn.learner import Learner

TOGETHER = 8  # examples, with which a CPU carries out the products of a batch of clients together
WORTH = 0.8  # of the arithmetic of the usual way: less than that is worth another way


class Coordinates(eqx.Module):
    """A first layer, as a combination of bases and of a client's examples."""

    scale: Float[Array, " bases"] | None  # None: once the first base, whatever happens
    rows: Float[Array, "examples width"]


def possible(learner: Learner) -> bool:
    """Whether local updates can be computed in the span of a client's examples."""
    if learner.augment is not None:
        return False  # its steps see other examples than those whose products are known
    return learner.local.linear_steps() is not None and isinstance(learner.model, DenseFirst)


def pays(learner: Learner, examples: int, features: int) -> bool:
    """Whether local updates of a client with so many examples are better computed in their span."""
    steps = learner.local.linear_steps()
    if steps is None or not possible(learner) or on_chip.possible(learner, examples, features):
        return False
    # products of each example: in each step X W^T and dZ^T X, or G rows; these two once at the ends
    return steps * examples + 2 * features < WORTH * steps * 2 * features


def products(learner: Learner, spec: Spec, x: Array) -> Float[Array, "clients examples examples"]:
    """G of each of stacked clients, given their features as they are stored."""
    model, x = cast(Any, learner.model), spec.seen(x)
    flat = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    gram = jnp.einsum(
        "cnd,cmd->cnm",
        flat,
        flat,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    gram = gram if model.first(learner.shapes_for(x[0])).bias is None else gram + 1
    return gram.astype(computed_in(model))


@cache
def compiled_products() -> Any:
    """`products`, compiled.

    On a GPU without Triton's ways to do it: to try them all takes ten seconds, for what is done once.
    """
    once = {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else None
    return jax.jit(products, static_argnums=1, compiler_options=once)


def train(
    learner: Learner,
    start: PyTree | stacked.OneOf,
    shard: Shard,
    key: Key[Array, ""],
    round_: Int[Array, ""],
    label: Any,
    pull: Pull | None,
) -> PyTree:
    """What `learner.train` gives, up to rounding."""
    model: Any = learner.model
    flat = rounded(shard.x.reshape(len(shard.x), -1), computed_in(model))
    gram, loss = shard.gram, losses.named(learner.loss)

    def at(layers: eqx.nn.Linear) -> Float[Array, "layers examples width"]:
        return jax.vmap(lambda layer: dense(rounded(layer, flat.dtype), flat))(layers)

    if isinstance(start, stacked.OneOf):
        # the losses of all models need this too: the compiler sees that it is the same
        at_start, start = at(model.first(start.models))[start.which][None], start.taken()
    else:
        at_start = at(stacked.stack([model.first(start)]))
    models = [start] if pull is None else [start, pull.anchor]
    bases = stacked.stack(list(map(model.first, models)))
    at_bases = at_start
    if pull is not None:
        at_bases = jnp.concatenate([at_start, at(stacked.stack([model.first(pull.anchor)]))])
    shrinks = len(models) > 1 or getattr(learner.local, "weight_decay", 0) > 0

    def in_coordinates(number: int) -> PyTree:
        scale = jnp.zeros(len(models)).at[number].set(1) if shrinks else None
        return model.with_first(models[number], Coordinates(scale, jnp.zeros(at_bases.shape[1:])))

    def per_example(params: PyTree, x: Array, y: Array) -> Float[Array, " examples"]:
        z = _at_examples(model.first(params), at_bases, gram)
        return loss(model.after_first(params, z), y)

    near = None if pull is None else Pull(in_coordinates(1), pull.strength)
    objective = Objective(per_example, weight=label, pull=near)
    trained = learner.local.run(objective, in_coordinates(0), shard, key, round_)
    found: Coordinates = model.first(trained)
    layer = jax.tree.map(lambda base: _combined(found.scale, base), bases)
    weight, bias = layer.weight + _exactly(found.rows.T, flat), layer.bias
    bias = None if bias is None else bias + found.rows.sum(0)
    made = eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias), is_leaf=_is_none)
    return model.with_first(trained, made)


def _is_none(value: Any) -> bool:
    return value is None


def _combined(scale: Float[Array, " bases"] | None, bases: Array) -> Array:
    return bases[0] if scale is None else jnp.tensordot(scale, bases, 1)


def _exactly(a: Array, b: Array) -> Array:
    """A product of numbers of the narrower of both kinds, summed in float32."""
    narrow = min(a.dtype, b.dtype, key=lambda kind: kind.itemsize)
    return jnp.matmul(a.astype(narrow), b.astype(narrow), preferred_element_type=jnp.float32)


@jax.custom_vjp
def _at_examples(
    first: Coordinates,
    at_bases: Float[Array, "bases examples width"],
    gram: Float[Array, "examples examples"],
) -> Float[Array, "examples width"]:
    """X W^T; its derivative with respect to W is given in coordinates, not with respect to coordinates."""
    z = _combined(first.scale, at_bases) + _product(gram, first.rows)
    return z.astype(at_bases.dtype)


def _product(gram: Float[Array, "examples examples"], rows: Float[Array, "examples width"]) -> Array:
    """G times rows."""
    count = len(gram)
    more = TOGETHER - count
    if jax.default_backend() == "cpu" and 0 < more <= TOGETHER // 2:
        # with nothing added, XLA would call a library for every client of a batch
        gram, rows = jnp.pad(gram, ((0, more), (0, more))), jnp.pad(rows, ((0, more), (0, 0)))
    return _exactly(gram, rows)[:count]


def _forward(first: Coordinates, at_bases: Array, gram: Array) -> tuple[Array, tuple[Any, ...]]:
    return _at_examples(first, at_bases, gram), (first.scale, at_bases, gram)


def _backward(saved: tuple[Any, ...], dz: Array) -> tuple[Coordinates, Array, Array]:
    scale, at_bases, gram = jax.tree.map(jnp.zeros_like, saved)
    return Coordinates(scale, dz.astype(jnp.float32)), at_bases, gram


_at_examples.defvjp(_forward, _backward)
