"""Discover beside methods that are told more, on populations of which it is known how many groups they are,
and on some of which nobody knows it.

Nothing here is a paper's: what is claimed is what we want of a method that is told neither k nor a distance.
Every method trains with the same local steps, and their step size is given with the population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from coterie.clustering.history import FINISH
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.errors import ConfigError
from coterie.evaluate.metrics import misclustering
from coterie.papers.experiment import Arrays, Figure, Point, Scale
from coterie.papers.ours import real
from coterie.papers.ours.methods import LABELS, TOLD, algorithm_of, make_room_for_programs, method_called
from coterie.papers.ours.populations import DIGITS, REGRESSIONS, STEPS, Population
from coterie.papers.seeds import SEPARATE, Claim, Entry, Seeds, Table, above, named
from coterie.papers.srfca.costs import cost
from coterie.words import count

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Kind = Literal["digits", "regressions", "data"]
# of accuracy, by which it may be below others, and below those who are told
POINTS = {False: 0.005, True: 0.01}
SHARE = {False: 0.03, True: 0.06}  # of the loss, by which it may be above them
FRESH = 100_000  # draws from there on were looked at by nobody before
OF_PEOPLE = "where nobody knows the groups, IFCA and FedSoft are told as many as in the SR-FCA paper."
LOOKED_AT = "populations like some of these were looked at when Discover was built: not these draws of them."
RIGHT = 0.95  # of the seeds, in which the number of groups is to be right


@dataclass(frozen=True)
class WithoutK(Table):
    """One kind of populations."""

    kind: Kind
    names: tuple[str, ...]
    methods: tuple[str, ...]
    rounds: int  # of Discover's last part; other methods have three times as many in all
    first: int  # draw
    trials: int
    scale: Scale

    also = ("misclustering", "clusters", "models moved", "exchanges", "steps")
    together = ("clients",)
    equal: ClassVar[str] = "local steps"

    @property
    def measure(self) -> str:  # type: ignore[override]
        return "loss" if self.kind == "regressions" else "accuracy"

    @property
    def percent(self) -> bool:  # type: ignore[override]
        return self.measure == "accuracy"

    def population(self, name: str) -> Population:
        return populations(self.kind, self.scale)[name]

    def methods_of(self, name: str) -> list[str]:
        """Nobody can be told what nobody knows."""
        return [m for m in self.methods if m != "oracle" or self.population(name).told is None]

    def entry(self, name: str, method: str) -> str:
        """What the entry of a method is called."""
        return _called(name, method)

    def entries(self) -> list[Entry]:
        return [
            Entry(self.entry(name, method), {"clients": name, "method": LABELS[method]})
            for name in self.names
            for method in self.methods_of(name)
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        return self.measured(values, seed)

    def measured(self, values: Mapping[str, Any], seed: int, share: float = 1.0) -> Arrays:
        """What a method comes to, in such a share of its rounds."""
        name = values["clients"]
        method = method_called(values["method"])
        population, data = self.population(name), drawn(self.kind, self.scale, name, self.first + seed)
        assert data.test is not None
        algorithm = algorithm_of(method, population, data, self.rounds, share)
        found = algorithm.fit(data.train, population.learner, seed=seed)
        quality, costs = found.evaluate(data.test, "train"), cost(found, population.steps)
        clients = len(data.train)
        result = {
            self.measure: np.array(getattr(quality, self.measure)),
            "clusters": np.array(found.k),
            "models moved": np.array((costs.models_down + costs.models_up) / clients),
            "exchanges": np.array(len(found.history) + _asks(found)),
            "steps": np.array(costs.steps_taken / clients),
        }
        if data.truth is not None and method not in ("global", "local"):
            result["misclustering"] = np.array(misclustering(found.assignment, data.truth))
        return result

    def precision(self, point: Point) -> str:
        return self.population(point.values["clients"]).precision

    # -- what came of it ---------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        found = []
        for name in self.names:
            others = [m for m in self.methods_of(name) if m != "discover"]
            for told in (False, True):
                among = [m for m in others if (m in TOLD) == told]
                of = [self.entry(name, method) for method in ("discover", *among)]
                say = "those who are told the truth, or k" if told else "those who are not told the truth"
                by = f"{100 * POINTS[told]:g} points" if self.percent else f"{SHARE[told]:.0%}"
                words = f"(wanted) {name}: within {by} of the best of {say}"
                if among:
                    found.append(Claim(words, of, partial(self._near, told, among)))
            groups = self.population(name).groups
            if groups is not None:
                words = f"(wanted) {name}: {count(groups, 'group')} in at least {RIGHT:.0%} of the draws"
                of_ours = [(self.entry(name, "discover"), "clusters")]
                found.append(Claim(words, of_ours, partial(_right_number, groups)))
        return found

    def _near(self, told: bool, among: Sequence[str], ours: Seeds, *others: Seeds) -> tuple[str, bool | None]:
        sign = 1 if self.percent else -1
        best = max(range(len(others)), key=lambda i: sign * float(others[i].mean()))
        other = others[best]
        said = f"{self.shown(ours)}; {LABELS[among[best]]} {self.shown(other)}."
        if self.percent:
            return said, above(ours, other, -POINTS[told])
        return said, above((1 + SHARE[told]) * other, ours)

    def notes(self) -> list[str]:
        own = {name: self.population(name).steps for name in self.names}
        more = "".join(f", of {name} {steps}" for name, steps in own.items() if steps != STEPS)
        return [
            f"every method takes as many local steps at a time as others: {STEPS}{more}. Discover's last "
            f"part has {self.rounds} rounds, and what is before it as many as it needs; other methods have "
            f"{3 * self.rounds} rounds, SR-FCA {self.rounds} alone and in each of two REFINEs. Steps and "
            "models moved (as many bytes as so many, down and up) are per client; exchanges are rounds "
            "and what is asked between them.",
            *([OF_PEOPLE] if self.kind == "data" else []),
            "claims are by 95 % intervals of the mean difference over seeds to the best of the others on "
            "average; the number of groups by its share of the seeds.",
            *([LOOKED_AT] if self.first >= FRESH else []),
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.ours.beside_best import beside_best

        return beside_best(self, results)

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "steps": STEPS}


class EqualModels(WithoutK):
    """The same, where every other method may move as many models as Discover did.

    Its rounds are multiplied by what Discover moved, over what the method moved with equal steps: the points
    of that are needed, and computed first. The budget goes to rounds, which all methods have, and not to
    starts, which only IFCA has. Local moves no models, and stays as it is.
    """

    equal = "models moved"

    def entry(self, name: str, method: str) -> str:
        return f"{_called(name, method)}, {self.equal}" if _moves(method) else _called(name, method)

    def computed(self) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for name in self.names:
            values = {m: {"clients": name, "method": LABELS[m]} for m in self.methods_of(name)}
            found |= {_called(name, m): values[m] for m in values}
            found |= {self.entry(name, m): {**values[m], "equal": self.equal} for m in values if _moves(m)}
        return found

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        if "equal" not in point.values:
            return super().compute(point, seed, done, known)
        clients, trial = point.values["clients"], point.values["trial"]
        both = [
            named(_called(clients, m), trial) for m in ("discover", method_called(point.values["method"]))
        ]
        for name in both:
            if name not in known:
                raise ConfigError(
                    f"{point.name!r} may move as many models as {both[0]!r} did: compute {name!r} before it."
                )
        ours, other = (float(known[name]["models moved"]) for name in both)
        return self.measured(point.values, SEPARATE * seed + trial, ours / other)

    def notes(self) -> list[str]:
        return [
            "every other method has its rounds, as below, multiplied by the models that Discover moved, over "
            "those that it moved itself with as many rounds as below. Local moves none and has no more; what "
            "SR-FCA moves does not all depend on rounds.",
            *super().notes(),
        ]


def _called(name: str, method: str) -> str:
    return f"{name}: {method}"


def _moves(method: str) -> bool:
    """Whether it has another number of rounds where models moved are equal."""
    return method not in ("discover", "local")


def _asks(found: Clustering) -> int:
    """Exchanges between rounds, but for the last one, which changes nothing."""
    return sum(event.asks for event in found.history.events if event.name != FINISH)


def _right_number(groups: int, clusters: Seeds) -> tuple[str, bool | None]:
    right = float((clusters == groups).mean())
    found = ", ".join(f"{number:g}" for number in clusters)
    return f"{found}.", bool(right >= RIGHT)


@cache
def populations(kind: Kind, scale: Scale) -> Mapping[str, Population]:
    """The populations of a kind, by name."""
    return {"digits": DIGITS, "regressions": REGRESSIONS}.get(kind) or real.populations(scale)


@lru_cache(maxsize=1)  # the methods for one population and draw come one after another
def drawn(kind: Kind, scale: Scale, name: str, draw: int) -> Federated:
    """The clients of a draw."""
    make_room_for_programs()
    return populations(kind, scale)[name].make(draw)


def _read(table: type[WithoutK], kind: Kind, scale: Scale, preset: str) -> WithoutK:
    names = tuple(populations(kind, scale))
    if scale == "smoke":
        few = {"digits": ("2 rotations x 12",), "regressions": ("alike, noise 0.7",), "data": names}[kind]
        return table(kind, few, ("discover", "global", "oracle"), 2, 0, 1, scale)
    rounds = 20 if (kind, scale) == ("data", "small") else 40
    return table(kind, names, tuple(LABELS), rounds, FRESH, {"small": 2}.get(scale, 10), scale)


NAMES: dict[Kind, tuple[str, str]] = {
    "digits": ("ours/without-k", "digits"),
    "regressions": ("ours/without-k-regressions", "regressions"),
    "data": ("ours/without-k-data", "published data"),
}
FIGURES: tuple[Figure, ...] = tuple(
    Figure(
        f"{name}{ending}",
        f"Groups without being told how many: {words}, equal {table.equal}",
        partial(_read, table, kind),
        presets=("text",),
        scales=("smoke", "small", "full"),
        shared=f"{name}-tables",
    )
    for kind, (name, words) in NAMES.items()
    for table, ending in ((WithoutK, ""), (EqualModels, "-equal-models"))
)
