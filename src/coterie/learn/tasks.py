"""What a client can be asked.

A task is a pure function `task(learner, broadcast, each, shard, key) -> Reply` of one client's data: what
everybody was sent, what this client alone was sent, its shard, and a key of its own. It knows nothing about
other clients, batching, devices or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from coterie import keys
from coterie.learn.learner import Learner, Within, itself
from coterie.learn.shard import Shard
from coterie.models import stacked


class Reply(eqx.Module):
    """What one client sends back.

    `value` is the large part (a model, a gradient), summed on the way when the ask reduces: in row `cluster`
    of the sums, counted `weight` times. `cluster` and the small numbers in `report` are always kept for each
    client. What is left at its default does not travel.
    """

    report: dict[str, Array]
    value: PyTree = None
    cluster: Int[Array, ""] | int = 0
    weight: Float[Array, ""] | float = 1.0


Task = Callable[[Learner, Any, Any, Shard, Key[Array, ""]], Reply]


def carry_out(
    task: Task,
    learner: Learner,
    broadcast: Any,
    each: Any,
    shard: Shard,
    token: UInt32[Array, "2"],
    key: Key[Array, ""],
    replicas: int | None,
) -> Reply:
    """What a client does with an ask, wherever it lives: derive its key, run replicas side by side."""

    def once(broadcast: Any, each: Any, key: Key[Array, ""]) -> Reply:
        reply = task(learner, broadcast, each, shard, key)
        cluster, weight = jnp.asarray(reply.cluster, jnp.int32), jnp.asarray(reply.weight, jnp.float32)
        return Reply(reply.report, reply.value, cluster, weight)

    own = keys.of_client(key, token)
    if replicas is None:
        return once(broadcast, each, own)
    return jax.vmap(once)(broadcast, each, keys.numbered(own, replicas))


def shape_of(
    task: Task, learner: Learner, broadcast: Any, each: Any, shard: Shard, replicas: int | None
) -> Reply:
    """The shapes of a client's reply (of one replica); defaults, which do not travel, stay plain numbers."""
    if replicas is not None:
        broadcast, each = jax.eval_shape(lambda t: jax.tree.map(lambda a: a[0], t), (broadcast, each))
    reply: Reply = eqx.filter_eval_shape(task, learner, broadcast, each, shard, jax.random.key(0))
    return reply


def lowest(losses: Float[Array, "*batch k"]) -> Int[Array, "*batch"]:
    """The cluster identity: the model with the lowest loss; the first of them in a tie, never a NaN."""
    return jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses), axis=-1).astype(jnp.int32)


def choose_and_train(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """Find the model of lowest loss among k and train it on the shard: one exchange per round.

    Broadcast: `models`, stacked, and `round`; and where they apply
    - `shared`, arrays by name that all models have in common; `models` are then the arrays that they do not;
    - `frozen`: what is shared is not trained, and does not travel back;
    - `by_examples`: a client counts once per example. Otherwise it counts once, and has no say in it;
    - `slices`, a number: a client finds its model on one of so many disjoint slices of its shard, and trains
      it on another, both of them new in every round.
    Each: `only`, the number of the model to train whatever the others' losses, or -1 to choose; or nothing.
    """
    chosen = _choose(learner, broadcast, each, shard)
    trained = learner.train(chosen.model, chosen.shard, key, broadcast["round"], chosen.within)
    return chosen.reply(trained, shard, broadcast)


def choose_and_gradient(
    learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]
) -> Reply:
    """Find the model of lowest loss among k and send its gradient; otherwise as `choose_and_train`."""
    chosen = _choose(learner, broadcast, each, shard)
    gradient = learner.gradient(chosen.model, chosen.shard, key, chosen.within)
    return chosen.reply(gradient, shard, broadcast)


class _Chosen(NamedTuple):
    """The model that a client takes, and on what it trains it."""

    cluster: Int[Array, ""]
    loss: Float[Array, ""]
    model: PyTree  # what is trained of it
    within: Within  # makes that a whole model
    shard: Shard

    def reply(self, value: PyTree, whole: Shard, broadcast: Any) -> Reply:
        return Reply({"loss": self.loss}, value, self.cluster, _weight(whole, broadcast))


def _choose(learner: Learner, broadcast: Any, each: Any, shard: Shard) -> _Chosen:
    looked_at = trained_on = shard
    if "slices" in broadcast:
        first = 2 * broadcast["round"]
        looked_at, trained_on = (shard.part(first + i, broadcast["slices"]) for i in (0, 1))
    within = _within(learner, broadcast, shard)
    losses = learner.shard_losses(broadcast["models"], looked_at, within)
    cluster = lowest(losses)
    if each is not None:
        cluster = jnp.where(each["only"] < 0, cluster, each["only"])
    own = stacked.take(broadcast["models"], cluster)
    if "frozen" not in broadcast:
        own, within = within(own), itself
    return _Chosen(cluster, losses[cluster], own, within, trained_on)


def _within(learner: Learner, broadcast: Any, shard: Shard) -> Within:
    """How a model is made of its own arrays: with the shared ones, where there are any."""
    if "shared" not in broadcast:
        return itself
    like = learner.shapes_for(shard.x)
    return lambda own: stacked.from_named({**own, **broadcast["shared"]}, like)


def weigh_and_train(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """Train each of k models as far as the client belongs to it: soft labels.

    The labels lambda minimise sum_l lambda_l F_i(theta_l) + temperature * sum_l lambda_l log lambda_l over
    the simplex: without the second term that is the model of lowest loss alone.
    Broadcast: `models`, `round`, `temperature`, and `by_examples` as for `choose_and_train`.
    """
    losses = learner.shard_losses(broadcast["models"], shard)
    known = jnp.where(jnp.isnan(losses), jnp.inf, losses)
    labels = jax.nn.softmax(-(known - known.min()) / broadcast["temperature"])

    def trained(model: PyTree, label: Float[Array, ""]) -> PyTree:
        return learner.train(model, shard, key, broadcast["round"], label=label)

    return Reply(
        report={"loss": jnp.sum(jnp.where(labels > 0, labels * losses, 0)), "labels": labels},
        value=jax.vmap(trained)(broadcast["models"], labels),
        cluster=lowest(losses),
        weight=_weight(shard, broadcast),
    )


def train(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """Train the client's own model on its shard for some rounds, all in one exchange.

    Broadcast: `rounds`, their numbers. Each: `model`, and `takes_part`, whether the client trains in a round.
    """

    def once(model: PyTree, step: tuple[Array, Array]) -> tuple[PyTree, Array]:
        number, takes_part = step
        loss = learner.shard_loss(model, shard)
        new = learner.train(model, shard, jax.random.fold_in(key, number), number)
        return jax.tree.map(lambda a, b: jnp.where(takes_part, a, b), new, model), loss

    model, losses = jax.lax.scan(once, each["model"], (broadcast["rounds"], each["takes_part"]))
    return Reply(report={"loss": losses}, value=model)


def size(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """How many examples the client has."""
    return Reply(report={"examples": shard.size})


def losses(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """The loss of each of k models on the shard. Broadcast: `models`."""
    return Reply(report={"losses": learner.shard_losses(broadcast["models"], shard)})


def evaluate(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """Loss and accuracy of one of the models on the shard. Broadcast: `models`. Each: `only`, its number."""
    model = stacked.take(broadcast["models"], each["only"])
    return Reply(
        report={
            "loss": learner.shard_loss(model, shard),
            "accuracy": learner.shard_accuracy(model, shard),
            "examples": shard.size,
        }
    )


def _weight(shard: Shard, broadcast: Any) -> Float[Array, ""] | float:
    return shard.size.astype(jnp.float32) if "by_examples" in broadcast else 1.0
