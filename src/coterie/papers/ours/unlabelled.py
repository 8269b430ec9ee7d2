"""Clients without labels: how often a description of their inputs puts them where their labels would.

Nothing here is a paper's. Features, and how they are compared, were chosen on training images; what is
measured here are clients whose images are all of the test set, or writers who take no part in training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from coterie.algorithms import IFCA, Oracle
from coterie.clustering import Clustering
from coterie.data.federated import Federated
from coterie.data.femnist import femnist
from coterie.data.mnist import rotated_mnist
from coterie.data.shards import Shards
from coterie.federation.simulation import usual_precision
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import MLP
from coterie.papers.experiment import Arrays, Figure, Point, Scale
from coterie.papers.ours.populations import changed
from coterie.papers.seeds import Claim, Entry, Seeds, Table, above

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ROTATED, WRITERS = "rotated MNIST", "FEMNIST"
TRAINED_ON, IMAGES = 50, 100  # images of a training client, and of an unseen one
WANTED = 0.95
LEARNER = Learner(MLP(hidden=(200,)), local=SGD(lr=0.1, steps=10))


class Asked(NamedTuple):
    """What unseen clients are asked to describe."""

    images: int | None = None  # how many of theirs; None: all
    noise: float = 0.0
    groups: int = 4  # where IFCA is told how many


ROWS: dict[str, dict[str, Asked]] = {
    ROTATED: {
        **{f"{n} images": Asked(n) for n in (2, 5, 10, 20, 50, 100)},
        **{f"50 images, noise {noise:g}": Asked(50, noise) for noise in (0.01, 0.02, 0.04)},
    },
    WRITERS: {f"{k} groups": Asked(groups=k) for k in (2, 3)},
}


@dataclass(frozen=True)
class Unlabelled(Table):
    """The share of unseen clients that are put into the group of which the labels say so, too."""

    clients: int  # with rotated images, and as many unseen ones
    writers: int  # of training, and half as many unseen ones
    rounds: int
    trials: int
    scale: str

    measure = "agreement"
    also = ("largest group", "right", "accuracy", "accuracy by labels")

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{clients}: {what}", {"clients": clients, "with": what})
            for clients, rows in ROWS.items()
            for what in rows
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        wanted = ROWS[values["clients"]][values["with"]]
        if values["clients"] == ROTATED:
            data, found = _rotations(self.clients, self.rounds, seed)
        else:
            data, found = _writers(self.writers, wanted.groups, self.rounds, seed)
        assert data.unseen is not None
        with warnings.catch_warnings():  # what it warns of is what is measured here
            warnings.filterwarnings("ignore", message="descriptions of inputs")
            found = found.describe(data.train, noise=wanted.noise)
        asked = data.unseen if wanted.images is None else _first(data.unseen, wanted.images)
        by_labels, without = found.assign(asked), found.assign(asked, labels=False)

        def accuracy(groups: np.ndarray) -> np.ndarray:
            own = replace(found, ids=asked.ids, assignment=groups)
            return np.array(own.evaluate(data.unseen, "train").accuracy)  # type: ignore[arg-type]

        result = {
            "agreement": np.array((without == by_labels).mean()),
            "largest group": np.array(np.bincount(by_labels).max() / len(by_labels)),
            "accuracy": accuracy(without),
            "accuracy by labels": accuracy(by_labels),
        }
        if data.unseen_truth is not None:
            result["right"] = np.array((without == data.unseen_truth).mean())
        return result

    def precision(self, point: Point) -> str:
        return usual_precision("cross_entropy")

    def claims(self) -> list[Claim]:
        words = f"(wanted) rotations, 50 images: at least {WANTED:.0%} are where labels would put them"
        return [Claim(words, [f"{ROTATED}: 50 images"], self._enough)]

    def _enough(self, agreement: Seeds) -> tuple[str, bool | None]:
        return f"{self.shown(agreement)}.", above(agreement, WANTED)

    def notes(self) -> list[str]:
        return [
            f"rotated MNIST: {self.clients} training clients with {TRAINED_ON} images in four rotations that "
            "they are told, and as many unseen ones of whom the first so many images are looked at; accuracy "
            f"is that of all their {IMAGES}. FEMNIST: "
            f"{self.writers} writers whom IFCA has put into groups, and {self.writers // 2} others.",
            "`largest group` is what would agree if all were put into that. Noise is the standard deviation "
            "of what is added to each number that a client sends, in training and later. Accuracy is there "
            "to tell what a wrong group costs: these models train for a short while.",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from matplotlib.lines import Line2D

        from coterie.papers.pictures import at_scale, titled
        from coterie.run.report.style import INK, MUTED, PALETTE

        facts = [f"share of unseen clients, of {self.how_many(results)}{at_scale(self.scale)}"]
        figure = titled("Clients without labels that are put where labels would put them", facts, (9.6, 4.2))
        panels, most = figure.subplots(1, len(ROWS), width_ratios=[3, 2]), max(map(len, ROWS.values()))
        for axes, (clients, rows) in zip(panels, ROWS.items(), strict=True):
            for row, what in enumerate(rows):
                ours = 100 * self.over_seeds(results, f"{clients}: {what}")
                if not len(ours):
                    continue
                chance = 100 * self.over_seeds(results, f"{clients}: {what}", "largest group").mean()
                axes.plot(chance, row, "D", mfc="none", mec=INK, ms=6)
                axes.plot(ours, np.full(len(ours), row), "o", color=PALETTE[0], ms=5, alpha=0.6, mew=0)
                axes.vlines(ours.mean(), row - 0.28, row + 0.28, color=PALETTE[0], lw=2.2)
            axes.set_title(clients, fontsize=10, weight="bold", loc="left")
            axes.set_yticks(range(len(rows)), list(rows))
            axes.set_ylim(most - 0.5, -0.5)
            axes.set_xlim(0, 103)
            axes.set_xlabel("agreement (%)")
            axes.grid(axis="x")
            axes.tick_params(length=0)
        panels[0].axvline(100 * WANTED, color=MUTED, lw=0.8, ls=":")
        handles = [
            Line2D([], [], marker="o", color=PALETTE[0], ls="", ms=5, alpha=0.6, label="a seed"),
            Line2D([], [], marker="|", color=PALETTE[0], ls="", ms=12, mew=2.2, label="mean"),
            Line2D([], [], marker="D", mfc="none", mec=INK, ls="", ms=6, label="all in the largest group"),
            Line2D([], [], color=MUTED, lw=0.8, ls=":", label=f"wanted with 50 images: {100 * WANTED:g} %"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, labelcolor=INK)
        return figure

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "trained_on": TRAINED_ON}


@lru_cache(maxsize=1)  # what is asked of the same groups comes one after another
def _rotations(clients: int, rounds: int, seed: int) -> tuple[Federated, Clustering]:
    data = rotated_mnist(clients, unseen=clients, examples=IMAGES, seed=seed)
    assert data.truth is not None
    data = replace(data, train=_first(data.train, TRAINED_ON))
    return data, Oracle(data.truth, rounds=rounds).fit(data.train, LEARNER, seed=seed)


@lru_cache(maxsize=1)
def _writers(writers: int, groups: int, rounds: int, seed: int) -> tuple[Federated, Clustering]:
    data = femnist(writers, unseen=writers // 2, at_least=20, seed=seed)
    return data, IFCA(groups, rounds=rounds, n_init=3).fit(data.train, LEARNER, seed=seed)


def _first(shards: Shards, n: int) -> Shards:
    """The first n examples of every client."""
    return changed(shards, lambda i, x, y: (x[:n], y[:n]))


def _read(scale: Scale, preset: str) -> Unlabelled:
    if scale == "smoke":
        return Unlabelled(8, 8, 2, 1, scale)
    return Unlabelled(80, 60, 20, 3, scale) if scale == "small" else Unlabelled(400, 200, 40, 10, scale)


FIGURES: tuple[Figure, ...] = (
    Figure(
        "ours/unlabelled",
        "Unseen clients without labels: where their inputs put them",
        _read,
        presets=("text",),
        scales=("smoke", "small", "full"),
    ),
)
