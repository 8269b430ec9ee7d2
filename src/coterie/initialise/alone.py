"""What trains clients alone."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.errors import SettingError, diverged
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.learn.shard import Part
from coterie.learn.tasks import TrainAlone
from coterie.models import stacked


def trained_alone(
    start: PyTree,
    rounds: int,
    key: Key[Array, ""],
    *,
    clients: Int[np.ndarray, " some"] | None = None,
    takes_part: Bool[np.ndarray, "clients rounds"] | None = None,
    part: Part = None,
    least: int | None = None,
) -> Exchange[tuple[PyTree, Bool[np.ndarray, " clients"], Float[np.ndarray, "clients rounds"]]]:
    """Have clients train a model by themselves for some rounds of their local update, in one exchange.

    `takes_part` tells in which of the rounds each client trains, `part` on which part of its examples, and
    `least` how few answers will do; where none at all would, it may also be that all of them diverge.

    Returns their models, who answered with numbers, and their losses before each round.
    """
    task = TrainAlone(start, rounds, part, takes_part)
    answers = yield Ask(task, clients=clients, key=key, least=least)
    answered = np.array(answers.answered)
    # with models whose square is too large for a number nothing can be done either
    lengths = jnp.square(stacked.to_matrix(answers.value)).sum(axis=1)
    sound = answered & np.isfinite(np.asarray(lengths))
    if answered.any() and not sound.any() and least != 0:
        raise diverged("where clients trained alone")
    return answers.value, sound, np.array(answers.report.loss)


def trained_before(
    server: Server, models: PyTree, start: PyTree, rounds: int, key: Key[Array, ""], part: Part = None
) -> Exchange[tuple[PyTree, Bool[np.ndarray, " clients"]]]:
    """The models that clients have trained alone, if they are given; else they train now, from `start`.

    Returns the models, and whose are numbers.
    """
    if models is None:
        models, sound, _ = yield from trained_alone(start, rounds, key, part=part)
        return models, sound
    if stacked.count(models) != server.clients:
        raise SettingError(
            f"trained holds models of {stacked.count(models)} clients, and there are {server.clients}: give "
            "one for each, such as the models that Local found for them."
        )
    return models, np.isfinite(np.asarray(jnp.square(stacked.to_matrix(models)).sum(axis=1)))
