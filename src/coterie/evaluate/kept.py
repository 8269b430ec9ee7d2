"""What a comparison has computed, kept in a folder, so that it can go on from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie import registry, storage
from coterie.algorithms.algorithm import Algorithm
from coterie.clustering.result import FILE as CLUSTERING
from coterie.clustering.result import Clustering, load
from coterie.data.shards import Shards
from coterie.errors import RunFolderError, SettingError
from coterie.evaluate.groups import Groups
from coterie.evaluate.trials import Tried, with_smaller_steps
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner

FILE = "comparison.json"

Progress = Callable[[str], None]


class Kept:
    """What was computed, in a folder if there is one."""

    def __init__(self, folder: str | Path | None, of: dict[str, Any], progress: Progress | None) -> None:
        self._folder = None if folder is None else Path(folder)
        if folder is not None and any(None in one.values() for one in of["model"].values()):
            raise SettingError(
                "a learner with parts of your own making cannot be written down, so that nobody could tell "
                "whose results a folder holds: leave folder out."
            )
        self._tell = progress or (lambda what: None)
        self._known: dict[str, Any] = {"of": of, "tried": {}, "groups": None}
        if self._folder is None or not (self._folder / FILE).exists():
            return
        self._known = storage.read_json(self._folder / FILE)
        before = self._known.get("of", {}) if isinstance(self._known, dict) else {}
        # JSON has no tuples
        unlike = [key for key, value in json.loads(json.dumps(of)).items() if before.get(key) != value]
        if unlike:
            raise RunFolderError(
                f"{self._folder} holds another comparison (of another {unlike[0]}): choose another folder."
            )

    def tried(self, name: str, compute: Callable[[], Tried]) -> Tried:
        known = self._known["tried"]
        if name not in known:
            self._tell(f"choosing settings: {name}")
            one = compute()
            losses = [float(loss) if np.isfinite(loss) else None for loss in one.each]  # JSON has no infinity
            known[name] = {"each": losses, "groups": one.groups}
            self._write()
        each = np.array([np.inf if loss is None else loss for loss in known[name]["each"]])
        return Tried(each, known[name]["groups"])

    def groups(self, compute: Callable[[], Groups]) -> Groups:
        if self._known["groups"] is None:
            self._tell("are there groups")
            self._known["groups"] = compute().to_json()
            self._write()
        return Groups.from_json(self._known["groups"])

    def found(
        self,
        method: str,
        number: int,
        algorithm: Algorithm[Any],
        clients: Simulation,
        learner: Learner,
        seed: int,
    ) -> Clustering:
        """What a method finds."""
        path = None if self._folder is None else self._folder / method / str(number)
        if path is not None and (path / CLUSTERING).exists():
            return load(path)
        self._tell(f"{method}, seed {seed}")
        found = with_smaller_steps(lambda one: algorithm.fit(clients, one, seed=seed), learner)
        if path is not None:
            found.save(path)
        return found

    def _write(self) -> None:
        if self._folder is not None:
            storage.write_json(self._folder / FILE, self._known)


def contents(
    name: str,
    train: Shards,
    methods: Mapping[str, Algorithm[Any]],
    learners: Mapping[str, Learner],
    **numbers: int,
) -> dict[str, Any]:
    """What a comparison is of, as far as it can be written down."""
    sums = [[float(b.x.sum(dtype=float)), float(b.y.sum(dtype=float))] for b in train.buckets]
    whose = repr([train.ids.tolist(), train.sizes.tolist(), sums])
    return {
        "data": [name, storage.digest(whose.encode())],
        "methods": {m: registry.describe_algorithm(a) for m, a in methods.items()},
        "model": {m: registry.describe_learner(one) for m, one in learners.items()},
        **numbers,
    }
