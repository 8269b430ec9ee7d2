"""Tables of numbers over several seeds: what a paper prints beside what is found.

Every number is computed seed by seed, and each of them is a point that is kept, first all numbers for the
first seed, then for the next one: what an interruption leaves is a whole table over fewer seeds, unless the
table says what is to be computed together. Where only some of the numbers are computed, the others are left
open, as are the claims about them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from coterie.papers.experiment import Arrays, Experiment, Finding, Point, Row
from coterie.words import count

Seeds = Float[np.ndarray, " seeds"]
SEPARATE = 1000  # seeds of an experiment are so far apart, so that experiments with other seeds share none


class Published(NamedTuple):
    """A number as a paper prints it."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class Entry:
    """A number of a table.

    Attributes
    ----------
    name
        What its points are called, in front of the seed.
    values
        What it is a number of, by name: the first columns of its row, and what its points are told.
    published
        The paper's number, in the unit of the measure.
    result
        Which result of its points it is; the measure when not given. Entries of one name share their points.
    """

    name: str
    values: Mapping[str, Any]
    published: Published | None = None
    result: str | None = None


@dataclass(frozen=True)
class Claim:
    """What a paper says of the numbers of a table.

    Attributes
    ----------
    paper
        Its words, and where they are.
    of
        The entries that it is about, by name: of each the measure, or what is named beside it.
    judge
        Given an array of each of them, over the seeds that all of them have: what was found, and whether the
        claim holds; None where that is not decided.
    """

    paper: str
    of: Sequence[str | tuple[str, str]]
    judge: Callable[..., tuple[str, bool | None]]


class Table(Experiment):
    """Numbers that are each computed with several seeds.

    A dataclass whose field `trials` is how many seeds, and whose field `scale` is told to the reader: `smoke`
    decides no claim.
    """

    trials: int
    scale: str
    in_parts = True
    measure: str = "accuracy"  # which result of a point the table has: a share, shown in per cent
    percent: bool = True
    also: tuple[str, ...] = ()  # further results, whose means are columns, too
    # values by which points are computed together, all seeds of some before any of others: where they share
    # programs that would take too much memory if all were kept
    together: tuple[str, ...] = ()

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """The numbers."""

    @abstractmethod
    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        """What an entry gives with one seed: the measure, and whatever else is to be kept.

        `collapsed`, where it is given, is whether the run did not find what there was to find.
        """

    @abstractmethod
    def claims(self) -> Sequence[Claim]:
        """What the paper says of the numbers."""

    def points(self) -> list[Point]:
        points = [
            Point(named(name, trial), {**values, "trial": trial})
            for trial in range(self.trials)
            for name, values in self.computed().items()
        ]
        of = [tuple(point.values[value] for value in self.together) for point in points]
        place = {one: i for i, one in enumerate(dict.fromkeys(of))}
        return [point for _, point in sorted(zip(of, points, strict=True), key=lambda pair: place[pair[0]])]

    def computed(self) -> dict[str, Mapping[str, Any]]:
        """The names of the points of each seed, and what they are told."""
        return {entry.name: entry.values for entry in self.entries()}

    @property
    def steps(self) -> int:
        return 1

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        return self.one(point.values, SEPARATE * seed + point.values["trial"], done)

    def headline(self, point: Point, result: Arrays) -> str:
        return f"{self.measure} {self.shown(result[self.measure][None])}"

    def over_seeds(self, results: Mapping[str, Arrays], name: str, what: str | None = None) -> Seeds:
        """A result of the entry of that name, by default the measure, for every seed that is there."""
        there = self._seeds(results, name)
        return np.array([results[named(name, trial)][what or self.measure] for trial in there])

    def how_many(self, results: Mapping[str, Arrays]) -> str:
        """Of how many seeds there are results, for a caption."""
        there = {len(self._seeds(results, entry.name)) for entry in self.entries()} - {0}
        low, high = min(there, default=0), max(there, default=0)
        return count(high, "seed") if low == high else f"{low} to {high} seeds"

    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        return [self._judged(claim, results) for claim in self.claims()]

    def _judged(self, claim: Claim, results: Mapping[str, Arrays]) -> Finding:
        of = [(one, self.measure) if isinstance(one, str) else one for one in claim.of]
        there = [t for t in range(self.trials) if all(t in self._seeds(results, name) for name, _ in of)]
        if not there:
            return Finding(claim.paper, "not computed.", None)
        values = [np.array([results[named(name, t)][what] for t in there]) for name, what in of]
        found, agrees = claim.judge(*values)
        return Finding(claim.paper, found, None if self.scale == "smoke" else agrees)

    def _seeds(self, results: Mapping[str, Arrays], name: str) -> list[int]:
        return [trial for trial in range(self.trials) if named(name, trial) in results]

    def shown(self, values: Seeds) -> str:
        """Mean and standard deviation, as people read them."""
        if not len(values):
            return "–"
        scale, unit, form = (100, " %", ".2f") if self.percent else (1, "", ".3g")
        if len(values) == 1:
            return f"{scale * values[0]:{form}}{unit}"
        return f"{scale * values.mean():{form}} ± {scale * deviation(values):{form}}{unit}"

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        scale, unit = (100, " (%)") if self.percent else (1, "")
        rows = []
        for entry in self.entries():
            values, paper = self.over_seeds(results, entry.name, entry.result), entry.published
            there, share = self._seeds(results, entry.name), self._mean(results, entry.name, "collapsed")
            collapsed = None if share is None else round(share * len(there))
            rows.append(
                {
                    **entry.values,
                    f"{self.measure}{unit}": scale * float(values.mean()) if there else None,
                    "standard deviation": scale * deviation(values) if len(there) > 1 else None,
                    "published": None if paper is None else paper.mean,
                    "published deviation": None if paper is None else paper.deviation,
                    "seeds": len(there),
                    "collapsed": collapsed,
                    **{what: self._mean(results, entry.name, what) for what in self.also},
                }
            )
        return rows

    def _mean(self, results: Mapping[str, Arrays], name: str, what: str) -> float | None:
        """Of what is not the measure, and need not be there of every entry."""
        there = self._seeds(results, name)
        if not there or what not in results[named(name, there[0])]:
            return None
        return float(self.over_seeds(results, name, what).mean())

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for entry, row in zip(self.entries(), self.table(results), strict=True):
            paper, collapsed = entry.published, row["collapsed"]
            said = None if paper is None else f"{paper.mean:g}"
            if paper is not None and paper.deviation is not None:
                said = f"{paper.mean:.2f} ± {paper.deviation:.2f}"
            rows.append(
                {
                    **entry.values,
                    self.measure: self.shown(self.over_seeds(results, entry.name, entry.result)),
                    "published": said,
                    "collapsed": None if collapsed is None else f"{collapsed} of {row['seeds']}",
                }
            )
        return rows


def deviation(values: Seeds) -> float:
    """The standard deviation over seeds, of which there are two or more."""
    return float(values.std(ddof=1))


def above(ours: Seeds, other: Seeds | float, by: float = 0.0) -> bool | None:
    """Whether ours is above another by more than `by`, on average over seeds, by a paired t-test.

    True where the whole 95 % confidence interval of the mean difference is, False where none of it is, and
    None elsewhere, and for a single seed.
    """
    from scipy.stats import t  # slow to import, and only results need it

    difference = ours - other - by
    if len(difference) < 2:
        return None
    reach = t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference))
    if difference.mean() - reach > 0:
        return True
    return False if difference.mean() + reach < 0 else None


def all_of(*verdicts: bool | None) -> bool | None:
    """Whether all of several hold: not if one of them does not, and None where none fails but one is open."""
    return False if False in verdicts else None if None in verdicts else True


def named(name: str, trial: int) -> str:
    """What the point of an entry is called that has this seed."""
    return f"{name} seed {trial}"
