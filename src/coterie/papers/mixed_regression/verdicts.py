"""Whether trials bear out a claim: yes, no, or not decided, by an interval and a margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coterie.papers.experiment import Finding

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Part:
    """A quantity of every trial, and where it has to lie for a claim to hold.

    Of numbers it is the median that counts, of truth values the share that is true. What is judged is not
    this estimate but its 95 % confidence interval, which supposes nothing about the distribution: for a
    median it is bounded by two of the trials' values, and there is none of fewer than six trials.
    """

    what: str
    values: np.ndarray  # one per trial: numbers or truth values
    low: float = -math.inf
    high: float = math.inf

    @property
    def share(self) -> bool:
        return self.values.dtype == bool

    def interval(self) -> tuple[float, float]:
        """The ends of the confidence interval; not a number where there are too few trials."""
        from scipy.stats import binomtest, quantile_test  # slow to import, and only results need them

        if self.share:
            ends = binomtest(int(self.values.sum()), len(self.values)).proportion_ci(CONFIDENCE)
            return float(ends.low), float(ends.high)
        with np.errstate(invalid="ignore"):
            ends = quantile_test(self.values, p=0.5).confidence_interval(CONFIDENCE)
        return float(ends.low), float(ends.high)

    @property
    def holds(self) -> bool | None:
        """Whether the interval lies within the bounds or outside of them; None where it does neither."""
        low, high = self.interval()
        if self.low <= low and high <= self.high:
            return True
        return False if high < self.low or low > self.high else None

    def __str__(self) -> str:
        if self.share:
            seen = f"in {int(self.values.sum())} of {len(self.values)} trials"
        else:
            low, high = self.interval()
            span = "too few trials for an interval" if math.isnan(low) else f"{low:.3g} to {high:.3g}"
            seen = f"{np.median(self.values):.3g} ({span})"
        bounds = f"{self.low:.3g} to {self.high:.3g}"
        if math.isinf(self.high):
            bounds = f"at least {self.low:.3g}"
        elif math.isinf(self.low):
            bounds = f"at most {self.high:.3g}"
        return f"{self.what}: {seen} [{'a share of ' if self.share else ''}{bounds}]"


def finding(paper: str, *parts: Part) -> Finding:
    """A claim, all parts of which have to hold."""
    verdicts = [part.holds for part in parts]
    agrees = False if False in verdicts else None if None in verdicts else True
    unclear = " These trials do not decide it." if agrees is None else ""
    return Finding(paper, "; ".join(map(str, parts)) + "." + unclear, agrees)
