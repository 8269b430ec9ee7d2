"""What happened, round by round."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, overload

import numpy as np


class Moves(Sequence[list[int]]):
    """The clients that are in another cluster than before: [position, cluster] of each.

    They may be a million: an array, which is written out only where it goes into a file.
    """

    pairs: np.ndarray  # (moves, 2)

    def __init__(self, pairs: Any) -> None:
        # as a sequence, other moves would be read pair by pair
        given = pairs.pairs if isinstance(pairs, Moves) else pairs
        self.pairs = np.asarray(given, np.int32).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self.pairs[index].tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and np.array_equal(self.pairs, Moves(other).pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.pairs.tolist())

    def apply(self, assignment: np.ndarray) -> None:
        """Move the clients."""
        assignment[self.pairs[:, 0]] = self.pairs[:, 1]


@dataclass(frozen=True)
class RoundLog:
    """One round of all the restarts that run side by side; lists have one entry per restart.

    Those of a restart that has ended hold nothing: no loss, no sizes.
    """

    round: int
    loss: list[float]  # mean training loss over the clients that answered, before their update
    changed: list[int]  # clients whose cluster is not the one they had before
    sizes: list[list[int]]  # clients per cluster, of those whose cluster is known
    moved: Sequence[Moves]  # per restart
    asked: int
    answered: int
    bytes_down: int
    bytes_up: int
    seconds: float
    missing: dict[str, list[str]] = field(default_factory=dict)  # reason: ids of clients left out for it
    bytes_spared: int = 0  # what more `bytes_down` would be, had all been sent all models: see `settle`
    losses: int = 0  # of a model on a client's examples, computed to compare models; of all restarts
    updates: int = 0  # local updates carried out by clients, of all restarts

    def __post_init__(self) -> None:
        object.__setattr__(self, "moved", [Moves(pairs) for pairs in self.moved])

    def to_line(self) -> str:
        """As one line of JSON, which knows no NaN: a loss that is none is null."""
        loss = [value if math.isfinite(value) else None for value in self.loss]
        return _line({**asdict(self), "loss": loss})

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> RoundLog:
        """The inverse of `to_line`, given what JSON makes of the line."""
        return cls(**{**content, "loss": [math.nan if value is None else value for value in content["loss"]]})


@dataclass(frozen=True)
class Event:
    """What happened between rounds: how a run began, clients that were regrouped, the last look."""

    after: int  # rounds that were done before it
    name: str  # such as "one-shot" or "split"
    text: str  # what came of it, in a sentence
    details: dict[str, Any]  # and in numbers
    moved: Sequence[Moves]  # per restart
    sizes: list[list[int]]  # per restart: clients per cluster
    asks: int  # exchanges with the clients
    bytes_down: int
    bytes_up: int
    seconds: float
    bytes_spared: int = 0
    losses: int = 0
    updates: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "moved", [Moves(pairs) for pairs in self.moved])

    def to_line(self) -> str:
        """As one line of JSON."""
        return _line(asdict(self))


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False, default=lambda m: m.pairs.tolist())


Record = RoundLog | Event
START, FINISH = "start", "finish"  # the names of what happens before anything else, and after all else
CONTEST = "contest"  # of what ends all restarts but the best; its details name that


def from_line(line: str) -> Record:
    """The round or the event that a line of a run folder tells of."""
    content = json.loads(line)
    return Event(**content) if "after" in content else RoundLog.from_content(content)


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

    `events` tells what happened between the rounds: how clusters were found, split or merged, and what it
    cost. Bytes and seconds are those of all restarts together, since these share every exchange.
    """

    def __init__(self, records: Sequence[Record], clients: int, restart: int = 0) -> None:
        self.records = list(records)  # in the order in which they happened
        self.logs = [record for record in self.records if isinstance(record, RoundLog)]
        self.events = [record for record in self.records if isinstance(record, Event)]
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
        """Training loss of every restart, shape (rounds, restarts); NaN once it has ended."""
        return np.array([log.loss for log in self.logs], float).reshape(len(self), -1 if self.logs else 0)

    def assignments(self) -> np.ndarray:
        """Every client's cluster after every round, shape (rounds, clients); -1 while it is not known.

        Clients that were regrouped after a round are shown where they went. What the last exchange finds,
        under the models that the last round ended with, is the result's `assignment`.
        """
        now = np.full(self.clients, -1)
        rows = np.empty((len(self), self.clients), int)
        done = 0
        for record in self.records:
            if isinstance(record, Event) and record.name == FINISH:
                break
            done += isinstance(record, RoundLog)
            record.moved[self.restart].apply(now)
            rows[done - 1 : done] = now
        return rows

    def total(self, name: str) -> Any:
        """The sum of a field over all that happened, such as `bytes_up`."""
        return sum(getattr(record, name, 0) for record in self.records)
