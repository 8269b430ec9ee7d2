"""Figures 1 to 3: the error against the iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from coterie.papers.experiment import Arrays, Experiment, Figure, Finding, Point, Row, Scale
from coterie.papers.mixed_regression.claims import EQUAL, claims
from coterie.papers.mixed_regression.measures import Curves
from coterie.papers.mixed_regression.methods import Arm, Plan, arms, measured
from coterie.papers.mixed_regression.problem import TITLES, Problem, problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# what claims compare with the figure before
BEFORE = ("s=1", "s=5", "s=10", "fedprox", "oracle", "one-shot")
RULE = (
    "claims: medians over the trials with 95 % confidence intervals, or how often something happens; in "
    "square brackets, where the whole interval has to lie for the claim to hold. An interval outside of that "
    "disagrees, one across its end decides nothing, and fewer than six trials have none."
)
ETA = "the paper does not print eta: here it is {rate:g}"
SIZES = {
    "small": "d and the number of clients are half of the paper's.",
    "smoke": "a fraction of the paper's size, one trial: this shows that everything runs.",
}


@dataclass(frozen=True)
class Convergence(Plan, Experiment):
    """One of the figures."""

    before: Problem | None  # the clients of the figure before, with which claims compare
    scale: str

    def points(self) -> list[Point]:
        own = [Point(name, {"arm": name}) for name in arms(self)]
        if self.before is None:
            return own
        return own + [Point(name + self._of, {"arm": name, "before": True}) for name in BEFORE]

    @property
    def _of(self) -> str:
        return f" of figure {self.problem.figure - 1}"

    @property
    def steps(self) -> int:
        return self.trials

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        clients = self.before if "before" in point.values else self.problem
        assert clients is not None
        plan = Plan(clients, self.rate, self.iterations, self.rounds, self.alone, self.trials)
        found = measured(plan, point.values["arm"], seed)
        done(self.trials)
        return found

    def arms(self) -> dict[str, Arm]:
        """The curves by name."""
        return arms(self)

    def headline(self, point: Point, result: Arrays) -> str:
        return f"median error {np.median(result['error'][:, -1]):.4f} after the last iteration"

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        curves, rows = Curves(results, self.iterations), []
        for name, arm in arms(self).items():
            low, middle, high = np.quantile(curves.last(name), (0.25, 0.5, 0.75))
            over, reached = curves.over(name), float(np.median(curves.reached(name)))
            rows.append(
                {
                    "method": arm.label if arm.panel else f"two-phase, {arm.label}",
                    "median error": float(middle),
                    "lower quartile": float(low),
                    "upper quartile": float(high),
                    "against the oracle (median)": float(np.median(over)),
                    "as good as the oracle": f"{int((over <= EQUAL).sum())} of {self.trials}",
                    "iterations to twice the oracle's error": reached if np.isfinite(reached) else None,
                }
            )
        return rows

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
        now = Curves(results, self.iterations)
        before = None if self.before is None else Curves(results, self.iterations, self._of)
        found = claims(self.problem.figure, self.rate, now, before)
        if self.scale == "smoke":  # too few rounds to tell anything
            return [replace(finding, agrees=None) for finding in found]
        return found

    def notes(self) -> list[str]:
        return [
            *([SIZES[self.scale]] if self.scale in SIZES else []),
            f"{ETA.format(rate=self.rate)} for FedAvg and {5 * self.rate:g} for FedProx.",
            "N = 1000 of section V is a misprint: 200 clients with 50 examples have 10,000.",
            "two-phase: second moments over all pairs of a client's examples, not two of them; anchors are "
            "the clients with most examples, as many as by default.",
            "Phase 1 as printed: 10 anchors drawn uniformly, two examples of each client, direct singular "
            "value decomposition, the true alpha, beta and Delta, groups at Delta / 2; epsilon is not "
            "printed, and 1/16 here. From fewer than k groups Phase 2 begins with k equal models.",
            f"for one-shot clustering a client trains alone for {self.alone} rounds of 5 steps from the same "
            "start as all others.",
            RULE,
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.mixed_regression.drawing import error_curves

        return error_curves(self, results)


TRIALS = {"paper": 20, "small": 10, "smoke": 1}


def _figure(number: int, scale: Scale, preset: str) -> Convergence:
    return Convergence(
        problem=problem(number, scale),
        before=None if number == 1 else problem(number - 1, scale),
        rate=0.05,
        iterations=5,
        rounds=30 if scale == "smoke" else 400,
        alone=10 if scale == "smoke" else 50,
        trials=TRIALS[scale],
        scale=scale,
    )


FIGURES: tuple[Figure, ...] = tuple(
    Figure(
        f"mixed-regression/fig{number}",
        f"Mixed regression, Figure {number}: error against iteration, {title}",
        partial(_figure, number),
        presets=("text",),
    )
    for number, title in TITLES.items()
)
