"""What claims are about: final errors, rates, plateaus, one number for every trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from coterie.papers.experiment import Arrays

Trials = Float[np.ndarray, " trials"]

CLOSE = 2.0  # times the oracle's last error: to there rates are measured
STILL, OFF = 1.1, 5.0  # on a plateau the error stays within 10 %, at more than five times the oracle's last
RECENT = 100  # iterations


@dataclass(frozen=True)
class Curves:
    """The errors of all methods on the clients of one figure, `of` it where it is not the one drawn."""

    results: Mapping[str, Arrays]
    iterations: int  # of Phase 1
    of: str = ""

    def result(self, name: str) -> Arrays:
        return self.results[name + self.of]

    def error(self, name: str) -> Float[np.ndarray, "trials all"]:
        return np.asarray(self.result(name)["error"])

    def last(self, name: str) -> Trials:
        """The error after the last iteration."""
        last: Trials = self.error(name)[:, -1]
        return last

    def over(self, name: str, other: str = "oracle") -> Trials:
        """The last error of a method, divided by that of another."""
        ratio: Trials = self.last(name) / self.last(other)
        return ratio

    def reached(self, name: str) -> Trials:
        """The first iteration with at most twice the oracle's last error; infinite where there is none."""
        below = self.error(name) <= CLOSE * self.last("oracle")[:, None]
        first: Trials = np.where(below.any(axis=1), below.argmax(axis=1), np.inf)
        return first

    def needed(self, name: str) -> Trials:
        """The same; all iterations where there is none, which is less than it needs."""
        needed: Trials = np.minimum(self.reached(name), self.error(name).shape[1] - 1)
        return needed

    def left(self, name: str) -> Trials:
        """What part of the error is left after Phase 1."""
        part: Trials = self.error(name)[:, self.iterations] / self.error(name)[:, 0]
        return part

    def first_rate(self, name: str) -> Trials:
        """By how much the logarithm of the error falls in an iteration of Phase 1, on average."""
        error = self.error(name)
        rate: Trials = np.log(error[:, 0] / error[:, self.iterations]) / self.iterations
        return rate

    def rate(self, name: str) -> Trials:
        """The same for Phase 2, until twice the oracle's last error or the end."""
        begin = self.iterations
        return np.array([np.log(e[begin] / e[end]) / (end - begin) for e, end in self._second_phase(name)])

    def straight(self, name: str) -> Trials:
        """How much of the logarithm of the error in Phase 2 a straight line explains, R^2."""
        return np.array(
            [
                np.corrcoef(np.arange(end + 1 - self.iterations), np.log(e[self.iterations : end + 1]))[0, 1]
                ** 2
                for e, end in self._second_phase(name)
            ]
        )

    def _second_phase(self, name: str) -> list[tuple[np.ndarray, int]]:
        """The errors of each trial, and the last iteration of them that counts for rates."""
        error: np.ndarray = self.error(name)
        least = self.iterations + 2
        ends = np.clip(self.reached(name), least, error.shape[1] - 1).astype(int)
        return list(zip(error, ends.tolist(), strict=True))

    def falling(self, name: str) -> Trials:
        """By what factor the error falls over the last hundred iterations."""
        error = self.error(name)
        factor: Trials = error[:, -1 - min(RECENT, error.shape[1] - 1)] / error[:, -1]
        return factor

    def plateau(self, name: str) -> Trials:
        """The most successive iterations at which the error hardly changes, far above the oracle's."""
        far = OFF * self.last("oracle")
        return np.array([_longest(e, least) for e, least in zip(self.error(name), far, strict=True)])

    def kappa(self, rate: float, steps: int) -> Trials:
        """Section IV-B: gamma s / (1 - (1 - gamma)^s) of FedAvg with s steps."""
        return stability(rate * np.asarray(self.result("oracle")["largest_curvature"]), steps)


def stability(gamma: Any, steps: int | None) -> Trials:
    """kappa of section IV-B: of FedAvg with so many steps, or of FedProx where they are None."""
    kappa: Trials = 1 + gamma if steps is None else gamma * steps / (1 - (1 - gamma) ** steps)
    return kappa


def _longest(error: np.ndarray, least: float) -> float:
    """The length of the longest stretch within a factor STILL of itself and above `least`."""
    best, begin = 0, 0
    for end, value in enumerate(error):
        if value <= least:
            begin = end + 1
            continue
        while error[begin : end + 1].max() > STILL * error[begin : end + 1].min():
            begin += 1
        best = max(best, end - begin)
    return float(best)
