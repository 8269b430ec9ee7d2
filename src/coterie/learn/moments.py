"""What moment descent asks of clients: Phase 1 of Su, Xu and Yang, "Global Convergence of Federated Learning
for Mixed Regression".

Everything is about eps_j, minus the gradient of the loss of example j (Remark 3): for a linear model and
`half_squared` that is the paper's (y_j - <x_j, theta>) x_j. They are never all held at once, examples times
parameters: their products with a few directions are derivatives along these, and their sums gradients.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.tasks import Reply
from coterie.models import stacked


def multiply_moment(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """The client's part of a product with Y: lines 5 and 8 of Algorithm 3, for every anchor's model.

    Line 5 is the mean of b_j' a_j^T Q over pairs of different examples, where a_j is eps_j under the `first`
    and b_j' is eps_j' under the `second` of two models; line 8 is the same with the two exchanged.

    Broadcast: `directions`, Q for each anchor (anchors, k stacked models). `models`, one for each anchor,
    unless this client has two of its own for each, `first` and `second`, in `each`. `two`, where only the
    pair of the client's first two examples counts: which of them is a and which is b. `curvature`, where the
    reply shall have k x k matrices Q^T H Q, with H the Hessian of the client's loss.

    A client counts as often as it has examples, which is as it has disjoint pairs; once where only one pair
    counts. With one example it has no pair, and counts nothing.
    """
    first, second = (broadcast["models"],) * 2 if each is None else (each["first"], each["second"])

    def product(first: PyTree, second: PyTree, directions: PyTree) -> PyTree:
        along = _along(learner, first, directions, shard)
        if "two" in broadcast:
            a, b = broadcast["two"]
            times = jnp.where((jnp.arange(len(along)) == b)[:, None], along[a], 0)
        else:  # each example with all others
            times = (along.sum(0) - along) / _pairs(shard)
        return _combined(learner, second, times, shard)

    value = {"product": jax.vmap(product)(first, second, broadcast["directions"])}
    if "curvature" in broadcast:
        value["curvature"] = jax.vmap(
            lambda model, directions: _curvature(learner, model, directions, shard)
        )(first, broadcast["directions"])
    weight = jnp.where(shard.size < 2, 0, 1 if "two" in broadcast else shard.size)
    return Reply(report={}, value=value, weight=weight.astype(jnp.float32))


def descend_moment(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """One step of an anchor's own model: lines 11 to 15 of Phase 1.

    Broadcast: `power_iterations`, T_2. `two`, where A is over disjoint pairs of examples as in (2) and not
    over all pairs. `part`, where only part number `part[0]` of `part[1]` of the examples is used.
    Each: `model`, `subspace` (k stacked models, orthonormal), `rate`, by which sigma is multiplied to give
    the step size, and `least`, which sigma must exceed for a step.
    """
    if "part" in broadcast:
        shard = shard.part(*broadcast["part"])
    along = _along(learner, each["model"], each["subspace"], shard)  # (capacity, k): U^T eps_j
    if "two" in broadcast:  # (2): the first half of the examples with the second half
        half = shard.size // 2
        partner = jnp.roll(along, -half, axis=0)
        moment = jnp.where((jnp.arange(len(along)) < half)[:, None], along, 0).T @ partner
        moment /= jnp.maximum(half, 1)
    else:
        moment = along.T @ (along.sum(0) - along) / _pairs(shard)

    # A is of fourth order in the features: products of its entries may be too large or small for a float32
    scale = jnp.max(jnp.abs(moment))
    scaled = moment / jnp.where(scale > 0, scale, 1)

    def power(_: Any, b: Float[Array, " k"]) -> Float[Array, " k"]:  # line 11
        new = scaled @ (scaled.T @ b)
        length = jnp.linalg.norm(new)
        return jnp.where(length > 0, new / jnp.where(length > 0, length, 1), b)

    start = jax.random.normal(key, along.shape[1:])
    b = jax.lax.fori_loop(0, broadcast["power_iterations"], power, start / jnp.linalg.norm(start))
    # the paper leaves the sign of b open: a step has to go down the mean loss, whose negative gradient is the
    # mean of eps
    b = jnp.where(b @ along.sum(0) < 0, -b, b)
    # A is about r r^T, r the residual: where its leading value is negative, what is left of r is noise
    sigma = jnp.sqrt(jnp.maximum(b @ scaled @ b, 0) * scale)
    step = jnp.where(sigma > each["least"], each["rate"] * sigma, 0)  # lines 12 and 15
    model = jax.tree.map(  # line 13
        lambda theta, u: theta + step * jnp.tensordot(b, u, 1), each["model"], each["subspace"]
    )
    return Reply(report={"sigma": sigma}, value=model)


def _pairs(shard: Shard) -> Float[Array, ""]:
    """How many ordered pairs of different examples there are; 1 where there are none."""
    size = shard.size.astype(jnp.float32)  # the square of 50,000 is no 32-bit integer
    return jnp.maximum(size * (size - 1), 1)


def _along(learner: Learner, model: PyTree, directions: PyTree, shard: Shard) -> Float[Array, "capacity k"]:
    """The products of each eps_j with k directions; zero for padding."""
    _, slope = jax.linearize(lambda params: learner.per_example(params, shard.x, shard.y), model)
    return jnp.where(shard.mask[:, None], -jax.vmap(slope, out_axes=1)(directions), 0)


def _combined(learner: Learner, model: PyTree, times: Float[Array, "capacity k"], shard: Shard) -> PyTree:
    """The k sums of eps_j, each counted `times`; padding not at all."""
    _, pull = jax.vjp(lambda params: learner.per_example(params, shard.x, shard.y), model)
    return jax.vmap(lambda t: pull(t)[0])(-jnp.where(shard.mask[:, None], times, 0).T)


def _curvature(learner: Learner, model: PyTree, directions: PyTree, shard: Shard) -> Float[Array, "k k"]:
    """Q^T H Q: the second derivatives of the client's loss along k directions."""

    def loss(c: Float[Array, " k"]) -> Float[Array, ""]:
        moved = jax.tree.map(lambda theta, q: theta + jnp.tensordot(c, q, 1), model, directions)
        return learner.shard_loss(moved, shard)

    curvature: Array = jax.hessian(loss)(jnp.zeros(stacked.count(directions)))
    return curvature
