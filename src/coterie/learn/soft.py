"""What a client of a soft clustering can be asked: see `coterie.learn.tasks`.

It belongs to every cluster to some degree, and trains one model of its own that all of them draw to
themselves.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from coterie.learn.learner import Learner
from coterie.learn.local import Pull
from coterie.learn.shard import Shard
from coterie.learn.tasks import Reply, lowest
from coterie.models import stacked


def count_nearest(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """For how many examples each of k models has the lowest loss: the first in a tie, never a NaN.

    Broadcast: `models`. The mean loss of each, over all examples, is reported as well.
    """
    losses = jax.vmap(lambda model: learner.per_example(model, shard.x, shard.y))(broadcast["models"])
    nearest = lowest(losses.T)
    member = (nearest == jnp.arange(len(losses))[:, None]) & shard.mask
    return Reply(report={"counts": member.sum(axis=1), "losses": jax.vmap(shard.mean)(losses)})


def train_between(learner: Learner, broadcast: Any, each: Any, shard: Shard, key: Key[Array, ""]) -> Reply:
    """Train the client's own model on its shard, while k models draw it to themselves.

    It makes F_i(w) + sum_s pulls_s / 2 * ||w - models_s||^2 small, by the local update rule.
    Broadcast: `models` and `round`. Each: `model`, where it starts, and `pulls`, a number for each model.
    """
    # sum_s p_s ||w - c_s||^2 = P ||w - c||^2 + const with P = sum_s p_s and c = sum_s p_s c_s / P
    strength = each["pulls"].sum()
    share = each["pulls"] / jnp.where(strength > 0, strength, 1)
    anchor = stacked.take(stacked.weighted(broadcast["models"], share[:, None]), 0)
    loss = learner.shard_loss(each["model"], shard)
    model = learner.train(each["model"], shard, key, broadcast["round"], pull=Pull(anchor, strength))
    return Reply(report={"loss": loss}, value=model)
