"""Tables 1 to 5 and Figure 3 of the SR-FCA paper, on its own data: views of the same trials.

A trial is a method on one draw of one data set: a point that all views keep in one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from coterie.papers.experiment import Arrays, Finding, Point, Row
from coterie.papers.seeds import Claim, Entry, Table
from coterie.papers.srfca import fair, notes, statements
from coterie.papers.srfca.published import ACCURACY, ALL, COSTS, COURSE, NAMES, REAL, SIMULATED, STEPS, WRONG
from coterie.papers.srfca.setups import Setup
from coterie.papers.srfca.trial import METHODS, trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


@dataclass(frozen=True)
class OwnData(Table):
    """Some methods on some of the paper's data sets."""

    trials: int
    scale: str
    preset: str
    setups: tuple[tuple[str, Setup], ...]

    @property
    def of(self) -> dict[str, Setup]:
        """The setups by data set."""
        return dict(self.setups)

    def methods(self, data: str) -> tuple[str, ...]:
        """What is compared on a data set."""
        if self.preset == "fair":
            return tuple(fair.METHODS)
        own = ["srfca", *(["srfca-released"] if self.of[data].released is not None else [])]
        own += ["local", "global", "cfl", "local-kmeans"]
        own += ["local-kmeans-head"] if self.preset == "authors" and data.endswith("mnist") else []
        own += ["ifca", "ifca-5"]
        return (*own, *(["fedsoft", "one-shot-ifca"] if data in REAL else []))

    def label(self, method: str) -> str:
        return fair.METHODS[method].label if self.preset == "fair" else METHODS[method].label

    def of_each(self, *methods: str) -> list[tuple[str, str]]:
        """Data sets and methods, or only these methods."""
        return [(data, m) for data in self.of for m in self.methods(data) if not methods or m in methods]

    def entry(self, data: str, method: str, published: Mapping[Any, Any], **more: Any) -> Entry:
        name = f"{data} {method}"
        values = {"clients": NAMES[data], "method": self.label(method)}
        return Entry(name, values, published.get(name), **more)

    def computed(self) -> dict[str, Mapping[str, Any]]:
        names = [entry.name for entry in self.entries()]
        parts = {name: name.split(" ") for name in names}
        return {name: {"data": data, "method": method} for name, (data, method) in parts.items()}

    def points(self) -> list[Point]:
        if self.preset != "fair":
            return super().points()
        return [*fair.tuning_points(self.computed(), self.of), *super().points()]

    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        if self.preset != "fair":
            return super().compute(point, seed, done, known)
        return fair.compute(point, self.of[point.values["data"]], seed, known)

    def one(self, values: Mapping[str, Any], seed: int, done: Callable[[int], None]) -> Arrays:
        return trial(values["data"], self.of[values["data"]], values["method"], seed)

    def headline(self, point: Point, result: Arrays) -> str:
        if "loss" in result:
            return f"loss {float(result['loss']):.4g}"
        said = f"accuracy {float(result['accuracy']):.2%}"
        wrong = result.get("misclustering")
        return said if wrong is None else f"{said}, misclustering {float(wrong):.2g}"

    def precision(self, point: Point) -> str:
        return self.of[point.values["data"]].precision

    def settings(self) -> dict[str, Any]:
        """By data set, since the folder is that of other views, too."""
        return {data: asdict(setup) for data, setup in self.setups}

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = super().table(results)
        if self.preset == "fair":
            for entry, row in zip(self.entries(), rows, strict=True):
                rates = self.over_seeds(results, entry.name, "rate")
                row["step size"] = float(rates[0]) if len(rates) else None
        return rows

    def claims(self) -> Sequence[Claim]:
        return [claim for data in self.of for claim in self.claims_of(data)]

    def claims_of(self, data: str) -> Sequence[Claim]:
        """What the paper says of a data set."""
        return []

    def _judged(self, claim: Claim, results: Mapping[str, Arrays]) -> Finding:
        found = super()._judged(claim, results)
        names = [one if isinstance(one, str) else one[0] for one in claim.of]
        enough = all(self.of[name.split(" ")[0]].decides for name in names)
        return found if enough else Finding(found.paper, found.found, None)

    def notes(self) -> list[str]:
        return notes.notes(self.preset, self.scale, self.of)


class Accuracy(OwnData):
    """Tables 2 and 4: how well each method serves the clients."""

    def entries(self) -> list[Entry]:
        return [self.entry(*one, ACCURACY) for one in self.of_each()]

    def claims_of(self, data: str) -> Sequence[Claim]:
        if self.preset == "fair":
            names = self.methods(data)
            others = [name for name in names if "srfca" not in name]
            return [*statements.of_fair(data, others), fair.inside(data, self.of[data], names)]
        return statements.of_accuracy(data, self.scale == "paper")

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.drawings import of_methods

        return of_methods(self, results, "Test accuracy, mean over clients")


class Misclustering(OwnData):
    """Table 3: the share of clients in a wrong cluster."""

    measure, percent = "misclustering", False

    def entries(self) -> list[Entry]:
        return [self.entry(data, m, WRONG) for data, m in self.of_each() if m not in ("local", "global")]

    def claims_of(self, data: str) -> Sequence[Claim]:
        of = statements.of_fair_clusters if self.preset == "fair" else statements.of_clusters
        return of(data)

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.drawings import of_methods

        return of_methods(self, results, "Misclustering: the share of clients in a wrong cluster")


class Course(OwnData):
    """Table 5: the accuracy of SR-FCA after ONE_SHOT and each REFINE."""

    def entries(self) -> list[Entry]:
        return [
            Entry(f"{data} srfca", {"clients": NAMES[data], "step": step}, COURSE[data, step], step)
            for data in self.of
            for step in STEPS
        ]

    def claims_of(self, data: str) -> Sequence[Claim]:
        return statements.of_course(data)

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.drawings import of_steps

        return of_steps(self, results)


class Costs(OwnData):
    """Table 1: what training and clustering take."""

    measure, percent = "models moved", False

    def entries(self) -> list[Entry]:
        return [self.entry(*one, {}) for one in self.of_each()]

    def claims_of(self, data: str) -> Sequence[Claim]:
        return statements.of_costs(data)

    def headline(self, point: Point, result: Arrays) -> str:
        return f"{float(result['models moved']):,.0f} models moved"

    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        rows = []
        for data, method in self.of_each():
            name = f"{data} {method}"
            row: Row = {"clients": NAMES[data], "method": self.label(method)}
            for what, printed in zip(COSTS, self.printed(data, method), strict=True):
                values = self.over_seeds(results, name, what)
                row[what] = float(values.mean()) if len(values) else None
                row[f"{what}, by Table 1"] = printed
            rows.append(row | {"seeds": len(self.over_seeds(results, name))})
        return rows

    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        def shown(row: Row, what: str) -> str | None:
            printed, value = row[f"{what}, by Table 1"], row[what]
            return None if value is None else f"{value:,.0f}" + (f" ({printed})" if printed else "")

        return [
            {"clients": row["clients"], "method": row["method"], **{what: shown(row, what) for what in COSTS}}
            for row in self.table(results)
        ]

    def printed(self, data: str, method: str) -> tuple[str | None, ...]:
        """What Table 1 has for a method, with our numbers put in: orders, whose constants it leaves open."""
        s = self.of[data]
        asked = s.taking_part(s.k)
        each = round(asked * s.clients) if isinstance(asked, float) else asked
        m, t, e, k, r = s.clients, s.rounds, s.local, s.k, s.refines
        if method == "ifca":
            orders = {"αmTK": each * t * k, "αmTE": each * t * e, " αmTK": each * t * k}
        elif method in ("srfca", "srfca-released"):
            orders = {"αmTR + mKR": each * t * r + m * k * r, "αmTER": each * t * e * r, "mKR": m * k * r}
        else:
            return (None, None, None)
        return tuple(f"{order.strip()} = {value:,}" for order, value in orders.items())

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.drawings import of_costs

        return of_costs(self, results)


class Distances(OwnData):
    """Figure 3: the distances of all pairs of clients after ONE_SHOT, and λ."""

    measure, percent = "threshold", False

    def entries(self) -> list[Entry]:
        found = []
        for data in self.of:
            values = {"clients": NAMES[data]}
            found.append(Entry(f"{data} srfca", {**values, "what": "λ"}))
            if data not in REAL:
                ends = ("farthest within", "nearest between")
                found += [Entry(f"{data} srfca", {**values, "what": end}, result=end) for end in ends]
        return found

    def claims_of(self, data: str) -> Sequence[Claim]:
        return statements.of_distances(data)

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.srfca.drawings import of_distances

        return of_distances(self, results)


VIEWS: dict[str, tuple[str, type[OwnData], tuple[str, ...], tuple[str, ...]]] = {
    "table1": (
        "SR-FCA, Table 1: what each method takes",
        Costs,
        SIMULATED,
        ("text",),
    ),
    "table2": (
        "SR-FCA, Table 2: test accuracy on MNIST and CIFAR-10",
        Accuracy,
        SIMULATED,
        ("text", "authors", "fair"),
    ),
    "table3": (
        "SR-FCA, Table 3: misclustering on MNIST and CIFAR-10",
        Misclustering,
        SIMULATED,
        ("text", "authors", "fair"),
    ),
    "table4": (
        "SR-FCA, Table 4: test accuracy on FEMNIST and Shakespeare",
        Accuracy,
        REAL,
        ("text", "fair"),
    ),
    "table5": (
        "SR-FCA, Table 5: accuracy after ONE_SHOT and each REFINE",
        Course,
        ALL,
        ("text",),
    ),
    "fig3": (
        "SR-FCA, Figure 3: distances after ONE_SHOT",
        Distances,
        ("inverted-mnist", "femnist"),
        ("text",),
    ),
}
