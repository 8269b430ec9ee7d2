"""Figures of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression".

Figures 1 to 3: the estimation error against the iteration, with ever more unequal clients (sections V-A to
V-C). The left panels show the two-phase system with several local updates, the right ones other methods.

There is no released code. What the text leaves open is decided here, and said in the notes: the step size,
how long clients train alone for one-shot clustering, and which second moments Phase 1 uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coterie import keys
from coterie.algorithms import FedX, Global, OneShotKMeans
from coterie.algorithms.alternating import Alternating
from coterie.algorithms.state import State
from coterie.data.federated import Federated
from coterie.data.synthetic import mixed_regression
from coterie.federation.simulation import Simulation
from coterie.initialise import MomentDescent
from coterie.learn.learner import Learner
from coterie.learn.local import SGD, LocalUpdate
from coterie.learn.proximal import Proximal
from coterie.models import Linear, stacked
from coterie.papers.convergence import distance, errors_by_round
from coterie.papers.experiment import Arrays, Experiment, Figure, Finding, Point, Row, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

NEAR = 1.05  # times the oracle's error: as good as the oracle
SCALED, NOISE = 2.0, 0.2  # true models and starts are 2 / sqrt(d) * N(0, I), the noise is 0.2 * N(0, 1)


@dataclass(frozen=True)
class Arm:
    """One curve."""

    label: str
    local: LocalUpdate
    panel: int  # 0: local updates of the two-phase system, 1: methods
    start: str  # "moments", "printed", "random", "true" or "alone"


@dataclass(frozen=True)
class Convergence(Experiment):
    """One of the figures."""

    figure: int
    title: str
    k: int
    dim: int
    sizes: tuple[int, ...]  # examples of each client
    proportions: tuple[float, ...]  # of the clusters
    rate: float
    iterations: int  # of Phase 1
    rounds: int  # of Phase 2
    alone: int  # rounds that a client trains alone for one-shot clustering
    trials: int
    scale: str

    # -- computing ---------------------------------------------------------------------------------------

    def arms(self) -> dict[str, Arm]:
        """The curves by name."""
        steps = {s: SGD(lr=self.rate, steps=s) for s in (1, 5, 10)}
        return {
            "s=1": Arm("FedAvg, s = 1", steps[1], 0, "moments"),
            "s=5": Arm("FedAvg, s = 5", steps[5], 0, "moments"),
            "s=10": Arm("FedAvg, s = 10", steps[10], 0, "moments"),
            "fedprox": Arm("FedProx", Proximal(lr=5 * self.rate), 0, "moments"),
            "oracle": Arm("oracle", steps[5], 1, "true"),
            "ifca": Arm("IFCA", steps[5], 1, "random"),
            "one-shot": Arm("one-shot clustering", steps[5], 1, "alone"),
            "fedavg": Arm("vanilla FedAvg", steps[5], 1, "random"),
            "printed": Arm("two-phase, moments as printed", steps[5], 1, "printed"),
        }

    def points(self) -> list[Point]:
        return [Point(name, {"arm": name}) for name in self.arms()]

    @property
    def steps(self) -> int:
        return self.trials

    def compute(self, point: Point, seed: int, done: Callable[[int], None]) -> Arrays:
        arm = self.arms()[point.name]
        learner = Learner(Linear(), "half_squared", arm.local).for_data(_data(self, seed)[0].train.spec)
        simulations = _simulations(self, seed)
        begun = [self._begin(arm, learner, seed, trial) for trial in range(self.trials)]
        algorithm = begun[0].algorithm
        true = jnp.stack([jnp.asarray(data.models, jnp.float32) for data in _data(self, seed)])
        after = errors_by_round(algorithm, learner, simulations, [one.state for one in begun], true)
        before = np.array([[distance(m, t) for m in one.before] for one, t in zip(begun, true, strict=True)])
        done(self.trials)
        return {"error": np.concatenate([before, np.asarray(after)], axis=1)}  # (trials, 1 + iterations)

    def _begin(self, arm: Arm, learner: Learner, seed: int, trial: int) -> _Begun:
        """The models of a trial before its rounds, and the rounds that bring it to the last iteration."""
        data = _data(self, seed)[trial]
        key = jax.random.fold_in(keys.purpose(seed, "starts"), trial)
        if arm.start in ("moments", "printed"):
            found = _phase_one(self, seed, arm.start == "printed")[trial]
            return _begun(self._fedx(self.rounds), found[-1], found, data)
        whole = self.iterations + self.rounds
        if arm.start == "true":
            models = jnp.asarray(data.models, jnp.float32)
            return _begun(self._fedx(whole), models, [models], data)
        if arm.start == "alone":
            algorithm = OneShotKMeans(self.k, alone=self.alone, rounds=whole, weight="examples")
            federation = _simulations(self, seed)[trial].with_learner(learner)
            state, _ = algorithm.grouped(federation, learner, key)
            return _Begun(algorithm, state, [stacked.to_matrix(stacked.take(state.models, 0))])
        models = SCALED / math.sqrt(self.dim) * jax.random.normal(key, (self.k, self.dim))
        if arm.label == "IFCA":
            return _begun(self._fedx(whole), models, [models], data)
        return _begun(Global(rounds=whole, weight="examples"), models[:1], [models[:1]], data)

    def _fedx(self, rounds: int) -> FedX:
        return FedX(self.k, n_init=1, rounds=rounds)

    # -- what came of it ---------------------------------------------------------------------------------

    def last(self, results: Mapping[str, Arrays], name: str) -> Float[np.ndarray, " trials"]:
        """The error after the last iteration."""
        return np.asarray(results[name]["error"][:, -1])

    def near(self, results: Mapping[str, Arrays], name: str) -> int:
        """In how many trials an arm ends as good as the oracle."""
        return int((self.last(results, name) <= NEAR * self.last(results, "oracle")).sum())

    def headline(self, point: Point, result: Arrays) -> str:
        return f"median error {np.median(result['error'][:, -1]):.4f} after the last iteration"

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for name, arm in self.arms().items():
            last, error = self.last(results, name), results[name]["error"]
            low, middle, high = np.quantile(last, (0.25, 0.5, 0.75))
            ratio = last / self.last(results, "oracle")
            rows.append(
                {
                    "method": arm.label if arm.panel else f"two-phase, {arm.label}",
                    "median error": float(middle),
                    "lower quartile": float(low),
                    "upper quartile": float(high),
                    "against the oracle (median)": float(np.median(ratio)),
                    "as good as the oracle": f"{self.near(results, name)} of {self.trials}",
                    "iterations to twice the oracle's error": self._reached(error, results),
                }
            )
        return rows

    def _reached(self, error: np.ndarray, results: Mapping[str, Arrays]) -> int | None:
        """The first iteration whose median error is at most twice the oracle's last, if there is one."""
        goal = 2 * np.median(self.last(results, "oracle"))
        below = np.flatnonzero(np.median(error, axis=0) <= goal)
        return int(below[0]) if len(below) else None

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        return [
            {
                "method": row["method"],
                "error": f"{row['median error']:.4f}",
                "/ oracle": f"{row['against the oracle (median)']:.2f}",
                "as good as it": row["as good as the oracle"],
            }
            for row in self.table(results)
        ]

    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        def times(name: str) -> float:
            return float(np.median(self.last(results, name) / self.last(results, "oracle")))

        near, trials = {name: self.near(results, name) for name in self.arms()}, self.trials
        most = math.ceil(0.95 * trials)
        reached = {name: self._reached(results[name]["error"], results) for name in ("s=1", "s=5", "s=10")}
        order = [math.inf if at is None else at for at in reached.values()]
        found = [
            Finding(
                "our method ... quickly converges to the same estimation error attainable by the oracle "
                f"algorithm (Fig. {self.figure})",
                f"with s = 5 it ends within 5 % of the oracle's error in {near['s=5']} of {trials} trials.",
                near["s=5"] >= most,
            ),
            Finding(
                "FedAvg does not converge to small errors due to lack of model personalization (Fig. 1)",
                f"its error is {times('fedavg'):.0f} times the oracle's (median).",
                near["fedavg"] == 0,
            ),
            Finding(
                "as the number of local steps s increases, FedAvg converges faster (Fig. 1)",
                "twice the oracle's error is reached after "
                + ", ".join(
                    f"{_or_never(t)} (s = {s})" for s, t in zip((1, 5, 10), reached.values(), strict=True)
                )
                + " iterations.",
                None if order[-1] == math.inf else order == sorted(order, reverse=True),
            ),
        ]
        said, agrees = {
            1: (
                "with a random initialization, IFCA gets stuck on an error floor (Fig. 1)",
                near["ifca"] < most,
            ),
            2: (
                "IFCA eventually also converges to the oracle estimation error, it still gets stuck on an "
                "error floor for a long time (Fig. 2)",
                near["ifca"] >= most,
            ),
            3: ("our method significantly outperforms ... IFCA (Fig. 3)", near["ifca"] < near["s=5"]),
        }[self.figure]
        found.append(
            Finding(
                said,
                f"it ends within 5 % of the oracle's error in {near['ifca']} of {trials} trials; its error "
                f"is {times('ifca'):.2f} times the oracle's (median).",
                agrees,
            )
        )
        well = self.figure == 1
        found.append(
            Finding(
                "the one-shot clustering algorithm performs well in this setting (Fig. 1)"
                if well
                else "one-shot clustering no longer performs as well (Fig. 2), performs poorly (Fig. 3)",
                f"it ends within 5 % of the oracle's error in {near['one-shot']} of {trials} trials; its "
                f"error is {times('one-shot'):.2f} times the oracle's (median).",
                near["one-shot"] >= most if well else near["one-shot"] < most,
            )
        )
        found.append(
            Finding(
                "Y from two data points on each client, and 3 k log k anchors (Phase 1 and section V)",
                "from a start found like that, Phase 2 ends within 5 % of the oracle's error in "
                f"{near['printed']} of {trials} trials; from one found by all pairs of a client's examples, "
                f"and more anchors, in {near['s=5']}.",
                None,
            )
        )
        if self.scale == "smoke":  # too few rounds to tell anything
            return [replace(finding, agrees=None) for finding in found]
        return found

    def notes(self) -> list[str]:
        said = {
            "small": "d and the number of clients are half of the paper's.",
            "smoke": "a fraction of the paper's size, one trial: this shows that everything runs.",
        }
        return [
            *([said[self.scale]] if self.scale in said else []),
            f"the paper does not print eta: here it is {self.rate:g} for FedAvg and {5 * self.rate:g} for "
            "FedProx.",
            "moments are over all pairs of a client's examples, not two of them; anchors are the clients "
            "with most examples, as many as by default.",
            f"for one-shot clustering a client trains alone for {self.alone} rounds of 5 steps from the same "
            "start as all others.",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.pictures import error_curves

        return error_curves(self, results)


@dataclass(frozen=True)
class _Begun:
    """A trial that is ready for its rounds."""

    algorithm: Alternating
    state: State
    before: list[Array]  # the models of the iterations so far


def _begun(algorithm: Alternating, models: Array, before: list[Array], data: Federated) -> _Begun:
    like = Learner(Linear(), "half_squared").for_data(data.train.spec).shapes(data.train.spec)
    one = jax.tree.map(lambda a: a[None], stacked.from_matrix(models, like))
    return _Begun(algorithm, algorithm.begin(one, len(data.train)), before)


@lru_cache(maxsize=2)
def _data(experiment: Convergence, seed: int) -> tuple[Federated, ...]:
    return tuple(
        mixed_regression(
            k=experiment.k,
            clients=len(experiment.sizes),
            examples=experiment.sizes,
            dim=experiment.dim,
            noise=NOISE,
            scale=SCALED,
            proportions=experiment.proportions,
            seed=seed * 1000 + trial,
        )
        for trial in range(experiment.trials)
    )


@lru_cache(maxsize=2)
def _simulations(experiment: Convergence, seed: int) -> tuple[Simulation, ...]:
    batch: Any = "auto" if jax.default_backend() == "cpu" else len(experiment.sizes)
    return tuple(Simulation(data.train, batch=batch, precision="float32") for data in _data(experiment, seed))


@lru_cache(maxsize=4)
def _phase_one(experiment: Convergence, seed: int, printed: bool) -> tuple[list[Array], ...]:
    """The k models of every trial at the start and after each iteration of Phase 1."""
    settings = MomentDescent(iterations=experiment.iterations, scale=SCALED)
    if printed:
        anchors = math.ceil(3 * experiment.k * math.log(experiment.k))
        # as accurate as the direct decomposition that section V uses instead of Algorithm 3
        settings = replace(settings, estimator="two", anchors=anchors, subspace_iterations=10, warm=False)
    found = []
    for trial, (simulation, data) in enumerate(
        zip(_simulations(experiment, seed), _data(experiment, seed), strict=True)
    ):
        learner = Learner(Linear(), "half_squared").for_data(data.train.spec)
        cells = keys.grid(jax.random.fold_in(keys.purpose(seed, "anchors"), trial), 1, experiment.k)
        trace = settings.trace(simulation.with_learner(learner), learner, cells)
        # before the first step nobody has answered, and all anchors are in one place
        first = stacked.to_matrix(stacked.take(trace[0].models, 0))[: experiment.k]
        later = [stacked.to_matrix(stacked.take(now.centres(experiment.k), 0)) for now in trace[1:]]
        found.append([first, *later])
    return tuple(found)


def _or_never(iteration: int | None) -> str:
    return "never" if iteration is None else str(iteration)


# -- the figures -----------------------------------------------------------------------------------------

EQUAL, UNEQUAL = (1 / 3, 1 / 3, 1 / 3), (0.2, 0.3, 0.5)
LABELS = {
    1: "balanced local data and balanced cluster partition",
    2: "unbalanced local data and balanced cluster partition",
    3: "unbalanced local data and unbalanced cluster partition",
}


def _figure(number: int, scale: Scale, preset: str) -> Convergence:
    smaller = {"paper": 1, "small": 2, "smoke": 5}[scale]
    trials, rounds, alone = {"paper": (3, 400, 50), "small": (3, 400, 50), "smoke": (1, 30, 10)}[scale]
    few, many = 10, 50
    sizes = (many,) * (200 // smaller) if number == 1 else (few,) * (900 // smaller) + (many,) * 20
    return Convergence(
        figure=number,
        title=LABELS[number],
        k=3,
        dim=100 // smaller,
        sizes=sizes,
        proportions=UNEQUAL if number == 3 else EQUAL,
        rate=0.05,
        iterations=5,
        rounds=rounds,
        alone=alone,
        trials=trials,
        scale=scale,
    )


FIGURES: tuple[Figure, ...] = tuple(
    Figure(
        f"mixed-regression/fig{number}",
        f"Mixed regression, Figure {number}: error against iteration, {LABELS[number]}",
        partial(_figure, number),
        presets=("text",),
    )
    for number in LABELS
)
