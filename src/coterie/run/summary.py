"""A finished run in a few rows, for the terminal, for programs, and for the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie import storage
from coterie.clustering import load
from coterie.errors import RunFolderError
from coterie.evaluate.matching import best_match, contingency
from coterie.models import stacked
from coterie.run.folder import BASELINES, EVALUATION, RunFolder


@dataclass(frozen=True)
class Row:
    """One method: how well it did, and what it cost."""

    method: str
    accuracy: float | None
    loss: float | None
    misclustering: float | None
    clusters: int
    rounds: int
    bytes_moved: int
    seconds: float


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
    folder = RunFolder(path)
    found = load(folder.path)
    result = storage.read_json(folder.path / EVALUATION)
    parts = [folder, *(RunFolder(p) for p in sorted((folder.path / BASELINES).glob("*")))]
    try:
        order, matrix = ordered_matrix(found.assignment, result["truth"])
        rows = tuple(_row(part) for part in parts if part.finished)
        members = tuple(tuple(map(str, found.ids[found.assignment == j])) for j in order)
        grouping = 1 < stacked.count(found.models) < len(found.ids)
        known = members if matrix is None and grouping else None
        return Summary(result["data"], len(found.ids), rows, order, matrix, known)
    except (AttributeError, LookupError, TypeError) as error:
        raise RunFolderError(f"the {EVALUATION} in {folder.path} is damaged: {error!r}.") from error


def ordered_matrix(
    assignment: np.ndarray, truth: list[int] | None
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]:
    """Clients by found and true group, rows ordered so that the best match lies on the diagonal.

    A cluster without clients has no row.
    """
    if truth is None:
        return tuple(np.unique(assignment[assignment >= 0]).tolist()), None
    table = contingency(assignment, np.asarray(truth))
    rows, columns = best_match(table)
    matched = rows[np.argsort(columns)]
    rest = [j for j in range(len(table)) if j not in matched]
    order = [j for j in (*matched.tolist(), *rest) if table[j].any()]
    return tuple(order), tuple(tuple(table[j].tolist()) for j in order)


def _row(folder: RunFolder) -> Row:
    found = load(folder.path)
    result = storage.read_json(folder.path / EVALUATION)
    test = result["test"] or {}
    return Row(
        method=found.algorithm["name"],
        accuracy=_number(test.get("accuracy")),
        loss=_number(test.get("loss")),
        misclustering=result["misclustering"],
        clusters=found.k,
        rounds=len(found.history),
        bytes_moved=found.history.total("bytes_up") + found.history.total("bytes_down"),
        seconds=found.history.total("seconds"),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


def human_bytes(count: int) -> str:
    """A number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:  # what would round to 1000 belongs to the next unit
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
