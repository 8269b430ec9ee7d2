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
    asked = rounds.shape[1]
    found, needed, expected, most = [], [], [], []
    for members in buckets:
        per_device = -(-len(members) // devices)
        row_of = np.full(clients + 1, -1)
        row_of[members] = np.arange(len(members))
        rows = row_of[rounds]  # (rounds, asked); -1 where the client is in another bucket, or there is none
        device = np.where(rows >= 0, rows // per_device, -1)
        found.append((device, rows % per_device))
        needed.append(max(1, max(int((device == d).sum(1).max()) for d in range(devices))))
        expected.append(asked * len(members) / (clients * devices))
        most.append(min(asked, per_device))
    room = needed if len(rounds) >= MANY else _room(needed, expected, most)
    return [
        _table(device, row, devices, capacity) for (device, row), capacity in zip(found, room, strict=True)
    ]


def _table(
    device: np.ndarray, rows: np.ndarray, devices: int, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where clients are, device by device, each with as many places."""
    rounds, asked = rows.shape
    row = np.zeros((rounds, devices, capacity), np.int32)
    place = np.full((rounds, devices, capacity), asked, np.int32)
    for d in range(devices):
        here = device == d
        slot = np.cumsum(here, axis=1) - 1
        t, i = np.nonzero(here)
        row[t, d, slot[t, i]] = rows[t, i]
        place[t, d, slot[t, i]] = i
    return row.reshape(rounds, -1), place.reshape(rounds, -1)


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
