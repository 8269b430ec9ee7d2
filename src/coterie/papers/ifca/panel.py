"""A panel of Figure 2 of the IFCA paper: how often IFCA recovers the true models, against two quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Literal

import jax
import numpy as np
from jaxtyping import Bool

from coterie import keys
from coterie.federation.simulation import Simulation
from coterie.papers.experiment import Arrays, Experiment, Finding, Point, Row
from coterie.papers.ifca import claims, recovery, significance
from coterie.papers.ifca.recovery import RULES, SLACK, TOLD_APART, WITHIN, Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Axis = Literal["R", "sigma", "m", "n"]
Start = Literal["unscaled", "rescaled"]
AT_ONCE = 8  # trials of one call of the compiled program, at most


@dataclass(frozen=True)
class Panel(Experiment):
    """One panel: success against two quantities, one along the axis, one line for each other.

    The same trials, with the same draws, are made at every point; only what the point says differs.
    """

    letter: str
    k: int
    dim: int
    across: Axis  # along the axis
    by: Axis  # a line for each
    R: tuple[float, ...]
    sigma: tuple[float, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    start: tuple[Start, ...]  # coordinates of 0 and 1 as they are, or rescaled to norm R like the true models
    rates: tuple[float, ...]
    starts: int
    rounds: int
    trials: int
    preset: str
    scale: str

    # -- computing ---------------------------------------------------------------------------------------

    def points(self) -> list[Point]:
        grid: dict[Axis, Sequence[float]] = {"R": self.R, "sigma": self.sigma, "m": self.m, "n": self.n}
        found = []
        for start, line, place in product(self.start, grid[self.by], grid[self.across]):
            values: dict[str, float | str] = {name: several[0] for name, several in grid.items()}
            values |= {self.by: line, self.across: place, "start": start}
            found.append(Point(f"{self.across}={place:g} {self.by}={line:g} start={start}", values))
        return found

    @property
    def steps(self) -> int:
        return self.trials

    def problem(self, point: Point) -> Problem:
        """The problem that the trials of a point are about."""
        return Problem(
            k=self.k,
            clients=point.values["m"],
            examples=point.values["n"],
            dim=self.dim,
            starts=self.starts,
            rates=self.rates,
            rounds=self.rounds,
            rescaled_truth=self.preset != "authors",
        )

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        problem = self.problem(point)
        each = keys.numbered(keys.purpose(seed, "trials"), self.trials)
        width = max(w for w in range(1, AT_ONCE + 1) if self.trials % w == 0)
        parts = []
        for first in range(0, self.trials, width):
            found = recovery.trials(
                problem,
                _clients(problem),
                each[first : first + width],
                point.values["R"],
                point.values["sigma"],
                point.values["start"] == "rescaled",
            )
            parts.append(jax.device_get(found))
            done(first + width)
        return {name: np.concatenate([part[name] for part in parts]) for name in (*RULES, "told_apart")}

    # -- measuring ---------------------------------------------------------------------------------------

    @property
    def released_slack(self) -> float:
        """What the released code adds to the threshold in this panel."""
        return SLACK if self.across == "R" else 0.0

    def rule(self, point: Point) -> tuple[str, float]:
        """By which distance a trial is judged in the figure, and what is added to the threshold."""
        if self.preset == "authors":
            return "nearest", self.released_slack
        # no rounded number is within 0 of the truth: with sigma = 0 the rule as printed is never met
        return "matched", 0.0 if point.values["sigma"] else SLACK

    def succeeded(
        self, point: Point, result: Arrays, rule: str | None = None, slack: float = 0.0
    ) -> Bool[np.ndarray, " trials"]:
        """In which trials some start with some step size comes close enough, by the figure's rule or any."""
        return np.asarray(self._close(point, result, rule, slack).any(axis=(1, 2)))

    def successes(self, point: Point, result: Arrays, rule: str | None = None, slack: float = 0.0) -> int:
        """How many trials succeed."""
        return int(self.succeeded(point, result, rule, slack).sum())

    def recovered(self, point: Point, result: Arrays) -> Bool[np.ndarray, " trials"]:
        """In which trials one that comes close enough tells the true models apart, too."""
        close = self._close(point, result, None, 0.0)
        return np.asarray((close & (result["told_apart"] >= TOLD_APART)).any(axis=(1, 2)))

    def _close(
        self, point: Point, result: Arrays, rule: str | None, slack: float
    ) -> Bool[np.ndarray, "trials starts rates"]:
        if rule is None:
            rule, slack = self.rule(point)
        return np.asarray(result[rule] <= WITHIN * point.values["sigma"] + slack)

    def least_squares(self, point: Point) -> float | None:
        """The error of least squares if the clusters were known, sigma sqrt(d / (N - d - 1)) for N = mn/k."""
        spare = point.values["m"] * point.values["n"] / self.k - self.dim - 1
        return float(point.values["sigma"] * np.sqrt(self.dim / spare)) if spare > 0 else None

    @property
    def enough(self) -> float:
        """The mn from which on that error is within 0.6 sigma, about."""
        return self.k * self.dim * (1 + 1 / WITHIN**2)

    # -- what came of it ---------------------------------------------------------------------------------

    def headline(self, point: Point, result: Arrays) -> str:
        return f"{self.successes(point, result)} of {self.trials} trials succeed"

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for point in self.points():
            result = results[point.name]
            low, high = significance.interval(self.successes(point, result), self.trials)
            rule, slack = self.rule(point)
            row: Row = {name: point.values[name] for name in ("start", self.by, self.across)}
            row |= {
                "trials": self.trials,
                "success": self.successes(point, result) / self.trials,
                "low": low,
                "high": high,
                "told apart": int(self.recovered(point, result).sum()) / self.trials,
                "rule": rule + (f" + {slack:g}" if slack else ""),
            }
            row |= {name: self.successes(point, result, name) / self.trials for name in RULES}
            if self.released_slack:
                row |= {
                    f"{name} + {SLACK:g}": self.successes(point, result, name, SLACK) / self.trials
                    for name in ("matched", "nearest")
                }
            median = np.median(result["matched"].min(axis=(1, 2)))
            row["median distance"] = float(median) if np.isfinite(median) else None
            rows.append(row | {"least squares, known clusters": self.least_squares(point)})
        return rows

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows: dict[tuple[str, str], Row] = {}
        for row in self.table(results):
            line = rows.setdefault((row["start"], f"{self.by} = {row[self.by]:g}"), {})
            # named once: seven columns with their names do not fit a terminal of 80 characters
            name = f"{row[self.across]:g}" if line else f"{self.across} = {row[self.across]:g}"
            line[name] = f"{row['success']:.0%}"
        return [{"start": start, "success": name, **row} for (start, name), row in rows.items()]

    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        return claims.findings(self, results)

    def notes(self) -> list[str]:
        return claims.readings(self)

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.ifca.picture import success_curves

        return success_curves(self, self.table(results))


@lru_cache(maxsize=1)
def _clients(problem: Problem) -> Simulation:
    return problem.simulation()
