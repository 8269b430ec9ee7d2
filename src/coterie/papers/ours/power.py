"""How far apart groups have to be, and how much of them there has to be, until they are found.

Two groups, along three axes: how far apart they are, how many examples a client has, and how many clients
there are. Nothing here is a paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coterie.data.digits import rotated_digits
from coterie.data.federated import Federated
from coterie.evaluate.metrics import misclustering
from coterie.papers.experiment import Arrays, Figure, Point, Row, Scale
from coterie.papers.ifca.significance import interval
from coterie.papers.ours.methods import LABELS, algorithm_of, make_room_for_programs, method_called
from coterie.papers.ours.populations import NETWORK, Population, mixture, turned
from coterie.papers.seeds import Claim, Entry, Seeds, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Kind = Literal["regressions", "digits"]
Settings = tuple[float, int, int]
AXIS_NAMES = ("apart", "examples", "clients")  # how far groups are, and how many of a client, and of these
METHODS = ("discover", "srfca", "ifca", "global", "oracle")
COUNTING = ("discover", "srfca")  # that find how many groups there are
DIM, NOISE = 10, 1.0
FRESH = 500_000  # draws from there on were looked at by nobody before
ROUNDS = 40
ALIKE, FAR = 0.99, 0.95  # of the draws, in which the number of groups is to be right
# what is the same along the other axes, and the values along each
BASE: dict[Kind, Settings] = {"regressions": (1.0, 20, 40), "digits": (20, 50, 24)}
AXES: dict[Kind, tuple[Sequence[float], Sequence[int], Sequence[int]]] = {
    "regressions": ((0, 0.5, 0.75, 1.0, 1.5, 2.0), (5, 10, 20, 40, 80), (10, 20, 40, 80, 160)),
    "digits": ((0, 5, 10, 15, 20, 30, 45), (10, 20, 50, 100), (8, 16, 24, 40, 56)),
}
APART = {
    "regressions": "distance of the two models, about",
    "digits": "angle between the two groups (degrees)",
}


@dataclass(frozen=True)
class Power(Table):
    """Found groups and loss, or accuracy, along three axes."""

    kind: Kind
    axes: tuple[tuple[Settings, ...], ...]
    methods: tuple[str, ...]
    rounds: int
    first: int  # draw
    trials: int
    scale: str

    together = AXIS_NAMES
    also = ("right", "misclustering", "clusters")

    @property
    def measure(self) -> str:  # type: ignore[override]
        return "accuracy" if self.kind == "digits" else "loss"

    @property
    def percent(self) -> bool:  # type: ignore[override]
        return self.kind == "digits"

    def entries(self) -> list[Entry]:
        of = dict.fromkeys(settings for axis in self.axes for settings in axis)
        return [
            Entry(
                entry(settings, method),
                {
                    **dict(zip(AXIS_NAMES, settings, strict=True)),
                    "method": LABELS[method],
                },
            )
            for settings in of
            for method in self.methods
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        method = method_called(values["method"])
        settings: Any = tuple(values[name] for name in AXIS_NAMES)
        of, data = population(self.kind, settings), drawn(self.kind, settings, self.first + seed)
        assert data.test is not None and data.truth is not None
        found = algorithm_of(method, of, data, self.rounds).fit(data.train, of.learner, seed=seed)
        quality = found.evaluate(data.test, "train")
        result = {self.measure: np.array(getattr(quality, self.measure))}
        if method != "global":
            result["misclustering"] = np.array(misclustering(found.assignment, data.truth))
        if method in COUNTING:
            result |= {"clusters": np.array(found.k), "right": np.array(float(found.k == of.groups))}
        return result

    def precision(self, point: Point) -> str:
        return population(self.kind, BASE[self.kind]).precision

    # -- what came of it ---------------------------------------------------------------------------------

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = super().table(results)
        for row in rows:
            share, draws = row["right"], row["seeds"]
            low, high = (None, None) if share is None else interval(round(share * draws), draws)
            row |= {"low": low, "high": high}
        return rows

    def claims(self) -> list[Claim]:
        apart = self.axes[0]
        return [
            Claim(
                f"(wanted) {words} in at least {wanted:.0%} of the draws",
                [(entry(of, "discover"), "right")],
                partial(self._often, wanted),
            )
            for words, of, wanted in (
                ("one group, where all are alike,", apart[0], ALIKE),
                ("two groups, where they are farthest apart,", apart[-1], FAR),
            )
        ]

    def _often(self, wanted: float, right: Seeds) -> tuple[str, bool | None]:
        times, draws = round(float(right.sum())), len(right)
        low, high = interval(times, draws)
        said = f"{times} of {draws}, 95 % interval {low:.1%} to {high:.1%}."
        return said, False if high < wanted else True if times >= wanted * draws else None

    def notes(self) -> list[str]:
        about = (
            "scikit-learn's digits, turned by half of the angle to either side, so that both are blurred"
            if self.kind == "digits"
            else f"linear regressions of {DIM} coordinates with noise of variance {NOISE:g}; models are "
            "drawn from a Gaussian, so that their distance differs between draws"
        )
        return [
            f"two groups: {about}. Along one axis the others stay: {at_base(self.kind)}.",
            f"local steps are equal: Discover's last part has {self.rounds} rounds, other methods have "
            f"{3 * self.rounds} in all, as in ours/without-k. `right`: one group where they are 0 apart, "
            "else two; `low` and `high`: its 95 % interval (Wilson's).",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.ours.power_picture import panels

        return panels(self, results)

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "dim": DIM, "noise": NOISE}


def at_base(kind: Kind) -> str:
    """What is the same along the other axes, in words."""
    apart, examples, clients = BASE[kind]
    unit = " degrees" if kind == "digits" else ""
    return f"{apart:g}{unit} apart, {examples} examples, {clients} clients"


def entry(settings: Settings, method: str) -> str:
    """What the entry of a method at these settings is called."""
    apart, examples, clients = settings
    return f"{apart:g} apart, {examples} examples, {clients} clients: {method}"


@cache
def population(kind: Kind, settings: Settings) -> Population:
    """Two groups so far apart; one where that is 0."""
    apart, examples, clients = settings
    k = 2 if apart else 1
    if kind == "digits":
        return Population(partial(_at_angle, settings=settings), k, NETWORK)
    more = {"scale": apart / np.sqrt(2)} if apart else {}
    return mixture(k, clients, examples, DIM, NOISE, **more)


def _at_angle(seed: int, *, settings: Settings) -> Federated:
    """Digits of two groups that are turned to either side."""
    angle, examples, clients = settings
    whole = rotated_digits(clients, (0, 0), unseen=0, seed=seed, examples=examples)
    assert whole.truth is not None
    if not angle:
        return replace(whole, truth=np.zeros_like(whole.truth))
    return turned(whole, (angle * (whole.truth - 0.5)).tolist())


@lru_cache(maxsize=1)  # the methods for one population and draw come one after another
def drawn(kind: Kind, settings: Settings, draw: int) -> Federated:
    """The clients of a draw."""
    make_room_for_programs()
    return population(kind, settings).make(draw)


def _read(kind: Kind, scale: Scale, preset: str) -> Power:
    (apart, examples, clients), (far, many, several) = BASE[kind], AXES[kind]
    axes = (
        tuple((value, examples, clients) for value in far),
        tuple((apart, value, clients) for value in many),
        tuple((apart, examples, value) for value in several),
    )
    if scale == "smoke":
        return Power(kind, tuple(axis[:1] for axis in axes), ("discover", "global", "oracle"), 2, 0, 1, scale)
    return Power(kind, axes, METHODS, ROUNDS, FRESH, {"small": 5}.get(scale, 40), scale)


NAMES: dict[Kind, str] = {"regressions": "ours/power", "digits": "ours/power-digits"}
FIGURES: tuple[Figure, ...] = tuple(
    Figure(
        name,
        f"How far apart two groups have to be to be found: {kind}",
        partial(_read, kind),
        presets=("text",),
        scales=("smoke", "small", "full"),
    )
    for kind, name in NAMES.items()
)
