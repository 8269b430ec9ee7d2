"""Asks from the host: over data that stays there, block by block, and with places that are blank.

Blocks are read and put on the device by threads of their own while those before them are computed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from coterie.data.shards import Bucket, Shards
from coterie.federation.protocol import Answers, join_answers
from coterie.models import stacked

BLOCK_BYTES = 2**28
AHEAD = 2  # blocks that are on their way to the device

Item = TypeVar("Item")
Made = TypeVar("Made")


class Block(NamedTuple):
    """Some rows of a bucket, which are on the device together."""

    bucket: Bucket
    rows: slice | Int[np.ndarray, " size"]
    clients: Int[np.ndarray, " size"]  # positions
    new: slice  # those that are asked in this block; others only fill it up

    @property
    def place(self) -> Int[np.ndarray, " size"]:
        """The index of each client in the block; their number for those that only fill it up."""
        size = len(self.clients)
        place = np.full(size, size, np.int32)
        place[self.new] = np.arange(size, dtype=np.int32)[self.new]
        return place

    def read(self) -> Bucket:
        """What the clients hold: of no others is anything read."""
        at = self.bucket
        return Bucket(at.x[self.rows], at.y[self.rows], at.sizes[self.rows], self.clients)


def ask(
    shards: Shards,
    positions: np.ndarray,
    own: PyTree,
    reduced: bool,
    starts: int | None,
    put: Callable[[Bucket, np.ndarray], Any],
    ask_block: Callable[[Any, PyTree], Answers],
) -> Answers:
    """Ask the clients at `positions` block by block.

    `own` is what clients alone are sent, with a leading axis of clients. `put(bucket, place)` puts the
    clients of a block on the device, where `place` is the index of each, and their number for those that only
    fill it up; `ask_block(what was put, own)` asks them.
    """
    index = np.full(len(shards), -1)
    index[positions] = np.arange(len(positions))
    blocks = [block for bucket in shards.buckets for block in _blocks(bucket, index[bucket.clients] >= 0)]
    parts: list[Answers] = []
    for block, rows in zip(blocks, _ahead(lambda b: put(b.read(), b.place), blocks), strict=True):
        if len(parts) > 1:
            jax.block_until_ready(parts[-2])  # else all blocks would be on the device before one is computed
        asked = index[block.clients]
        answers = ask_block(rows, stacked.take(own, jnp.asarray(asked)))
        parts.append(_some(answers, block.new, block.clients[block.new], reduced, starts))
    order = np.concatenate([index[block.clients[block.new]] for block in blocks])
    return join_answers(parts, reduced, starts is not None, np.argsort(order))


def _blocks(bucket: Bucket, asked: np.ndarray) -> Iterator[Block]:
    """Blocks of equal size, small enough for the device, with all that are asked: they share a program."""
    rows = np.flatnonzero(asked)
    if len(rows) == 0:
        return
    each = sum(math.prod(a.shape[1:]) * a.dtype.itemsize for a in (bucket.x, bucket.y))
    count = math.ceil(len(rows) / max(1, BLOCK_BYTES // each))
    size = math.ceil(len(rows) / count)
    if len(rows) < len(asked):
        # others are drawn another time, and about as many: they should find the same program
        size = min(len(asked), math.ceil(2 ** (math.ceil(4 * math.log2(size)) / 4)))
    for first in range(0, len(rows), size):
        # the last block begins early enough to be as large; what is too few for one is filled up
        start = max(0, min(first, len(rows) - size))
        mine = rows[np.minimum(np.arange(start, start + size), len(rows) - 1)]
        # a view, which is copied to the device and nowhere else
        in_a_row = bool((np.diff(mine) == 1).all())
        new = slice(first - start, min(first + size, len(rows)) - start)
        yield Block(bucket, slice(mine[0], mine[-1] + 1) if in_a_row else mine, bucket.clients[mine], new)


def _ahead(make: Callable[[Item], Made], items: Sequence[Item]) -> Iterator[Made]:
    """What is made of each item, in order, the next ones meanwhile in threads."""
    with ThreadPoolExecutor(AHEAD) as threads:
        begun: deque[Future[Made]] = deque()
        for item in items:
            begun.append(threads.submit(make, item))
            if len(begun) > AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def _some(answers: Answers, which: slice, clients: np.ndarray, reduced: bool, starts: int | None) -> Answers:
    """The answers of those clients of a block that are asked in it."""
    where = which if starts is None else (slice(None), which)
    return Answers(
        clients=jnp.asarray(clients, jnp.int32),
        answered=answers.answered[where],
        report=stacked.take(answers.report, where),
        cluster=answers.cluster[where],
        weight=answers.weight[where],
        value=answers.value if reduced else stacked.take(answers.value, where),
        traffic=answers.traffic[which],
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
