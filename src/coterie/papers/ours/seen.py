"""How often `ct.groups` sees groups: where there are none, and the farther apart they are.

Nothing here is a paper's. Clients are linear regressions, of which many populations can be drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.algorithms import IFCA, Discover
from coterie.data.federated import Federated
from coterie.data.synthetic import mixed_regression
from coterie.evaluate.groups import LEVEL, groups
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import Linear
from coterie.papers.experiment import Arrays, Figure, Scale
from coterie.papers.seeds import Claim, Entry, Seeds, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

CLIENTS, EXAMPLES, DIM, ROUNDS = 40, 20, 5, 10
FEWEST, MOST = 2, 60  # examples of a client, where they differ
FRESH = 200_000  # draws from there on were looked at by nobody before
LEARNER = Learner(Linear(), "squared", SGD(lr=0.05, steps=10))
ALIKE, UNEVEN = "alike", f"alike, {FEWEST} to {MOST} examples"
FINDERS: dict[str, Any] = {
    "IFCA, k = 2": IFCA(2, rounds=ROUNDS, n_init=3),
    "Discover": Discover(rounds=ROUNDS),
}


@dataclass(frozen=True)
class Seen(Table):
    """In what share of the draws the p-value is 0.05 or less."""

    finders: tuple[str, ...]
    scales: tuple[float, ...]  # of the models of two groups
    draws: int  # of each trial
    trials: int
    scale: str

    measure = "seen"
    also = ("worth it", "one group", "gain")

    def entries(self) -> list[Entry]:
        clients = [ALIKE, UNEVEN, *map(_apart, self.scales)]
        return [
            Entry(f"{who}: {finder}", {"clients": who, "groups found by": finder})
            for finder in self.finders
            for who in clients
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        told = []
        for draw in range(FRESH + self.draws * seed, FRESH + self.draws * (seed + 1)):
            train = self._drawn(values["clients"], draw).train
            finder = FINDERS[values["groups found by"]]
            found = groups(train, LEARNER, rounds=ROUNDS, algorithm=finder, seed=draw, permutations=999)
            told.append((found.p <= LEVEL, found.any, found.found == (1, 1), found.loss.mean))
        means = np.array(told, float).mean(0)
        return dict(zip((self.measure, *self.also), means, strict=True))

    def _drawn(self, clients: str, seed: int) -> Federated:
        of_all: dict[str, Any] = {"clients": CLIENTS, "dim": DIM, "noise": 1.0, "seed": seed}
        if clients == UNEVEN:  # the same of all draws, so that they share their programs
            sizes = np.random.default_rng(0).integers(FEWEST, MOST + 1, CLIENTS).tolist()
            return mixed_regression(k=1, examples=sizes, **of_all)
        if clients == ALIKE:
            return mixed_regression(k=1, examples=EXAMPLES, **of_all)
        scale = next(s for s in self.scales if _apart(s) == clients)
        return mixed_regression(k=2, examples=EXAMPLES, scale=scale, **of_all)

    def claims(self) -> list[Claim]:
        return [
            Claim(
                f"(wanted) {who}, groups found by {finder}: seen in no more than {LEVEL:.0%} of the draws",
                [f"{who}: {finder}"],
                self._seldom,
            )
            for finder in self.finders
            for who in (ALIKE, UNEVEN)
        ]

    def _seldom(self, seen: Seeds) -> tuple[str, bool | None]:
        from scipy.stats import binom  # slow to import, and only results need it

        draws, times = self.draws * len(seen), round(float(seen.sum()) * self.draws)
        said = f"{times} of {draws}."
        if binom.sf(times - 1, draws, LEVEL) < 0.01:  # as many or more
            return said, False
        return said, True if draws >= 100 else None

    def notes(self) -> list[str]:
        return [
            f"{CLIENTS} clients with {EXAMPLES} examples each of {DIM} coordinates, if nothing else is said, "
            "noise of variance 1. Models of groups are drawn from a Gaussian: of scale s they are about "
            f"1.4 s apart. A trial is {self.draws} draws of clients.",
            "`worth it`: clients gain besides, by the 95 % interval; `one group`: that is what was found on "
            "both halves; `gain`: of squared error, by clients' groups, over the draws.",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from matplotlib.ticker import PercentFormatter

        from coterie.papers.pictures import DASHES, at_scale, titled
        from coterie.run.report.style import MUTED, PALETTE

        facts = [
            f"{self.trials * self.draws} draws of {CLIENTS} clients, {EXAMPLES} examples each; dots: trials, "
            f"line: their mean{at_scale(self.scale)}",
        ]
        figure = titled("How often groups are seen, the farther apart they are", facts, (6.2, 4.0))
        axes = figure.subplots()
        at = [0.0, *self.scales]
        for number, finder in enumerate(self.finders):
            names = [f"{who}: {finder}" for who in (ALIKE, *map(_apart, self.scales))]
            each = [self.over_seeds(results, name) for name in names]
            there = [(x, seen) for x, seen in zip(at, each, strict=True) if len(seen)]
            for x, seen in there:
                axes.plot(np.full(len(seen), x), seen, "o", color=PALETTE[number], ms=4, alpha=0.4, mew=0)
            means = [seen.mean() for _, seen in there]
            axes.plot([x for x, _ in there], means, color=PALETTE[number], ls=DASHES[number], label=finder)
        axes.axhline(LEVEL, color=MUTED, lw=0.8)
        axes.annotate(
            f"{100 * LEVEL:g} %",
            (1, LEVEL),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            color=MUTED,
        )
        axes.set_xlabel("scale of the models of two groups (0: all clients alike)")
        axes.set_ylabel(f"draws with p up to {LEVEL:g}")
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
        axes.grid(axis="y")
        axes.legend(title="groups found by", loc="center right", bbox_to_anchor=(1, 0.32))
        return figure

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "rounds": ROUNDS, "clients": CLIENTS, "examples": EXAMPLES, "dim": DIM}


def _apart(scale: float) -> str:
    return f"two groups, scale {scale:g}"


def _read(scale: Scale, preset: str) -> Seen:
    if scale == "smoke":
        return Seen(("IFCA, k = 2",), (1.0,), 2, 1, scale)
    scales = (0.2, 0.4, 0.6, 0.8, 1.2)
    return Seen(tuple(FINDERS), scales, 50, {"small": 2}.get(scale, 4), scale)


FIGURES: tuple[Figure, ...] = (
    Figure(
        "ours/groups",
        "Are there groups: how often they are seen",
        _read,
        presets=("text",),
        scales=("smoke", "small", "full"),
    ),
)
