"""What a client can be asked.

A task is a pure function `task(learner, broadcast, each, shard, key) -> Reply` of one client's data: what
everybody was sent, what this client alone was sent, its shard, and a key of its own. It knows nothing about
other clients, batching, devices or messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from coterie import keys
from coterie.learn.learner import Learner
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

    Broadcast: `models` (k stacked), `round`, and `by_examples` where a client counts once per example;
    otherwise it counts once, and has no say in it.
    """
    losses = learner.shard_losses(broadcast["models"], shard)
    cluster = lowest(losses)
    model = learner.train(stacked.take(broadcast["models"], cluster), shard, key, broadcast["round"])
    return Reply(
        report={"loss": losses[cluster]},
        value=model,
        cluster=cluster,
        weight=_weight(shard, broadcast),
    )


def choose_and_gradient(
    learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]
) -> Reply:
    """Find the model of lowest loss among k and send its gradient. Broadcast: as for `choose_and_train`."""
    losses = learner.shard_losses(broadcast["models"], shard)
    cluster = lowest(losses)
    return Reply(
        report={"loss": losses[cluster]},
        value=learner.gradient(stacked.take(broadcast["models"], cluster), shard, key),
        cluster=cluster,
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


def losses(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """The loss of each of k models on the shard. Broadcast: `models`."""
    return Reply(report={"losses": learner.shard_losses(broadcast["models"], shard)})


def evaluate(
    learner: Learner, broadcast: Any, each: Int[Array, ""], shard: Shard, key: Key[Array, ""]
) -> Reply:
    """Loss and accuracy of model number `each` on the shard. Broadcast: `models`."""
    model = stacked.take(broadcast["models"], each)
    return Reply(
        report={
            "loss": learner.shard_loss(model, shard),
            "accuracy": learner.shard_accuracy(model, shard),
            "examples": shard.size,
        }
    )


def _weight(shard: Shard, broadcast: Any) -> Float[Array, ""] | float:
    return shard.size.astype(jnp.float32) if "by_examples" in broadcast else 1.0
