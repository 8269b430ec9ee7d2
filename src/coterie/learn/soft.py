"""What a client of a soft clustering can be asked: it belongs to every cluster to some degree."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from coterie.learn.local import Pull
from coterie.learn.task import Client, Reply, Task, per_client
from coterie.learn.tasks import Loss, lowest
from coterie.models import stacked


class CountNearest(Task):
    """For how many examples each of k models has the lowest loss: the first in a tie, never a NaN.

    The mean loss of each, over all examples, is reported as well.
    """

    models: PyTree  # (k, ...)

    class Report(eqx.Module):
        counts: Int[Array, " k"]
        losses: Float[Array, " k"]

    def compared(self, k: int) -> int:
        return k

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard
        losses = jax.vmap(lambda model: learner.per_example(model, shard.x, shard.y))(self.models)
        nearest = lowest(losses.T)
        member = (nearest == jnp.arange(len(losses))[:, None]) & shard.mask
        return Reply(self.Report(member.sum(axis=1), jax.vmap(shard.mean)(losses)))


class TrainBetween(Task):
    """Train the client's own model on its shard, while k models draw it to themselves.

    It makes F_i(w) + sum_s pulls_s / 2 * ||w - models_s||^2 small, by the local update rule.
    """

    models: PyTree  # (k, ...)
    round: Int[Array, ""]
    model: PyTree = per_client()  # where it starts
    pulls: Float[Array, " k"] = per_client()  # how strongly each of the models draws it

    def updates(self) -> int:
        return 1

    def __call__(self, client: Client) -> Reply:
        # sum_s p_s ||w - c_s||^2 = P ||w - c||^2 + const with P = sum_s p_s and c = sum_s p_s c_s / P
        strength = self.pulls.sum()
        share = self.pulls / jnp.where(strength > 0, strength, 1)
        anchor = stacked.take(stacked.weighted(self.models, share[:, None]), 0)
        loss = client.learner.shard_loss(self.model, client.shard)
        pull = Pull(anchor, strength)
        model = client.learner.train(self.model, client.shard, client.key, self.round, pull=pull)
        return Reply(Loss(loss), model)
