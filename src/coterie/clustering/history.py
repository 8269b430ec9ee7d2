"""What happened, round by round."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

import numpy as np


@dataclass(frozen=True)
class RoundLog:
    """One round of all the restarts that run side by side; lists have one entry per restart."""

    round: int
    loss: list[float]  # mean training loss over the clients that answered, before their update
    changed: list[int]  # clients whose cluster is not the one they had before
    sizes: list[list[int]]  # clients per cluster, of those whose cluster is known
    moved: list[list[list[int]]]  # [client position, cluster] of every client that changed
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    seconds: float
    missing: dict[str, list[str]] = field(default_factory=dict)  # reason: ids of clients left out for it
    bytes_spared: int = 0  # what more `bytes_down` would be, had all been sent all models: see `settle`

    def to_line(self) -> str:
        """As one line of JSON, which knows no NaN: a loss that is none is null."""
        loss = [value if math.isfinite(value) else None for value in self.loss]
        return json.dumps({**asdict(self), "loss": loss}, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> RoundLog:
        content = json.loads(line)
        return cls(**{**content, "loss": [math.nan if value is None else value for value in content["loss"]]})


@dataclass(frozen=True)
class Round:
    """One round of the run that was kept."""

    round: int
    loss: float
    changed: int
    sizes: tuple[int, ...]
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    seconds: float
    missing: dict[str, tuple[str, ...]]  # why clients that were asked were left out: reason, ids
    bytes_spared: int  # what more would have been sent down, had all been sent all models


class History(Sequence[Round]):
    """One record per round of the restart that was kept; `restarts` tells of the others.

    Bytes and seconds are those of all restarts together, since these share every exchange.
    """

    def __init__(self, logs: Sequence[RoundLog], clients: int, restart: int = 0) -> None:
        self.logs = list(logs)
        self.clients = clients
        self.restart = restart

    def __len__(self) -> int:
        return len(self.logs)

    @overload
    def __getitem__(self, index: int) -> Round: ...

    @overload
    def __getitem__(self, index: slice) -> list[Round]: ...

    def __getitem__(self, index: int | slice) -> Round | list[Round]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        log, r = self.logs[index], self.restart
        return Round(
            log.round,
            log.loss[r],
            log.changed[r],
            tuple(log.sizes[r]),
            log.asked,
            log.answered,
            log.bytes_down,
            log.bytes_up,
            log.seconds,
            {reason: tuple(clients) for reason, clients in log.missing.items()},
            log.bytes_spared,
        )

    @property
    def restarts(self) -> np.ndarray:
        """Training loss of every restart, shape (rounds, restarts)."""
        return np.array([log.loss for log in self.logs], float).reshape(len(self), -1 if self.logs else 0)

    def assignments(self) -> np.ndarray:
        """Every client's cluster after every round, shape (rounds, clients); -1 while it is not known."""
        now = np.full(self.clients, -1)
        rows = np.empty((len(self.logs), self.clients), int)
        for t, log in enumerate(self.logs):
            for client, cluster in log.moved[self.restart]:
                now[client] = cluster
            rows[t] = now
        return rows

    def total(self, name: str) -> Any:
        """The sum of a field over all rounds, such as `bytes_up`."""
        return sum(getattr(log, name) for log in self.logs)
