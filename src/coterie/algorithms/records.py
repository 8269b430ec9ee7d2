"""Rounds, and what happens between them, as the history has them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from jaxtyping import Int

from coterie.algorithms.state import Note, Outcome
from coterie.clustering.history import START, Event, Record, RoundLog
from coterie.federation.counted import Count


def _changes(
    before: Int[np.ndarray, "restarts clients"], now: Int[np.ndarray, "restarts clients"], clusters: int
) -> tuple[list[list[list[int]]], list[list[int]]]:
    """For each restart, who moved where, and how many clients each cluster has."""
    moved = [
        np.stack([np.flatnonzero(changed), row[changed]], axis=1).tolist()
        for changed, row in zip(now != before, now, strict=True)
    ]
    return moved, [np.bincount(row[row >= 0], minlength=clusters).tolist() for row in now]


def event(
    done: int,
    note: Note,
    before: Int[np.ndarray, "restarts clients"],
    now: Int[np.ndarray, "restarts clients"],
    clusters: int,
    count: Count,
    seconds: float,
) -> Event:
    """What happened after so many rounds, given what clients were known to belong to before and after it."""
    moved, sizes = _changes(before, now, clusters)
    return Event(
        after=done,
        name=note.name,
        text=note.text,
        details=note.details,
        moved=moved,
        sizes=sizes,
        seconds=seconds,
        **asdict(count),
    )


def log(
    number: int,
    outcome: Outcome,
    before: Int[np.ndarray, "restarts clients"],
    seconds: float,
    ids: np.ndarray,
) -> RoundLog:
    """A round, given what clients were known to belong to before it."""
    moved, sizes = _changes(before, np.asarray(outcome.assignment), outcome.clusters)
    answered = np.asarray(outcome.answered)
    down, spared, up = outcome.traffic.total(answered)
    reasons = dict(outcome.failures)
    asked = np.asarray(outcome.clients)
    real = asked < len(ids)  # a place may be blank
    for client in asked[real & ~answered].tolist():
        reasons.setdefault(client, "no answer")
    missing: dict[str, list[str]] = {}
    for client, reason in sorted(reasons.items()):
        missing.setdefault(reason, []).append(str(ids[client]))
    return RoundLog(
        round=number,
        loss=[float(value) for value in outcome.loss],
        changed=[len(moves) for moves in moved],
        sizes=sizes,
        moved=moved,
        asked=int(real.sum()),
        answered=int(answered.sum()),
        bytes_down=down,
        bytes_spared=spared,
        bytes_up=up,
        seconds=seconds,
        missing=missing,
    )


def told_at(done: int, record: Record) -> bool:
    """Whether a record is that of the pause after so many rounds."""
    return isinstance(record, Event) and record.after == done and record.name != START
