"""What a run folder tells of a finished run: read here, for the terminal, for programs and for the report."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from coterie import registry, storage
from coterie.clustering import Clustering, load
from coterie.clustering.result import FILE, ROUNDS
from coterie.errors import RunFolderError
from coterie.evaluate.matching import best_match, contingency
from coterie.models import stacked
from coterie.run.folder import BASELINES, EVALUATION, EXPERIMENT

Measure = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Scores:
    """How well clients are served, from `evaluation.json`: means over clients, and one number per client."""

    mean: dict[Measure, float]
    per_client: dict[Measure, dict[str, float]]  # by client id
    chosen_by: str
    own_models: bool = False  # whether clients are served by models of their own, not their clusters'

    @classmethod
    def of(cls, content: dict[str, Any] | None) -> Scores | None:
        if content is None:
            return None
        rows = content["per_client"]
        ids = [str(name) for name in rows["id"]]
        measures: tuple[Measure, ...] = ("accuracy", "loss")
        return cls(
            {m: _number(content[m]) for m in measures},
            {m: dict(zip(ids, map(_number, rows[m]), strict=True)) for m in measures},
            content["chosen_by"],
            content.get("served_by") == "own model",
        )

    @property
    def clients(self) -> int:
        return len(self.per_client["loss"])


@dataclass(frozen=True)
class Method:
    """One method that was run: what it is called, what it found, how good that is."""

    key: str  # as an experiment file calls it, such as `ifca`
    name: str  # as people do, such as `IFCA`
    clustering: Clustering
    test: Scores | None = None
    unseen: Scores | None = None
    misclustering: float | None = None
    adjusted_rand: float | None = None
    parameter_distance: float | None = None
    unseen_misclustering: float | None = None

    @property
    def updates(self) -> float:
        """Local updates that a client carried out, of all starts together, on average."""
        return float(self.clustering.history.total("updates") / len(self.clustering.ids))

    @property
    def grouping(self) -> bool:
        """Whether clients share models at all: one model per client makes no groups."""
        return stacked.count(self.clustering.models) < max(2, len(self.clustering.ids))


class Truth:
    """The true groups, and which found cluster is which of them under the best matching.

    Parameters
    ----------
    labels
        The true label of every client; any values that can be sorted.
    found
        The cluster of every client, -1 where it has none.
    """

    def __init__(self, labels: list[Any], found: Int[np.ndarray, " clients"]) -> None:
        names, self.group = np.unique(np.array(labels), return_inverse=True)
        self.names: list[str] = [str(name) for name in names]
        self.table: Int[np.ndarray, "found true"] = contingency(found, self.group)
        rows, columns = best_match(self.table)
        # where there are more clusters than groups, an empty pairing says nothing
        self.cluster_of = {int(g): int(j) for j, g in zip(rows, columns, strict=True) if self.table[j, g] > 0}
        self.unassigned: Int[np.ndarray, " true"] = np.bincount(
            self.group[found < 0], minlength=len(self.names)
        )

    @property
    def wrong(self) -> int:
        """Clients that are not in the cluster of their true group."""
        return len(self.group) - sum(int(self.table[j, g]) for g, j in self.cluster_of.items())

    @property
    def rows(self) -> list[int]:
        """The clusters that have clients: matched ones in the order of their groups, then by size."""
        matched = [self.cluster_of[g] for g in sorted(self.cluster_of)]
        sizes = self.table.sum(axis=1)
        others = [int(j) for j in np.argsort(-sizes, kind="stable") if sizes[j] and j not in matched]
        return matched + others


@dataclass(frozen=True)
class Contents:
    """A run and what it was compared with."""

    data: str
    run: Method
    baselines: list[Method]
    settings: dict[str, Any]
    labels: list[Any] | None  # the true label of every client

    @property
    def methods(self) -> list[Method]:
        return [self.run, *self.baselines]

    @cached_property
    def truth(self) -> Truth | None:
        if self.labels is None or not self.run.grouping:
            return None
        return Truth(self.labels, self.run.clustering.assignment)

    @property
    def measure(self) -> Measure:
        """Accuracy where there is one; for a regression, the loss."""
        scores = [s for m in self.methods for s in (m.test, m.unseen) if s is not None]
        return "accuracy" if any(math.isfinite(s.mean["accuracy"]) for s in scores) else "loss"

    @cached_property
    def order(self) -> Int[np.ndarray, " clients"]:
        """Clients by cluster, then true group, then the round in which they settled."""
        found = self.run.clustering.assignment
        group = np.zeros(len(found), int) if self.truth is None else self.truth.group
        return np.lexsort((settled(self.run.clustering), group, lost_last(found)))


def lost_last(assignment: Int[np.ndarray, " clients"]) -> Int[np.ndarray, " clients"]:
    """The assignment as a key to sort by: clients without a cluster come after all others."""
    return np.where(assignment < 0, np.iinfo(np.int32).max, assignment)


def settled(clustering: Clustering) -> Int[np.ndarray, " clients"]:
    """The last round in which each client changed its cluster."""
    steps = clustering.history.assignments()
    changed = steps[1:] != steps[:-1]
    rounds = np.arange(1, len(steps))[:, None]
    last: np.ndarray = np.where(changed, rounds, 0).max(axis=0, initial=0)
    return last


def read(folder: Path) -> Contents:
    """Everything about the run in a folder, its baselines included.

    Raises
    ------
    RunFolderError
        If there is no finished run, or its files are damaged.
    """
    clustering = _clustering(folder, folder)
    evaluation = _evaluation(folder)
    path = folder / EXPERIMENT
    settings: dict[str, Any] = {"algorithm": clustering.algorithm, "seed": clustering.seed}
    try:
        if path.exists():
            settings = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error
    labels = evaluation.get("truth")
    if labels is not None and len(labels) != len(clustering.ids):
        raise RunFolderError(
            f"{folder / EVALUATION} has {len(labels)} true labels for {len(clustering.ids)} clients."
        )
    data = evaluation.get("data") or settings.get("data", {}).get("source", "")
    run = _method(folder, clustering, evaluation, _key(clustering))
    return Contents(data, run, list(_baselines(folder)), settings, labels)


def _key(clustering: Clustering) -> str:
    return str(clustering.algorithm.get("name", "clustering"))


def _baselines(folder: Path) -> Iterator[Method]:
    where = folder / BASELINES
    for sub in sorted(where.iterdir()) if where.is_dir() else []:
        if sub.is_dir() and not sub.name.startswith("."):
            # a folder of another name than the algorithm's tells two settings of it apart
            yield _method(sub, _clustering(sub, folder), _evaluation(sub), sub.name)


def _clustering(folder: Path, run: Path) -> Clustering:
    has = {name: (folder / name).exists() for name in (EXPERIMENT, ROUNDS, FILE, EVALUATION)}
    begun = has[EXPERIMENT] or has[ROUNDS]
    # a clustering that was saved without a run around it has neither experiment nor evaluation
    if (begun and not has[FILE]) or (has[EXPERIMENT] and not has[EVALUATION]):
        raise RunFolderError(
            f"the run in {folder} is not finished: continue it with `coterie run --resume --out {run}`."
        )
    return load(folder)


def _evaluation(folder: Path) -> dict[str, Any]:
    """Empty for a clustering that was saved without a run around it."""
    path = folder / EVALUATION
    content: dict[str, Any] = storage.read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise RunFolderError(f"{path} is damaged: it holds no table.")
    return content


def _method(folder: Path, clustering: Clustering, evaluation: dict[str, Any], key: str) -> Method:
    try:
        return Method(
            key,
            registry.PARTS["algorithm"].get(key, key).rpartition(":")[2],
            clustering,
            Scores.of(evaluation.get("test")),
            Scores.of(evaluation.get("unseen")),
            evaluation.get("misclustering"),
            evaluation.get("adjusted_rand"),
            evaluation.get("parameter_distance"),
            evaluation.get("unseen_misclustering"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{folder / EVALUATION} is damaged: {error!r}.") from error


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def per_client(scores: Scores, measure: Measure, ids: np.ndarray) -> Float[np.ndarray, " clients"]:
    """One number per client in the order of `ids`; NaN for a client that was not evaluated."""
    known = scores.per_client[measure]
    return np.array([known.get(str(name), math.nan) for name in ids])
