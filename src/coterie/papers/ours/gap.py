"""SR-FCA where no distance parts near from far clients: MERGE by held-out examples, or by a distance.

Nothing here is a paper's: it has no rule for lambda. Both begin with the same models of clients alone, and
are the same where there is a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.algorithms import SRFCA, Local, threshold
from coterie.algorithms.distances import CrossLoss
from coterie.clustering import Clustering
from coterie.data.federated import Federated
from coterie.evaluate.metrics import misclustering
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.tasks import MeasureLosses
from coterie.papers.experiment import Arrays, Figure, Point, Scale
from coterie.papers.ours.populations import DIGITS, REGRESSIONS, STEPS, Population
from coterie.papers.seeds import Claim, Entry, Seeds, Table, above

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

FRESH = 300_000  # draws from there on were looked at by nobody before
ROUNDS = 20  # of each of SR-FCA's parts
LEAST = 2  # clients of a cluster
HELD_OUT, DISTANCE = "held-out examples", "a distance"
SHOWN = (
    "4 rotations x 10",
    "4 rotations x 10, 20 images",
    "alike, 24 x 50 images",
    "alike, 24 x 20 images",
    *(name for name in REGRESSIONS if not name.startswith(("spread", "3 of 10"))),
)


@dataclass(frozen=True)
class WithoutGap(Table):
    """The share of clients in a wrong cluster."""

    names: tuple[str, ...]
    rounds: int
    trials: int
    scale: str

    measure = "misclustering"
    also = ("clusters", "gap", "accuracy", "loss")

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{name}: {how}", {"clients": name, "MERGE by": how})
            for name in self.names
            for how in (HELD_OUT, DISTANCE)
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        data, learner, alone, cut = _alone(values["clients"], self.rounds, FRESH + seed)
        assert data.test is not None and data.truth is not None
        lambda_ = "auto" if values["MERGE by"] == HELD_OUT else cut.threshold
        algorithm = SRFCA(rounds=self.rounds, threshold=lambda_, min_size=LEAST, trained=alone.models)
        found = algorithm.fit(data.train, learner, seed=seed)
        quality = found.evaluate(data.test, "train")
        result = {
            "misclustering": np.array(misclustering(found.assignment, data.truth)),
            "clusters": np.array(found.k),
            "gap": np.array(cut.gap is not None),
            "loss": np.array(quality.loss),
        }
        return result | ({"accuracy": np.array(quality.accuracy)} if values["clients"] in DIGITS else {})

    def precision(self, point: Point) -> str:
        return _population(point.values["clients"]).precision

    def claims(self) -> list[Claim]:
        def fewer(ours: Seeds, other: Seeds) -> tuple[str, bool | None]:
            said = f"{self.shown(ours)}, by a distance {self.shown(other)}."
            if ours.mean() <= other.mean():
                return said, True
            return said, False if above(ours, other) else None

        def as_many(groups: int, clusters: Seeds) -> tuple[str, bool | None]:
            return f"{', '.join(f'{k:g}' for k in clusters)}.", bool((clusters == groups).all())

        found = []
        for name in self.names:
            both = [f"{name}: {how}" for how in (HELD_OUT, DISTANCE)]
            found.append(Claim(f"(wanted) {name}: no more clients misplaced than by a distance", both, fewer))
            groups = _population(name).groups
            if groups is not None:
                words = (
                    f"(wanted) {name}: {'one cluster' if groups == 1 else f'{groups} clusters'} in all draws"
                )
                found.append(Claim(words, [(both[0], "clusters")], partial(as_many, groups)))
        return found

    def notes(self) -> list[str]:
        return [
            "where no gap is seen the distance is the smallest within which every client has two others, but "
            "for outliers, for ONE_SHOT and for MERGE: what threshold='auto' was before MERGE looked at "
            "held-out examples. Where one is seen, both are the same.",
            "`gap`: in what share of the draws there is one. How held-out examples are looked at was chosen "
            "on other draws of these populations.",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.pictures import at_scale, titled
        from coterie.run.report.style import PALETTE

        facts = [f"dots: {self.how_many(results)}, line: their mean{at_scale(self.scale)}"]
        title = "SR-FCA with an automatic threshold: misplaced clients"
        figure = titled(title, facts, (7.2, 1.5 + 0.34 * len(self.names)))
        axes = figure.subplots()
        for number, (how, by) in enumerate(((HELD_OUT, -0.16), (DISTANCE, 0.16))):
            for row, name in enumerate(self.names):
                ours = 100 * self.over_seeds(results, f"{name}: {how}")
                if len(ours):
                    at = np.full(len(ours), row + by)
                    axes.plot(ours, at, "o", color=PALETTE[number], ms=4.5, alpha=0.6, mew=0)
                    axes.vlines(ours.mean(), row + by - 0.13, row + by + 0.13, color=PALETTE[number], lw=2.2)
            axes.plot([], [], "o", color=PALETTE[number], ms=4.5, label=f"MERGE by {how}")
        axes.set_yticks(range(len(self.names)), list(self.names))
        axes.set_ylim(len(self.names) - 0.5, -0.5)
        axes.set_xlim(-2, 102)
        axes.set_xlabel("misclustering (%)")
        axes.grid(axis="x")
        axes.tick_params(length=0)
        figure.legend(loc="outside lower center", ncols=2)
        return figure

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "steps": STEPS}


def _population(name: str) -> Population:
    return DIGITS[name] if name in DIGITS else REGRESSIONS[name]


@lru_cache(maxsize=1)  # both begin with the same
def _alone(name: str, rounds: int, seed: int) -> tuple[Federated, Learner, Clustering, threshold.Threshold]:
    """Clients, what each of them trains alone, and the threshold that distances between these say."""
    population = _population(name)
    data, learner = population.make(seed), population.learner
    alone = Local(rounds=rounds).fit(data.train, learner, seed=seed)
    clients = Simulation(data.train).with_learner(learner, trains=False)
    losses = np.asarray(clients.ask(MeasureLosses(alone.models)).report.losses)
    return data, learner, alone, threshold.choose("auto", CrossLoss().between_clients(losses), LEAST)


def _read(scale: Scale, preset: str) -> WithoutGap:
    if scale == "smoke":
        return WithoutGap(("alike, noise 0.7",), 2, 1, scale)
    return WithoutGap(SHOWN, ROUNDS, {"small": 3}.get(scale, 10), scale)


FIGURES: tuple[Figure, ...] = (
    Figure(
        "ours/without-gap",
        "SR-FCA where no gap is seen: MERGE by held-out examples, or by a distance",
        _read,
        presets=("text",),
        scales=("smoke", "small", "full"),
    ),
)
