"""The fair comparison: equal budgets, and every method tuned alike, on validation data.

Every client takes part in every round, and takes as many steps in all whatever the method: SR-FCA and methods
that begin with clients trained alone divide them, and several starts have fewer rounds. The step size of each
method is the best of as many for each, by the loss on the last fifth of each client's training examples, in a
draw that is not among the trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from coterie.algorithms import IFCA
from coterie.algorithms.parts.clusters import contest
from coterie.data.federated import Federated
from coterie.errors import ConfigError, LearnerError, SettingError
from coterie.evaluate import metrics
from coterie.federation.simulation import Simulation
from coterie.papers.experiment import Arrays, Point
from coterie.papers.seeds import SEPARATE, Claim, Seeds
from coterie.papers.srfca.costs import cost
from coterie.papers.srfca.methods import TEXT, Method, Problem
from coterie.papers.srfca.published import NAMES
from coterie.papers.srfca.setups import Setup, clients, learner
from coterie.papers.srfca.trial import Clients, drawn, served
from coterie.papers.srfca.tuning import GRIDS, Grid, choose

TUNING_DRAW = SEPARATE - 1  # trials are draws 0, 1, ...
# of the released step size, which is large but for Adam's: that leaves networks far from trained
FACTORS = {
    "adam": (1.0, 3.0, 9.0, 27.0, 81.0),
    "sgd": (1 / 9, 1 / 3, 1.0, 3.0, 9.0),
    "triangular": (1 / 27, 1 / 9, 1 / 3, 1.0, 3.0),
}
STARTS = 5


def rounds_of_starts(rounds: int) -> int:
    """For how long several starts, of which the best goes on, take no more than one of so many rounds."""

    def taken(many: int) -> int:
        together = min(contest(IFCA.keep_best_after, many), many)
        return STARTS * together + many - together

    return max((many for many in range(1, rounds + 1) if taken(many) <= rounds), default=1)


METHODS: dict[str, Method] = {
    **{
        name: TEXT[name]
        for name in ("srfca-equal", "srfca-warm", "local", "global", "cfl", "kmeans-fedavg", "ifca")
    },
    "ifca-5": Method(
        "IFCA, 5 starts, equal budget",
        lambda p, s: IFCA(p.k, rounds=rounds_of_starts(p.rounds), n_init=STARTS),
    ),
    **{name: TEXT[name] for name in ("fedsoft", "one-shot-ifca")},
}
NOTES = (
    "equal budgets: every client takes part in every round, and takes as many steps in all with every "
    "method. SR-FCA takes a third of them alone and a third in each of two REFINEs, k-means and "
    "ONE_SHOT-IFCA a third alone, and IFCA with 5 starts so few rounds that all of them take no more.",
    "the step size of each method is the best of five, each three times the one before, by the loss on the "
    "last fifth of each client's training examples in a draw that is not among the trials; all training "
    "examples are trained on then. λ is automatic, β is 0.1, FedSoft's λ 0.1.",
)


def tuning_points(computed: Mapping[str, Mapping[str, str]], setups: Mapping[str, Setup]) -> list[Point]:
    """What is computed before the trials: each method with each step size."""
    return [
        Point(_tuning(name, rate), {**values, "rate": rate})
        for name, values in computed.items()
        for rate in _rates(setups[values["data"]])
    ]


def compute(point: Point, setup: Setup, seed: int, known: Mapping[str, Arrays]) -> Arrays:
    """A step size's loss on validation data, or a trial with the best of them."""
    data, name = point.values["data"], point.values["method"]
    if "rate" in point.values:
        return {"loss": np.array(_loss(data, setup, name, seed, point.values["rate"]))}
    rates = _rates(setup)
    losses = {rate: known.get(_tuning(f"{data} {name}", rate)) for rate in rates}
    if None in losses.values():
        raise ConfigError(
            f"{point.name!r} needs to know which step size is best: compute those points first, with --only "
            f"'{data} {name} tuning'."
        )
    grid = Grid(rates, 1.0, low=rates[0], high=rates[-1])  # as many for each method
    chosen, _ = choose(grid, lambda rate: float(losses[rate]["loss"]))  # type: ignore[index]
    here = drawn(data, setup, SEPARATE * seed + point.values["trial"])
    method, steps = METHODS[name], setup.local
    problem = _problem(setup, here.of)
    algorithm = method.make(problem, _settings(chosen))
    found = algorithm.fit(
        here.train, learner(data, setup, chosen, steps), seed=SEPARATE * seed + point.values["trial"]
    )
    costs = cost(found, steps)
    results = {
        "accuracy": served(found, here),
        "clusters": np.array(found.k),
        "rate": np.array(chosen),
        "models moved": np.array(costs.models_down + costs.models_up),
        "steps": np.array(costs.steps_taken),
        "passes": np.array(costs.forward),
    }
    if here.of.truth is not None and name not in ("local", "global"):
        wrong = metrics.misclustering(found.assignment, here.of.truth)
        results |= {"misclustering": np.array(wrong), "collapsed": np.array(wrong > 0)}
    return results


def _loss(data: str, setup: Setup, name: str, seed: int, rate: float) -> float:
    """On held-out training examples; infinite where training fails."""
    here = _validation(data, setup, SEPARATE * seed + TUNING_DRAW)
    algorithm = METHODS[name].make(_problem(setup, here.of), _settings(rate))
    try:
        found = algorithm.fit(here.train, learner(data, setup, rate, setup.local), seed=seed)
        loss = float(found.evaluate(here.test, "train").loss)
    except (LearnerError, SettingError):  # it diverged, or no two clients are so near
        return np.inf
    return loss if np.isfinite(loss) else np.inf


@lru_cache(maxsize=1)
def _validation(data: str, setup: Setup, seed: int) -> Clients:
    made = clients(data, setup, seed)
    fit, held_out = made.train.split(0.2, seed=None)
    return Clients(made, *(Simulation(shards, precision=setup.precision) for shards in (fit, held_out)))


def _problem(setup: Setup, made: Federated) -> Problem:
    return Problem(made.truth, setup.rounds, "cross_loss", clusters=setup.k)


def _settings(rate: float) -> dict[str, float]:
    return {"rate": rate, "pull": GRIDS["pull"].middle}


def inside(data: str, setup: Setup, methods: Sequence[str]) -> Claim:
    """Whether every step size that was chosen has others beside it that are worse."""
    edges = _rates(setup)[0], _rates(setup)[-1]

    def judge(*chosen: Seeds) -> tuple[str, bool | None]:
        at = [METHODS[m].label for m, rate in zip(methods, chosen, strict=True) if rate[0] in edges]
        return f"{', '.join(at) or 'none'} of {len(methods)} methods.", not at

    said = (
        f"{NAMES[data]}: (a rule of ours) no step size is chosen at the edge of what was tried; at the edge"
    )
    return Claim(said, [(f"{data} {method}", "rate") for method in methods], judge)


def _rates(setup: Setup) -> tuple[float, ...]:
    return tuple(float(f"{setup.rate * factor:.3g}") for factor in FACTORS[setup.optimiser])


def _tuning(name: str, rate: float) -> str:
    return f"{name} tuning {rate:g}"
