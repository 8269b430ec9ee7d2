"""New examples in every round: the assumption of the theory in section 5 of the IFCA paper."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.learn.tasks import CountExamples


def parts_of(round: Int[Array, ""], rounds: int) -> dict[str, Int[Array, "2"]]:
    """On which parts of its shard a client finds its cluster in a round, and trains: all of them disjoint."""
    return {
        name: jnp.stack([2 * round + i, jnp.asarray(2 * rounds)])
        for i, name in enumerate(("find_on", "train_on"))
    }


def check_sizes(server: Server, needed: int, what_for: str) -> Exchange[None]:
    """Refuse clients that have too few examples."""
    answers = yield Ask(CountExamples())
    sizes = np.asarray(answers.report.examples)
    few = np.flatnonzero(np.asarray(answers.answered) & (sizes < needed))
    if len(few):
        raise SettingError(
            f"resample needs {what_for} of each client, {needed} in all; "
            f"client {server.ids[few[0]]} has {int(sizes[few[0]])}."
        )
