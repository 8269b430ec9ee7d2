"""Discover beside methods that are told more, on populations of which it is known how many groups they are.

Nothing here is a paper's: what is claimed is what we want of a method that is told neither k nor a distance.
Every method trains with the same local steps, and their step size is given with the population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.algorithms import CFL, IFCA, SRFCA, Discover, FedSoft, Global, Local, Oracle
from coterie.clustering.history import FINISH
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.evaluate.metrics import misclustering
from coterie.federation.simulation import usual_precision
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import MLP, Linear
from coterie.papers.experiment import Arrays, Figure, Point, Scale
from coterie.papers.ours.populations import DIGITS, REGRESSIONS, Population
from coterie.papers.seeds import Claim, Entry, Seeds, Table, above
from coterie.papers.srfca.costs import cost

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

STEPS = 10  # of a local update
LABELS = {
    "discover": "Discover",
    "srfca": "SR-FCA, automatic λ",
    "cfl": "CFL",
    "global": "Global",
    "local": "Local",
    "ifca": "IFCA, told k, 5 starts",
    "fedsoft": "FedSoft, told k",
    "oracle": "oracle",
}
TOLD = ("ifca", "fedsoft", "oracle")  # who is told the number of groups, or who is in which
POINTS = {
    False: 0.005,
    True: 0.01,
}  # of accuracy, by which it may be below others, and below those who are told
SHARE = {False: 0.03, True: 0.06}  # of the loss, by which it may be above them
FRESH = 100_000  # draws from there on were looked at by nobody before
RIGHT = 0.95  # of the seeds, in which the number of groups is to be right


@dataclass(frozen=True)
class WithoutK(Table):
    """One kind of populations."""

    kind: str  # "digits" or "regressions"
    names: tuple[str, ...]
    methods: tuple[str, ...]
    rounds: int  # of Discover's last part; other methods have three times as many in all
    trials: int
    scale: str

    also = ("misclustering", "clusters", "models moved", "exchanges", "steps")

    @property
    def measure(self) -> str:  # type: ignore[override]
        return "accuracy" if self.kind == "digits" else "loss"

    @property
    def percent(self) -> bool:  # type: ignore[override]
        return self.kind == "digits"

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{name}: {method}", {"clients": name, "method": LABELS[method]})
            for name in self.names
            for method in self.methods
        ]

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        name = values["clients"]
        method = next(m for m, label in LABELS.items() if label == values["method"])
        population, data = _populations(self.kind)[name], drawn(self.kind, name, seed)
        assert data.test is not None and data.truth is not None
        model: Any = MLP(hidden=(64,)) if self.kind == "digits" else Linear()
        loss = "cross_entropy" if self.kind == "digits" else "squared"
        learner = Learner(model, loss, SGD(lr=population.rate, steps=STEPS))
        found = _algorithm(method, data.truth, self.rounds).fit(data.train, learner, seed=seed)
        quality, costs = found.evaluate(data.test, "train"), cost(found, STEPS)
        result = {
            self.measure: np.array(getattr(quality, self.measure)),
            "clusters": np.array(found.k),
            "models moved": np.array((costs.models_down + costs.models_up) / len(data.truth)),
            "exchanges": np.array(len(found.history) + _asks(found)),
            "steps": np.array(costs.steps_taken / len(data.truth)),
        }
        if method not in ("global", "local"):
            result["misclustering"] = np.array(misclustering(found.assignment, data.truth))
        return result

    def precision(self, point: Point) -> str:
        return usual_precision("cross_entropy") if self.kind == "digits" else "float32"

    # -- what came of it ---------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        others = [m for m in self.methods if m != "discover" and m not in TOLD]
        told = [m for m in self.methods if m in TOLD]
        found = []
        for name in self.names:
            for which, among in ((False, others), (True, told)):
                of = [f"{name}: {method}" for method in ("discover", *among)]
                say = "those who are told the truth, or k" if which else "those who are not told the truth"
                by = f"{100 * POINTS[which]:g} points" if self.percent else f"{SHARE[which]:.0%}"
                words = f"(wanted) {name}: within {by} of the best of {say}"
                found.append(Claim(words, of, partial(self._near, which, among)))
            groups = _populations(self.kind)[name].groups
            if groups is not None:
                words = f"(wanted) {name}: {groups} groups in at least {RIGHT:.0%} of the draws"
                found.append(
                    Claim(words, [(f"{name}: discover", "clusters")], partial(_right_number, groups))
                )
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
        return [
            f"every method takes {STEPS} local steps at a time, on all examples of a client. Discover's last "
            f"part has {self.rounds} rounds, and what is before it as many as it needs; other methods have "
            f"{3 * self.rounds} rounds, SR-FCA {self.rounds} alone and in each of two REFINEs. Steps and "
            "models moved, down and up, are per client; exchanges are rounds and what is asked between them.",
            "claims are by 95 % intervals of the mean difference over seeds to the best of the others on "
            "average; the number of groups by its share of the seeds. Populations like these were looked at "
            "when Discover was built: not these draws of them.",
        ]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.ifca.beside import beside_published

        groups: dict[str, list[Entry]] = {}
        for entry in self.entries():
            groups.setdefault(entry.values["clients"], []).append(entry)
        facts = [f"scale {self.scale}; dots: seeds, line: their mean"]
        title = f"Groups without being told how many: test {self.measure}"
        return beside_published(self, results, title, facts, groups, "method")

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), "steps": STEPS}


def _asks(found: Clustering) -> int:
    """Exchanges between rounds, but for the last one, which changes nothing."""
    return sum(event.asks for event in found.history.events if event.name != FINISH)


def _right_number(groups: int, clusters: Seeds) -> tuple[str, bool | None]:
    right = float((clusters == groups).mean())
    found = ", ".join(f"{number:g}" for number in clusters)
    return f"{found}.", bool(right >= RIGHT)


def _populations(kind: str) -> dict[str, Population]:
    return DIGITS if kind == "digits" else REGRESSIONS


@lru_cache(maxsize=1)  # the methods for one population and seed come one after another
def drawn(kind: str, name: str, seed: int) -> Federated:
    """The clients of a seed."""
    return _populations(kind)[name].make(FRESH + seed)


def _algorithm(method: str, truth: np.ndarray, rounds: int) -> Any:
    k, whole = int(truth.max()) + 1, 3 * rounds
    made: dict[str, Callable[[], Any]] = {
        "discover": lambda: Discover(rounds=rounds),
        "srfca": lambda: SRFCA(rounds=rounds),
        "cfl": lambda: CFL(rounds=whole),
        "global": lambda: Global(rounds=whole),
        "local": lambda: Local(rounds=whole),
        "ifca": lambda: IFCA(k, rounds=whole),
        "fedsoft": lambda: FedSoft(k, rounds=whole, select=None),
        "oracle": lambda: Oracle(truth, rounds=whole),
    }
    return made[method]()


def _read(kind: str, scale: Scale, preset: str) -> WithoutK:
    names, methods = tuple(_populations(kind)), tuple(LABELS)
    if scale == "smoke":
        few = {"digits": "2 rotations x 12", "regressions": "alike, noise 0.7"}[kind]
        return WithoutK(kind, (few,), ("discover", "global", "oracle"), 2, 1, scale)
    return WithoutK(kind, names, methods, 40, {"small": 2}.get(scale, 10), scale)


FIGURES: tuple[Figure, ...] = tuple(
    Figure(
        name,
        f"Groups without being told how many: {kind}",
        partial(_read, kind),
        presets=("text",),
        scales=("smoke", "small", "full"),
    )
    for name, kind in (("ours/without-k", "digits"), ("ours/without-k-regressions", "regressions"))
)
