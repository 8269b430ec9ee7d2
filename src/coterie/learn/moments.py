"""What moment descent asks of clients: Phase 1 of Su, Xu and Yang, "Global Convergence of Federated Learning
for Mixed Regression".

Everything is about eps_j, minus the gradient of the loss of example j (Remark 3): for a linear model and
`half_squared` that is the paper's (y_j - <x_j, theta>) x_j. They are never all held at once, examples times
parameters: their products with a few directions are derivatives along these, and their sums gradients.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from coterie.learn.learner import Learner
from coterie.learn.shard import Part, Shard
from coterie.learn.task import Client, Reply, Task, per_client
from coterie.models import stacked


class MultiplyMoment(Task):
    """The client's part of a product with Y: lines 5 and 8 of Algorithm 3, for every anchor's model.

    Line 5 is the mean of b_j' a_j^T Q over pairs of different examples, where a_j is eps_j under the `first`
    and b_j' is eps_j' under the `second` of two models; line 8 is the same with the two exchanged.

    A client counts as often as it has examples, which is as it has disjoint pairs; once where only one pair
    counts. With one example it has no pair, and counts nothing.
    """

    directions: PyTree  # Q for each anchor: (anchors, k, ...)
    models: PyTree = None  # one for each anchor, unless a client has two of its own for each:
    first: PyTree = per_client(default=None)
    second: PyTree = per_client(default=None)
    two: tuple[int, int] | None = eqx.field(static=True, default=None)  # only this pair of examples counts
    # whether the reply shall have k x k matrices Q^T H Q, with H the Hessian of the client's loss
    curvature: bool = eqx.field(static=True, default=False)

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard
        first, second = (self.models,) * 2 if self.first is None else (self.first, self.second)

        def product(first: PyTree, second: PyTree, directions: PyTree) -> PyTree:
            along = _along(learner, first, directions, shard)
            if self.two is not None:
                a, b = self.two
                times = jnp.where((jnp.arange(len(along)) == b)[:, None], along[a], 0)
            else:  # each example with all others
                times = (along.sum(0) - along) / _pairs(shard)
            return _combined(learner, second, times, shard)

        value = {"product": jax.vmap(product)(first, second, self.directions)}
        if self.curvature:
            value["curvature"] = jax.vmap(
                lambda model, directions: _curvature(learner, model, directions, shard)
            )(first, self.directions)
        weight = jnp.where(shard.size < 2, 0, 1 if self.two is not None else shard.size)
        return Reply(value=value, weight=weight.astype(jnp.float32))


class DescendMoment(Task):
    """A step of an anchor towards the model of its own cluster: lines 10 to 15 of Phase 1."""

    model: PyTree = per_client()
    subspace: PyTree = per_client()  # (k, ...), orthonormal
    rate: Float[Any, ""] = per_client()  # by which sigma is multiplied to give the step size
    least: Float[Any, ""] = per_client()  # what sigma must exceed for a step
    part: Part = None  # use part number part[0] of part[1] of the examples only
    power_iterations: int = eqx.field(static=True, kw_only=True)  # T_2
    disjoint: bool = eqx.field(static=True, default=False)  # A over disjoint pairs as in (2), not all pairs

    class Report(eqx.Module):
        sigma: Float[Array, ""]

    def __call__(self, client: Client) -> Reply:
        shard = client.shard.only(self.part)
        along = _along(client.learner, self.model, self.subspace, shard)  # (capacity, k): U^T eps_j
        if self.disjoint:  # (2): the first half of the examples with the second half
            half = shard.size // 2
            partner = jnp.roll(along, -half, axis=0)
            moment = jnp.where((jnp.arange(len(along)) < half)[:, None], along, 0).T @ partner
            moment /= jnp.maximum(half, 1)
        else:
            moment = along.T @ (along.sum(0) - along) / _pairs(shard)

        # A is of fourth order in the features: products of its entries may be too large or small for 32 bits
        scale = jnp.max(jnp.abs(moment))
        scaled = moment / jnp.where(scale > 0, scale, 1)

        def power(_: Any, b: Float[Array, " k"]) -> Float[Array, " k"]:  # line 11
            new = scaled @ (scaled.T @ b)
            length = jnp.linalg.norm(new)
            return jnp.where(length > 0, new / jnp.where(length > 0, length, 1), b)

        start = jax.random.normal(client.key, along.shape[1:])
        b = jax.lax.fori_loop(0, self.power_iterations, power, start / jnp.linalg.norm(start))
        # the paper leaves the sign of b open: a step has to go down the mean loss, whose negative gradient is
        # the mean of eps
        b = jnp.where(b @ along.sum(0) < 0, -b, b)
        # A is about r r^T, r the residual: where its leading value is negative, what is left of r is noise
        sigma = jnp.sqrt(jnp.maximum(b @ scaled @ b, 0) * scale)
        step = jnp.where(sigma > self.least, self.rate * sigma, 0)  # lines 12 and 15
        model = jax.tree.map(  # line 13
            lambda theta, u: theta + step * jnp.tensordot(b, u, 1), self.model, self.subspace
        )
        return Reply(self.Report(sigma), model)


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
