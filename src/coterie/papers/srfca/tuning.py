"""Choosing the settings of a method, one after another, never at the edge of what is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Settings = Mapping[str, float]
Tried = dict[str, list[float]]  # every value of every setting that was tried, in ascending order
ALIKE = 1e-4  # losses that differ by less, in proportion, are as good as each other


@dataclass(frozen=True)
class Grid:
    """What a setting is tried with, in ascending order, and how it goes on.

    Parameters
    ----------
    values
        What is tried in any case; the one in the middle is where the search begins.
    factor
        As long as the best value is the first or the last one, or all are as good as each other, another is
        added, by this factor away.
    low, high
        Where the setting itself ends, beyond which there is nothing to try.
    """

    values: tuple[float, ...]
    factor: float
    low: float | None = None
    high: float | None = None

    @property
    def middle(self) -> float:
        return self.values[len(self.values) // 2]

    def ends(self, value: float) -> bool:
        """Whether there is nothing beyond a value that could be tried."""
        return value in (self.low, self.high)


GRIDS: dict[str, Grid] = {
    "rate": Grid((0.05, 0.1, 0.2), 2.0),
    # lambda, as the share of all pairs of clients that are no farther apart; some pairs must be
    "threshold": Grid((0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4), 2.0, low=0.00125, high=0.8),
    "trim": Grid((0.0, 0.1, 0.2, 0.4), 1.0, low=0.0, high=0.4),  # beta, below a half
    "mu": Grid((0.0, 0.01, 0.1, 1.0), 10.0, low=0.0),  # of FedProx
    "pull": Grid((0.0, 0.01, 0.1, 1.0), 10.0, low=0.0),  # lambda of FedSoft
}
MOST = 10  # values that are added to a grid
PASSES = 3  # over all settings


def search(names: Sequence[str], loss: Callable[[Settings], float]) -> tuple[dict[str, float], Tried]:
    """The settings with the lowest loss, which is infinite where training fails.

    One setting after another is chosen with the others as they are, again and again until all stay as they
    are.
    """
    known: dict[tuple[float, ...], float] = {}

    def remembered(settings: Settings) -> float:
        place = tuple(settings[name] for name in names)
        if place not in known:
            known[place] = loss(settings)
        return known[place]

    now = {name: GRIDS[name].middle for name in names}
    tried: Tried = {name: [] for name in names}
    for _ in range(PASSES):
        before = dict(now)
        for name in names:
            others = dict(now)
            now[name], values = choose(GRIDS[name], lambda v: remembered({**others, name: v}))  # noqa: B023
            tried[name] = sorted({*tried[name], *values})
        if now == before or len(names) == 1:
            break
    return now, tried


def choose(grid: Grid, loss: Callable[[float], float]) -> tuple[float, list[float]]:
    """The best value of a setting, and all values that were tried.

    Where neighbours are as good as the best one, it is the middle of them.
    """
    values = list(grid.values)
    losses = [loss(value) for value in values]
    for _ in range(MOST):
        first, last = _best(losses)
        best, alike = (first + last) // 2, last - first == len(values) - 1
        # where all are as good, or none works, what makes a difference lies beyond
        if (best == 0 or alike) and not grid.ends(values[0]):
            nearer = float(f"{values[0] / grid.factor:.3g}")
            values.insert(0, nearer if grid.low is None else max(nearer, grid.low))
            losses.insert(0, loss(values[0]))
        elif (best == len(values) - 1 or alike) and not grid.ends(values[-1]):
            further = float(f"{values[-1] * grid.factor:.3g}")
            values.append(further if grid.high is None else min(further, grid.high))
            losses.append(loss(values[-1]))
        else:
            break
    first, last = _best(losses)
    return values[(first + last) // 2], values


def at_the_edge(name: str, chosen: float, tried: Sequence[float]) -> bool:
    """Whether a better value may lie beyond those that were tried."""
    return chosen in (min(tried), max(tried)) and not GRIDS[name].ends(chosen)


def _best(losses: Sequence[float]) -> tuple[int, int]:
    """The first and the last of those around the lowest loss that are as good."""
    best = int(np.argmin(losses))
    good = np.asarray(losses) <= losses[best] + ALIKE * abs(losses[best])
    first = last = best
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(losses) - 1 and good[last + 1]:
        last += 1
    return first, last
