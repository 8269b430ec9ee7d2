"""Cross-fitting: models trained on one half of every client's examples and judged on the other.

So all examples serve for both, and no example is judged by a model that has seen it. Half 0 has the examples
at even places, half 1 those at odd ones; a pair of models has been trained on one half each.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie.learn.learner import AT_ONCE
from coterie.learn.task import Client, Reply, Task, per_client
from coterie.learn.tasks import Loss, weight_of
from coterie.models import stacked

ALONE = "alone"  # what a client keeps: the loss of every example under a model trained alone on its others
NUMBERS = 256  # that stand for a gradient


class TrainHalves(Task):
    """Train the pair of models of the client's group (`only`), each on its half of the shard."""

    models: PyTree  # (k, 2, ...)
    round: Int[Array, ""]
    by_examples: bool = eqx.field(static=True, default=False)

    def updates(self) -> int:
        return 2

    def __call__(self, client: Client) -> Reply:
        learner, shard, group = client.learner, client.shard, client.only
        assert group is not None

        def trained(model: PyTree, half: Int[Array, ""]) -> tuple[Array, PyTree]:
            own = shard.part(half, jnp.asarray(2))
            key = jax.random.fold_in(client.key, half)
            return learner.shard_loss(model, own), learner.train(model, own, key, self.round)

        losses, pair = jax.vmap(trained)(stacked.take(self.models, group), jnp.arange(2))
        # one example makes no half
        weight = jnp.where(shard.size < 2, 0.0, weight_of(shard, self.by_examples))
        return Reply(Loss(losses.mean()), pair, group, weight)


class PullHalves(Task):
    """Where either half of the examples would pull the models of the client's group.

    Each of them would pull both models of the pair, so that one half can be compared with the other.
    """

    models: PyTree  # (k, 2, ...)

    class Report(eqx.Module):
        halves: Float[Array, "2 numbers"]  # of length 1, or 0 where a half is empty

    def __call__(self, client: Client) -> Reply:
        learner, shard, group = client.learner, client.shard, client.only
        assert group is not None
        pair = stacked.take(self.models, group)

        def pull(half: Int[Array, ""]) -> Float[Array, " numbers"]:
            own = shard.part(half, jnp.asarray(2))
            # of all examples of the half, also where the local update takes batches: it is asked only once
            gradient = jax.grad(learner.shard_loss)
            numbers = jax.vmap(lambda model: sketch(gradient(model, own)))(pair).reshape(-1)
            length = jnp.linalg.norm(numbers)
            known = (length > 0) & jnp.isfinite(length) & (shard.size > 1)
            return jnp.where(known, numbers / jnp.where(known, length, 1), 0)

        return Reply(self.Report(jax.vmap(pull)(jnp.arange(2))))


def sketch(gradient: PyTree) -> Float[Array, " numbers"]:
    """At most `NUMBERS` numbers whose inner products are about those of the gradients.

    Where a gradient has more, each is added to one of them or subtracted from it: always the same one, drawn
    by lot.
    """
    flat = jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(gradient)])
    if len(flat) <= NUMBERS:
        return flat
    to, sign = jax.random.split(jax.random.key(len(flat)))
    place = jax.random.randint(to, flat.shape, 0, NUMBERS)
    return jnp.zeros(NUMBERS).at[place].add(flat * jax.random.rademacher(sign, flat.shape, flat.dtype))


class Judgement(eqx.Module):
    """A client's report, in which every example is judged by models that have not seen it.

    Of differences between two losses there are the sum over its examples and the sum of their squares.
    """

    loss: Float[Array, " k"]  # under each pair: sums over examples
    others: Float[Array, "2 k"]  # each pair, against the one that it chooses
    even: Float[Array, "2 k"]  # the same of half 0 alone
    alone: Float[Array, "2"]  # being alone, against the pair that it chooses
    examples: Int[Array, ""]


class JudgeAlone(Task):
    """Train alone on all of the shard but a part, and judge that model on this; for every part in turn.

    Half of the examples would say too little for being alone: there are no others to make up for them.
    """

    start: PyTree
    rounds: int = eqx.field(static=True)
    parts: int = eqx.field(static=True, default=5)
    keeps: ClassVar[bool] = True

    def updates(self) -> int:
        return self.rounds * self.parts

    def __call__(self, client: Client) -> Reply:
        learner, shard, parts = client.learner, client.shard, jnp.asarray(self.parts)

        def judged(number: Int[Array, ""]) -> Float[Array, " examples"]:
            own, key = shard.without(number, parts), jax.random.fold_in(client.key, number)

            def once(model: PyTree, round_: Int[Array, ""]) -> tuple[PyTree, None]:
                return learner.train(model, own, jax.random.fold_in(key, round_), round_), None

            model = jax.lax.scan(once, self.start, jnp.arange(self.rounds))[0]
            out = shard.mask & (jnp.arange(len(shard.x)) % parts == number)
            return jnp.where(out, learner.per_example(model, shard.x, shard.y), 0)

        return Reply(keep={ALONE: jax.vmap(judged)(jnp.arange(self.parts)).sum(0)})


class JudgeHalves(Task):
    """Judge k pairs of models on the examples that they have not seen, and choose one.

    A client leaves its group's pair only for one that is better by `margin` standard errors.
    """

    models: PyTree  # (k, 2, ...)
    real: Int[Array, ""]  # how many of them there are; the others only fill up the array
    margin: Float[Array, ""]
    group: Int[Array, ""] = per_client()  # -1: none
    needs: ClassVar[tuple[str, ...]] = (ALONE,)

    def compared(self, k: int) -> int:
        return 2 * k

    def __call__(self, client: Client) -> Reply:
        assert client.kept is not None
        alone = client.kept[ALONE]
        losses = losses_of_unseen(client, self.models)
        total = losses.sum(1)
        known = ~jnp.isnan(total) & (jnp.arange(len(total)) < self.real)
        best = jnp.argmin(jnp.where(known, total, jnp.inf)).astype(jnp.int32)
        leaves = statistic(*_paired(losses[best] - losses[self.group])) < -self.margin
        chosen = jnp.where((self.group < 0) | leaves, best, self.group)
        own = losses[chosen]
        even = jnp.arange(losses.shape[1]) % 2 == 0
        report = Judgement(
            loss=total,
            others=_paired(losses - own),
            even=_paired(jnp.where(even, losses - own, 0)),
            alone=_paired(alone - own),
            examples=client.shard.size,
        )
        return Reply(report, cluster=chosen)


def _paired(difference: Float[Array, "*k examples"]) -> Float[Array, "2 *k"]:
    return jnp.stack([difference.sum(-1), jnp.square(difference).sum(-1)])


def losses_of_unseen(client: Client, pairs: PyTree) -> Float[Array, "k examples"]:
    """The loss of every example under the model of each pair that has not seen it; 0 for padding."""
    learner, shard = client.learner, client.shard
    even = jnp.arange(len(shard.x)) % 2 == 0

    def of_pair(pair: PyTree) -> Float[Array, " examples"]:
        first, second = jax.vmap(lambda model: learner.per_example(model, shard.x, shard.y))(pair)
        return jnp.where(shard.mask, jnp.where(even, second, first), 0)

    if stacked.count(pairs) <= AT_ONCE:
        return jax.vmap(of_pair)(pairs)
    losses: Array = jax.lax.map(of_pair, pairs, batch_size=AT_ONCE)
    return losses


def statistic(difference: Any, squares: Any) -> Any:
    """The sum of paired differences over its standard error, if their mean is 0; 0 where all of them are."""
    xp = jnp if isinstance(squares, jax.Array) else np  # on the host no program has to be compiled
    return difference / xp.sqrt(xp.maximum(squares, 1e-30))
