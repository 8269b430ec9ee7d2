"""Asks from the host: over data that stays there, block by block, and with places that are blank."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from coterie import keys
from coterie.data.shards import Bucket, Shards
from coterie.federation.protocol import Answers, join_answers
from coterie.models import stacked

BLOCK_BYTES = 2**28


def ask(
    shards: Shards,
    positions: np.ndarray,
    own: PyTree,
    reduced: bool,
    starts: int | None,
    ask_block: Callable[[Bucket, np.ndarray, np.ndarray, PyTree], Answers],
) -> Answers:
    """Ask the clients at `positions` block by block.

    `own` is what clients alone are sent, with a leading axis of clients, and `ask_block(bucket, tokens,
    place, own)` asks the clients of a bucket that is small enough for the device;
    `place` is their index among the block, and the block's size for rows that only fill it up: all blocks of
    a bucket have the same shape, so that they share one compiled program.
    """
    index = np.full(len(shards), -1)
    index[positions] = np.arange(len(positions))
    parts, order = [], []
    for bucket in shards.buckets:
        rows = np.flatnonzero(index[bucket.clients] >= 0)
        if len(rows) == 0:
            continue
        per_client = bucket.x[0].nbytes + bucket.y[0].nbytes
        size = int(min(len(rows), max(1, BLOCK_BYTES // per_client)))
        for start in range(0, len(rows), size):
            mine = rows[start : start + size]
            filled = np.concatenate([mine, np.repeat(mine[-1:], size - len(mine))])
            place = np.concatenate([np.arange(len(mine)), np.full(size - len(mine), size)]).astype(np.int32)
            block = Bucket(bucket.x[filled], bucket.y[filled], bucket.sizes[filled], bucket.clients[filled])
            asked = index[bucket.clients[mine]]
            theirs = stacked.take(
                own, jnp.asarray(np.concatenate([asked, np.repeat(asked[-1:], size - len(mine))]))
            )
            answers = ask_block(block, keys.words(keys.tokens(shards.ids[block.clients])), place, theirs)
            parts.append(_first(answers, len(mine), positions[asked], reduced, starts))
            order.append(asked)
    back = np.argsort(np.concatenate(order))
    return join_answers(parts, reduced, starts is not None, back)


def _first(answers: Answers, count: int, clients: np.ndarray, reduced: bool, starts: int | None) -> Answers:
    """The answers of a block's real clients."""
    where = slice(count) if starts is None else (slice(None), slice(count))
    return Answers(
        clients=jnp.asarray(clients, jnp.int32),
        answered=answers.answered[where],
        report=stacked.take(answers.report, where),
        cluster=answers.cluster[where],
        weight=answers.weight[where],
        value=answers.value if reduced else stacked.take(answers.value, where),
        traffic=answers.traffic[:count],
    )


def with_blanks(
    answers: Answers, positions: np.ndarray, real: np.ndarray, reduced: bool, starts: int | None
) -> Answers:
    """The answers of the clients that were asked, in their places among blank ones."""
    index = np.maximum(np.cumsum(real) - 1, 0)  # a blank place holds what some other one holds
    axis = 0 if starts is None else 1

    def spread(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda a: jnp.take(a, index, axis), tree)

    return Answers(
        clients=jnp.asarray(positions, jnp.int32),
        answered=spread(answers.answered) & jnp.asarray(real),
        report=spread(answers.report),
        cluster=spread(answers.cluster),
        weight=spread(answers.weight),
        value=answers.value if reduced else spread(answers.value),
        traffic=answers.traffic[index].only_to(jnp.asarray(real)),
    )
