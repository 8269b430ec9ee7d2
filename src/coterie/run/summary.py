"""A finished run in a few rows, for the terminal and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.models import stacked
from coterie.run.contents import Method, read


@dataclass(frozen=True)
class Row:
    """One method: how well it did, and what it cost."""

    method: str
    accuracy: float | None
    loss: float | None
    misclustering: float | None
    clusters: int
    rounds: int
    updates: float  # local ones that a client carried out, of all starts together, on average
    bytes_moved: int
    seconds: float
    own_models: bool = False  # whether clients are served by models of their own, not their clusters'


@dataclass(frozen=True)
class Summary:
    """The run and its baselines, and the found groups against the true ones where these are known."""

    data: str
    clients: int
    rows: tuple[Row, ...]
    found: tuple[int, ...]  # cluster ids, in the order of the matrix' rows
    matrix: tuple[tuple[int, ...], ...] | None
    members: tuple[tuple[str, ...], ...] | None = None  # who is in each of them, where no truth is known

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise(path: str | Path) -> Summary:
    """Read a finished run folder."""
    contents = read(Path(path))
    found, truth = contents.run.clustering, contents.truth
    clusters = [int(j) for j in np.flatnonzero(found.sizes)] if truth is None else truth.rows
    members = None
    if truth is None and contents.run.grouping and stacked.count(found.models) > 1:
        members = tuple(tuple(map(str, found.ids[found.assignment == j])) for j in clusters)
    return Summary(
        contents.data,
        len(found.ids),
        tuple(map(_row, contents.methods)),
        tuple(clusters),
        None if truth is None else tuple(tuple(truth.table[j].tolist()) for j in clusters),
        members,
    )


def _row(method: Method) -> Row:
    history, test = method.clustering.history, method.test
    return Row(
        method=method.key,
        accuracy=None if test is None else _number(test.mean["accuracy"]),
        loss=None if test is None else _number(test.mean["loss"]),
        misclustering=method.misclustering,
        clusters=method.clustering.k,
        rounds=len(history),
        updates=method.updates,
        bytes_moved=history.total("bytes_up") + history.total("bytes_down"),
        seconds=history.total("seconds"),
        own_models=test is not None and test.own_models,
    )


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def human_bytes(count: int) -> str:
    """A number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:  # what would round to 1000 belongs to the next unit
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
