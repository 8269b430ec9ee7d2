"""All methods on some populations of clients: settings chosen, trials run, what came of it.

The released code chooses settings on test data. Here they are chosen on a part of the training data of a draw
of its own; all draws of images hold out the same images for tests, so that no choice has seen any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.algorithms import Local
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.errors import LearnerError, SettingError
from coterie.evaluate import metrics
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.papers.experiment import Arrays, Experiment, Finding, Point, Row
from coterie.papers.srfca import claims, tables
from coterie.papers.srfca.authors import METHODS
from coterie.papers.srfca.costs import cost
from coterie.papers.srfca.course import Stages, course
from coterie.papers.srfca.methods import Method, Problem
from coterie.papers.srfca.populations import POPULATIONS
from coterie.papers.srfca.tuning import GRIDS, Settings, Tried, search

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

TUNING_DRAW = 999  # trials are draws 0, 1, ...


@dataclass(frozen=True)
class Compared(Experiment):
    """Methods on populations of clients."""

    populations: tuple[str, ...]
    methods: tuple[str, ...]
    clients: int
    rounds: int  # of a method that trains in one go
    local: int  # steps of a client in a round
    hidden: int
    trials: int
    scale: str

    # -- computing ---------------------------------------------------------------------------------------

    def points(self) -> list[Point]:
        return [
            Point(f"{population} {method}", {"population": population, "method": method})
            for population in self.populations
            for method in self.methods
        ]

    @property
    def steps(self) -> int:
        return self.trials + 1

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        population, method = point.values["population"], METHODS[point.values["method"]]
        chosen, tried = self.tuned(population, method, seed)
        done(1)
        rows = []
        for trial in range(self.trials):
            rows.append(self._trial(population, method, chosen, seed * 1000 + trial))
            done(trial + 2)
        result = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        for name, value in chosen.items():
            result |= {f"{name}.chosen": np.array(value), f"{name}.tried": np.array(tried[name])}
        return result

    def tuned(self, population: str, method: Method, seed: int) -> tuple[Settings, Tried]:
        """The settings with which held-out training examples have the lowest loss, and what was tried."""
        if self.scale == "smoke":  # takes the middle of what would be tried
            chosen = {name: GRIDS[name].middle for name in method.tuned}
            return chosen, {name: [value] for name, value in chosen.items()}
        data = drawn(self, population, seed * 1000 + TUNING_DRAW)
        fit, held_out = data.train.split(0.2, seed=None)

        def loss(settings: Settings) -> float:
            algorithm = self.algorithm(population, method, settings, data)
            learner = self.learner(population, method, settings)
            try:
                found = algorithm.fit(fit, learner, seed=seed)
                value = float(found.evaluate(held_out, "train", personal=method.personal).loss)
            except (LearnerError, SettingError):  # it diverged, or no two clients are so near
                return np.inf
            return value if np.isfinite(value) else np.inf

        return search(method.tuned, loss)

    def learner(self, population: str, method: Method, settings: Settings) -> Learner:
        """What clients know how to do."""
        about = POPULATIONS[population]
        return Learner(about.model(self.hidden), about.loss, method.local(settings, self.local))

    def algorithm(self, population: str, method: Method, settings: Settings, data: Federated) -> Any:
        """The method, for these clients."""
        assert data.truth is not None
        problem = Problem(data.truth, self.rounds, POPULATIONS[population].distance)
        return method.make(problem, settings)

    def _trial(self, population: str, method: Method, settings: Settings, seed: int) -> dict[str, Any]:
        data = drawn(self, population, seed)
        assert data.test is not None and data.truth is not None
        learner = self.learner(population, method, settings)
        algorithm, stages = self.algorithm(population, method, settings, data), Stages()

        def fit(some: Any) -> Clustering:
            watching = [stages] if some is algorithm else []
            found: Clustering = some.fit(data.train, learner, seed=seed, observers=watching)
            return found

        found = fit(algorithm)
        quality = found.evaluate(data.test, "train", personal=method.personal)
        return {
            "accuracy": quality.accuracy,
            "loss": quality.loss,
            "misclustering": metrics.misclustering(found.assignment, data.truth),
            "clusters": found.k,
            **asdict(cost(found, self.local)),
            **(
                course(found, stages, fit(Local(rounds=algorithm.rounds)), data, _measure(population))
                if method.course
                else {}
            ),
        }

    def precision(self, point: Point) -> str:
        population, method = point.values["population"], METHODS[point.values["method"]]
        train = drawn(self, population, 0).train
        middle = {name: GRIDS[name].middle for name in method.tuned}
        learner = self.learner(population, method, middle).for_data(train.spec)
        return Simulation(train).with_learner(learner).precision

    # -- what came of it ---------------------------------------------------------------------------------

    def served(self, result: Arrays, population: str) -> np.ndarray:
        """How well each trial serves the clients: accuracy, or the loss of a regression."""
        return result[_measure(population)]

    def headline(self, point: Point, result: Arrays) -> str:
        return tables.headline(self, point, result)

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        return [tables.row(self, point, results[point.name]) for point in self.points()]

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        return [tables.short_row(self, point, results[point.name]) for point in self.points()]

    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        labels = {method: METHODS[method].label for method in self.methods}
        found: list[Finding] = []
        for population in self.populations:
            of = {method: results[f"{population} {method}"] for method in self.methods}
            said = POPULATIONS[population].said
            if said == "tables":
                accuracy = {method: result["accuracy"] for method, result in of.items()}
                equal = "srfca-equal" if "srfca-equal" in of else None
                found += claims.of_tables(population, accuracy, labels, of["srfca"], equal)
            elif said == "theory":
                found += claims.of_theory(population, of["srfca"])
            else:
                wrong = {method: result["misclustering"] for method, result in of.items()}
                found += claims.of_nothing(population, wrong, labels)
        if self.scale == "smoke":  # too little training to tell anything
            return [replace(finding, agrees=None) for finding in found]
        return [*found, tables.inside_the_grids(self, results)]

    def notes(self) -> list[str]:
        return tables.notes(self)

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.picture import compared_methods

        return compared_methods(self, results)


def _measure(population: str) -> str:
    return "loss" if POPULATIONS[population].regression else "accuracy"


@lru_cache(maxsize=8)
def drawn(experiment: Compared, population: str, seed: int) -> Federated:
    """The clients of a draw."""
    return POPULATIONS[population].make(experiment.clients, seed)
