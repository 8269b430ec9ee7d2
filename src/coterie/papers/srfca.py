"""Tables and Figure 3 of Vardhan, Ghosh and Mazumdar, "An Improved Federated Clustering Algorithm ...".

All methods on clients with known clusters: accuracy (Table 2), misclustering (Table 3), what they cost
(Table 1), SR-FCA's accuracy step by step (Table 5), and the distances after ONE_SHOT (Figure 3).

The released code gives methods different budgets and tunes them on test data. Here every method may take as
many local steps per client, and its step size is chosen on examples that are taken from the training data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from coterie import keys
from coterie.algorithms import CFL, IFCA, SRFCA, FedSoft, Global, Local, OneShotKMeans, Oracle
from coterie.algorithms.observer import Unobserved
from coterie.algorithms.rounds import RoundAlgorithm
from coterie.algorithms.srfca import Refined
from coterie.algorithms.state import State
from coterie.clustering.history import Event, Record
from coterie.clustering.result import Clustering, Evaluation
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.errors import LearnerError
from coterie.evaluate import metrics
from coterie.federation.protocol import Federation
from coterie.federation.simulation import Simulation
from coterie.initialise import OneShot
from coterie.initialise.one_shot import trained_alone
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import MLP, Linear, stacked
from coterie.papers.claims import METHODS, claims
from coterie.papers.costs import cost
from coterie.papers.experiment import Arrays, Experiment, Figure, Finding, Point, Row, Scale
from coterie.papers.populations import POPULATIONS, parted

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

CLAIMED = {  # accuracy in per cent, Table 2; misclustering, Table 3
    "rotated": {"srfca": (91.66, 0.0), "local": (85.55, None), "global": (80.88, None), "cfl": (80.47, 0.14)}
    | {"one-shot-kmeans": (10.35, 0.28), "ifca": (91.80, 0.0)},
    "inverted": {"srfca": (92.03, 0.0), "local": (76.52, None), "global": (88.61, None), "cfl": (88.30, 0.08)}
    | {"one-shot-kmeans": (10.56, 0.36), "ifca": (91.55, 0.0)},
}


@dataclass(frozen=True)
class Compared(Experiment):
    """All methods on some populations of clients."""

    populations: tuple[str, ...]
    clients: int
    rounds: int  # of a method that trains in one go
    local: int  # steps of a client in a round
    rates: tuple[float, ...]  # to choose the step size from
    hidden: int
    trials: int
    scale: str

    # -- computing ---------------------------------------------------------------------------------------

    def points(self) -> list[Point]:
        return [
            Point(f"{population} {method}", {"population": population, "method": method})
            for population in self.populations
            for method in METHODS
        ]

    @property
    def steps(self) -> int:
        return self.trials + 1

    def compute(self, point: Point, seed: int, done: Callable[[int], None]) -> Arrays:
        population, method = point.values["population"], point.values["method"]
        rate = self._rate(population, method, seed)
        done(1)
        rows = []
        for trial in range(self.trials):
            rows.append(self._trial(population, method, rate, seed * 1000 + trial))
            done(trial + 2)
        result = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return {**result, "rate": np.array(rate)}

    def _rate(self, population: str, method: str, seed: int) -> float:
        """The step size that serves best on examples held out of the training data of another draw."""
        data = _data(self, population, seed * 1000 + 999)
        fit, held_out = parted(data.train)
        algorithm = self.algorithm(method, replace(data, train=fit, test=held_out))
        served = []
        for rate in self.rates:
            try:
                found = algorithm.fit(fit, self.learner(population, method, rate), seed=seed)
                served.append(-_served(found, held_out, method).loss)
            except LearnerError:  # it diverged
                served.append(-np.inf)
        return self.rates[int(np.argmax(served))]

    def learner(self, population: str, method: str, rate: float) -> Learner:
        """What clients do: the same local update for all methods."""
        local = SGD(lr=rate, steps=self.local, proximal=0.1 if method == "fedprox" else 0.0)
        if POPULATIONS[population].regression:
            return Learner(Linear(), "squared", local)
        return Learner(MLP(hidden=(self.hidden,)), local=local)

    def algorithm(self, method: str, data: Federated) -> RoundAlgorithm:
        """A method that takes as many local steps per client as all others do."""
        assert data.truth is not None
        k, third = int(data.truth.max()) + 1, max(1, self.rounds // 3)
        distance = "l2" if data.train.spec.classes is None else "cross_loss"
        methods: dict[str, Callable[[], RoundAlgorithm]] = {
            # a third of the steps alone, and a third in each REFINE
            "srfca": lambda: SRFCA(rounds=third, refines=2, distance=distance),
            "srfca-warm": lambda: SRFCA(rounds=third, refines=2, distance=distance, warm=True),
            "srfca-long": lambda: SRFCA(rounds=self.rounds, refines=2, distance=distance),
            "local": lambda: Local(rounds=self.rounds),
            "global": lambda: Global(rounds=self.rounds),
            "fedprox": lambda: Global(rounds=self.rounds),
            "ifca": lambda: IFCA(k, rounds=self.rounds, n_init=1),
            "ifca-5": lambda: IFCA(k, rounds=self.rounds, n_init=5),
            "one-shot-ifca": lambda: IFCA(k, rounds=self.rounds - third, n_init=1, init=OneShot(third)),
            "one-shot-kmeans": lambda: OneShotKMeans(k, rounds=self.rounds - third, alone=third),
            "cfl": lambda: CFL(rounds=self.rounds),
            "fedsoft": lambda: FedSoft(k, rounds=self.rounds, select=None),
            "fedsoft-own": lambda: FedSoft(k, rounds=self.rounds, select=None),
            "oracle": lambda: Oracle(data.truth, rounds=self.rounds),
        }
        return methods[method]()

    def _trial(self, population: str, method: str, rate: float, seed: int) -> dict[str, Any]:
        data = _data(self, population, seed)
        assert data.test is not None and data.truth is not None
        algorithm, learner = self.algorithm(method, data), self.learner(population, method, rate)
        pauses = Pauses()
        found = algorithm.fit(data.train, learner, seed=seed, observer=pauses)
        quality = _served(found, data.test, method)
        row: dict[str, Any] = {
            "accuracy": quality.accuracy,
            "loss": quality.loss,
            "misclustering": metrics.misclustering(found.assignment, data.truth),
            "clusters": found.k,
            **asdict(cost(found, algorithm, self.local)),
        }
        if isinstance(algorithm, SRFCA):
            row |= _course(found, algorithm, pauses, data, seed)
        return row

    def precision(self, point: Point) -> str:
        population, method = point.values["population"], point.values["method"]
        train = _data(self, population, 0).train
        learner = self.learner(population, method, self.rates[0]).for_data(train.spec)
        return Simulation(train).with_learner(learner).precision

    # -- what came of it ---------------------------------------------------------------------------------

    def served(self, result: Arrays, population: str) -> np.ndarray:
        """How well each trial serves the clients: accuracy, or the loss of a regression."""
        return result["loss" if POPULATIONS[population].regression else "accuracy"]

    def headline(self, point: Point, result: Arrays) -> str:
        served = self.served(result, point.values["population"])
        said = _mean(served, POPULATIONS[point.values["population"]].regression)
        if point.values["method"] != "local":
            said += f", {result['misclustering'].mean():.1%} misclustered"
        return said

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for point in self.points():
            population, method = point.values["population"], point.values["method"]
            result = results[point.name]
            served, published = self.served(result, population), CLAIMED.get(population, {}).get(method)
            row = {
                "clients": population,
                "method": METHODS[method],
                "measure": "test loss" if POPULATIONS[population].regression else "test accuracy",
                "mean": float(served.mean()),
                "standard deviation": float(served.std()),
                "paper (MNIST)": None if published is None else published[0] / 100,
                "misclustering": None if method == "local" else float(result["misclustering"].mean()),
                "paper's misclustering": None if published is None else published[1],
                "clusters": _range(result["clusters"]),
                "step size": float(result["rate"]),
            }
            for name in ("models_down", "models_up", "forward", "steps_taken"):
                row[name.replace("_", " ")] = float(result[name].mean())
            row["bytes"] = float((result["bytes_down"] + result["bytes_up"]).mean())
            rows.append(row | {"by Table 1": self._by_formula(method, population, results)})
        return rows

    def _by_formula(self, method: str, population: str, results: Mapping[str, Arrays]) -> str | None:
        """What Table 1 says of communication, training steps and forward passes, with our numbers put in.

        Its orders of magnitude count one way, and leave ONE_SHOT out: that takes m models more, and m * m
        with cross losses.
        """
        m, t, e = self.clients, self.rounds, self.local
        if method == "ifca":
            data = _data(self, population, 0)
            assert data.truth is not None
            k = int(data.truth.max()) + 1
            return f"{m * t * k:,} models, {m * t * e:,} steps, {m * t * k:,} passes"
        if method.startswith("srfca"):
            k = int(np.median(results[f"{population} {method}"]["clusters"]))
            t = self.rounds if method == "srfca-long" else max(1, self.rounds // 3)
            return f"{m * t * 2 + m * k * 2:,} models, {m * t * e * 2:,} steps, {m * k * 2:,} passes"
        return None

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for point in self.points():
            population, method = point.values["population"], point.values["method"]
            result = results[point.name]
            wrong = "–" if method == "local" else f"{result['misclustering'].mean():.1%}"
            rows.append(
                {
                    "clients": population,
                    "method": METHODS[method],
                    "served": _mean(self.served(result, population), POPULATIONS[population].regression),
                    "wrong": wrong,
                    "clusters": _range(result["clusters"]),
                    "models moved": f"{(result['models_down'] + result['models_up']).mean():,.0f}",
                }
            )
        return rows

    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        found: list[Finding] = []
        for population in self.populations:
            served = {m: self.served(results[f"{population} {m}"], population) for m in METHODS}
            regression = POPULATIONS[population].regression
            found += claims(population, served, results[f"{population} srfca"], regression)
        if self.scale == "smoke":  # too little training to tell anything
            return [replace(finding, agrees=None) for finding in found]
        return found

    def notes(self) -> list[str]:
        return [
            "every method may take as many local steps per client: SR-FCA spends a third alone and a third "
            "in each REFINE, for which it starts afresh (warm: from the models it has). Two rows take more: "
            "IFCA, best of 5, and SR-FCA, 3 x steps, as in the paper, where ONE_SHOT and each REFINE take "
            "as many steps as other methods in all.",
            "FedSoft is measured by the model of the cluster to which most of a client belongs, and by the "
            "clients' own models.",
            f"the step size of each method is one of {', '.join(f'{rate:g}' for rate in self.rates)}, chosen "
            "by the loss on a fifth of the training examples of another draw, never on test examples.",
            "IFCA, ONE_SHOT-IFCA, one-shot k-means and FedSoft are told the true number of clusters; SR-FCA "
            "and CFL are not. SR-FCA's threshold is chosen automatically.",
            *(POPULATIONS[population].note for population in self.populations),
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.pictures import compared_methods

        return compared_methods(self, results)


def _served(found: Clustering, clients: Shards, method: str) -> Evaluation:
    return found.evaluate(clients, "train", personal=method == "fedsoft-own")


class Pauses(Unobserved):
    """Remembers the state after each pause."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
        if any(isinstance(record, Event) for record in records):
            self.states.append(jax.device_get(state))


def _course(
    found: Clustering, algorithm: SRFCA, pauses: Pauses, data: Federated, seed: int
) -> dict[str, Any]:
    """What SR-FCA had after ONE_SHOT, when each client has the model it trained alone, and each REFINE."""
    assert data.test is not None and data.truth is not None
    first = pauses.states[0]
    assert isinstance(first, Refined)
    clients = Simulation(data.train).with_learner(found.learner)
    start = jax.tree.map(lambda a: jnp.asarray(a[0]), first.first)
    alone, _ = trained_alone(clients, found.learner, start, algorithm.rounds, keys.purpose(seed, "alone"))
    everybody = np.arange(len(data.train), dtype=np.int32)
    own = replace(found, assignment=everybody, models=stacked.take(alone, (slice(None), 0)))
    served, wrong = [own.evaluate(data.test, "train").accuracy], []
    for number, state in enumerate(pauses.states):
        labels = np.asarray(state.assignment[0])
        wrong.append(metrics.misclustering(labels, data.truth))
        if number:
            now = replace(found, assignment=labels, models=stacked.take(state.models, 0))
            served.append(now.evaluate(data.test, "train").accuracy)
    shot = found.history.events[0].details
    return {
        "course": np.array(served),
        "wrong": np.array(wrong),
        "threshold": shot["threshold"],
        "gap": shot["gap"] is not None,
        "edges": np.array(shot["histogram"]["edges"]),
        "counts": np.array(shot["histogram"]["counts"]),
    }


def _mean(values: np.ndarray, regression: bool) -> str:
    form = ".4f" if regression else ".2%"
    return f"{values.mean():{form}}±{values.std():{form}}"


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


@lru_cache(maxsize=8)
def _data(experiment: Compared, population: str, seed: int) -> Federated:
    return POPULATIONS[population].make(experiment.clients, seed)


def _compared(populations: tuple[str, ...], scale: Scale, preset: str) -> Compared:
    clients, rounds, trials = {"paper": (100, 150, 5), "small": (40, 90, 5), "smoke": (8, 6, 1)}[scale]
    if preset == "authors":
        populations = ("released",)
        clients, rounds, trials = {"paper": (50, 168, 5), "small": (50, 90, 3), "smoke": (8, 6, 1)}[scale]
    rates: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    if preset == "authors":
        rates = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
    return Compared(
        populations=populations,
        clients=clients,
        rounds=rounds,
        local=5,
        rates=rates[1:2] if scale == "smoke" else rates,
        hidden=8 if scale == "smoke" else 64,
        trials=trials,
        scale=scale,
    )


FIGURES: tuple[Figure, ...] = (
    Figure(
        "srfca/digits",
        "SR-FCA, Tables 1, 2, 3 and 5 and Figure 3: all methods on rotated and inverted digits",
        partial(_compared, ("rotated", "inverted")),
        presets=("text",),
    ),
    Figure(
        "srfca/synthetic",
        "SR-FCA, section 4: all methods on mixtures of regressions with equal and unequal clients",
        partial(_compared, ("equal", "spread")),
    ),
)
