"""Clients that are asked: where among the buckets and devices each of them is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Int

MANY = 16  # rounds that are worth a program of their own


class Participants(eqx.Module):
    """Clients to ask: rows of each bucket, padded to a capacity that is the same for every round."""

    clients: Int[Any, "*rounds asked"]  # positions; the number of clients where nobody is asked
    rows: tuple[Int[Any, "*rounds rows"], ...]  # per bucket: row within its device
    place: tuple[Int[Any, "*rounds rows"], ...]  # per bucket: index among the asked; their number if unused


def placed(
    positions: Int[np.ndarray, "*rounds asked"],
    buckets: Sequence[Int[np.ndarray, " members"]],
    devices: int,
    clients: int,
) -> Participants:
    """Where the clients at these positions are, given the members of each bucket."""
    found = _rows_of(positions.reshape(-1, positions.shape[-1]), buckets, devices, clients)
    # a bucket that nobody is drawn from in any round still has a row, unused
    rows, places = (tuple(pair[i].reshape(*positions.shape[:-1], -1) for pair in found) for i in (0, 1))
    return Participants(positions.astype(np.int32), rows, places)


def _rows_of(
    rounds: np.ndarray, buckets: Sequence[np.ndarray], devices: int, clients: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each bucket: which row of which device holds each asked client, and its index among the asked."""
    # a client's part: which of the buckets' parts on devices it is in; a blank place is in none
    row_of, part_of = np.zeros(clients + 1, np.int32), np.full(clients + 1, len(buckets) * devices, np.int16)
    for b, members in enumerate(buckets):
        device, row = np.divmod(np.arange(len(members)), -(-len(members) // devices))
        row_of[members], part_of[members] = row, b * devices + device
    # part by part, in the order in which they are asked
    order = np.argsort(part_of[rounds], axis=1, kind="stable")
    rows = row_of[np.take_along_axis(rounds, order, axis=1)]
    parts = len(buckets) * devices
    count = np.stack([np.bincount(part_of[asked], minlength=parts + 1)[:parts] for asked in rounds])
    first = np.cumsum(count, axis=1) - count
    asked = rounds.shape[1]
    needed = np.maximum(count.max(axis=0).reshape(-1, devices).max(axis=1), 1).tolist()
    expected = [asked * len(members) / (clients * devices) for members in buckets]
    most = [min(asked, -(-len(members) // devices)) for members in buckets]
    room = needed if len(rounds) >= MANY else _room(needed, expected, most)
    return [
        _table(rows, order, first[:, here], count[:, here], capacity)
        for here, capacity in zip(np.arange(parts).reshape(-1, devices), room, strict=True)
    ]


def _table(
    rows: Int[np.ndarray, "rounds asked"],
    order: Int[np.ndarray, "rounds asked"],
    first: Int[np.ndarray, "rounds devices"],
    count: Int[np.ndarray, "rounds devices"],
    capacity: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Where clients of a bucket are, device by device, each with as many places."""
    rounds, asked = rows.shape
    slot = np.arange(capacity)
    at = np.minimum(first[..., None] + slot, asked - 1).reshape(rounds, -1)
    used = (slot < count[..., None]).reshape(rounds, -1)
    row = np.where(used, np.take_along_axis(rows, at, axis=1), 0)
    place = np.where(used, np.take_along_axis(order, at, axis=1), asked)
    return row.astype(np.int32), place.astype(np.int32)


def _room(needed: list[int], expected: list[float], most: list[int]) -> list[int]:
    """How many rows to provide in each bucket, so that clients drawn another time mostly need as many.

    What a bucket can expect and some standard deviations more: as many of them as one bucket needs, for all.
    So there are few combinations, each of which is a program to compile.
    """
    deviations = 1.0
    while True:
        room = [
            min(m, math.ceil(e + deviations * math.sqrt(e + 1))) for e, m in zip(expected, most, strict=True)
        ]
        if all(n <= r for n, r in zip(needed, room, strict=True)):
            return room
        deviations += 0.5
