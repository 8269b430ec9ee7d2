"""What a number of successes says: intervals, and differences beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from coterie.words import count

LEVEL = 0.05


def interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % confidence interval of a probability (Wilson's)."""
    from scipy.stats import binomtest  # slow to import, and only results need it

    ends = binomtest(successes, trials).proportion_ci(1 - LEVEL, method="wilson")
    return float(ends.low), float(ends.high)


@dataclass(frozen=True)
class Trend:
    """How success compares in pairs of points, the second of which is expected to be no harder.

    Trials are the unit, since the same trials are made at every point: a point falls behind another beyond
    chance where more trials are lost than gained, by a sign test at 5 % over all pairs together (Bonferroni);
    and success rises as a whole where more trials gain over all pairs than lose, by a sign test at 5 %.
    """

    rose: int
    stayed: int
    fell: int
    fell_beyond_chance: int
    gaining: int  # trials that succeed more often at the second points than at the first
    losing: int

    @property
    def agrees(self) -> bool | None:
        """Whether the expectation is borne out; None where chance explains all of it."""
        if self.fell_beyond_chance or _sign_test(self.losing, self.gaining) < LEVEL:
            return False
        return True if _sign_test(self.gaining, self.losing) < LEVEL else None

    def __str__(self) -> str:
        more, fewer = max(self.gaining, self.losing), min(self.gaining, self.losing)
        pairs = self.rose + self.stayed + self.fell
        return (
            f"success rises in {self.rose}, stays in {self.stayed} and falls in {self.fell} of {pairs} "
            f"comparisons ({count(self.fell_beyond_chance, 'fall')} beyond chance); "
            f"{count(self.gaining, 'trial')} gain{_s(self.gaining)} by it and {self.losing} "
            f"lose{_s(self.losing)} (sign test, p = {_sign_test(more, fewer):.2g})"
        )


def trend(pairs: Sequence[tuple[Bool[np.ndarray, " trials"], Bool[np.ndarray, " trials"]]]) -> Trend:
    """Compare pairs of points: which trials succeed at the first, and which at the second."""
    change = np.array([second.astype(int) - first for first, second in pairs])  # (pairs, trials)
    gained, lost = (change > 0).sum(axis=1), (change < 0).sum(axis=1)
    clear = [_sign_test(b, a) < LEVEL / len(pairs) for a, b in zip(gained, lost, strict=True)]
    return Trend(
        rose=int((gained > lost).sum()),
        stayed=int((gained == lost).sum()),
        fell=int((gained < lost).sum()),
        fell_beyond_chance=sum(clear),
        gaining=int((change.sum(axis=0) > 0).sum()),
        losing=int((change.sum(axis=0) < 0).sum()),
    )


def _s(subjects: int) -> str:
    """The ending of a verb: one gains, two gain."""
    return "s" if subjects == 1 else ""


def _sign_test(more: int, fewer: int) -> float:
    """The probability of so many or more, had each of them been as likely one way as the other."""
    from scipy.stats import binomtest

    total = int(more + fewer)
    return float(binomtest(int(more), total, alternative="greater").pvalue) if total else 1.0
