"""Table 1 of the IFCA paper: IFCA, one global model and local models on rotated MNIST and CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from coterie.federation.simulation import usual_precision
from coterie.papers.experiment import Arrays, Figure, Point, Scale
from coterie.papers.ifca.rotated import METHODS, Population, measured
from coterie.papers.seeds import Claim, Entry, Published, Seeds, Table, above, all_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SIZES = {"MNIST": (50, 100, 200), "CIFAR": (500,)}  # n of the columns
PUBLISHED = {
    ("MNIST", "ifca"): (Published(94.20, 0.03), Published(95.05, 0.02), Published(95.25, 0.40)),
    ("MNIST", "global"): (Published(86.74, 0.04), Published(88.65, 0.08), Published(89.73, 0.13)),
    ("MNIST", "local"): (Published(63.32, 0.02), Published(73.66, 0.04), Published(80.05, 0.02)),
    ("CIFAR", "ifca"): (Published(81.51, 1.37),),
    ("CIFAR", "global"): (Published(77.87, 0.39),),
    ("CIFAR", "local"): (Published(33.97, 1.19),),
}
WANTED = {"MNIST": (94.1, 94.9, 95.4), "CIFAR": (81.5,)}  # of IFCA, best of 5 starts, by us
WITHIN = 0.1  # points below a published number that count as reaching it
FOUND = 0.01  # share of clients in a wrong cluster, up to which clusters count as found


@dataclass(frozen=True)
class Table1(Table):
    """Test accuracy by method and population."""

    trials: int
    scale: str
    preset: str
    populations: tuple[Population, ...]

    also = ("training loss", "misclustering", "clusters")

    # -- computing ---------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """As the code has it MNIST's IFCA and global model are as in the text: only what differs."""
        found = []
        for population in self.populations:
            for method in METHODS:
                released = method == "local" or (population.data == "CIFAR" and method != "ifca")
                if self.preset == "text" or released:
                    found.append(self._entry(population, method))
        return found

    def _entry(self, population: Population, method: str) -> Entry:
        of_data = [one for one in self.populations if one.data == population.data]
        published = PUBLISHED[population.data, method.removesuffix("-1")][of_data.index(population)]
        values = {
            "data": population.data,
            "m": population.clients,
            "n": population.examples,
            "method": METHODS[method],
        }
        return Entry(f"{population.name} {method}", values, published)

    def one(self, values: Mapping[str, Any], seed: int, done: Any) -> Arrays:
        return measured(*self._which(values), self.preset, seed)

    def precision(self, point: Point) -> str:
        return usual_precision("cross_entropy")

    def _which(self, values: Mapping[str, Any]) -> tuple[Population, str]:
        of = {(one.data, one.clients): one for one in self.populations}
        method = next(name for name, label in METHODS.items() if label == values["method"])
        return of[values["data"], values["m"]], method

    # -- what came of it ---------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        ours = "ifca" if self.preset == "text" else "ifca-1"
        whole = [p for p in self.populations if self.preset == "text" or p.data == "CIFAR"]
        found = [_order(population, ours, self.scale == "paper") for population in whole]
        mnist = [population for population in whole if population.data == "MNIST"]
        if mnist:
            found.append(_rises([f"{population.name} ifca" for population in mnist]))
        for population in whole:
            found += [_identities(population, method) for method in METHODS if self._has(population, method)]
        if self.scale == "paper":
            for population in whole:
                both = [method for method in METHODS if self._has(population, method)]
                found += [self._reached(population, method) for method in both]
        if self.scale == "paper" and self.preset == "text":
            found += [self._wanted(population) for population in whole]
        return found

    def _has(self, population: Population, method: str) -> bool:
        name = f"{population.name} {method}"
        return method.startswith("ifca") and any(entry.name == name for entry in self.entries())

    def _reached(self, population: Population, method: str) -> Claim:
        entry = self._entry(population, method)
        paper = entry.published
        assert paper is not None

        def judge(ours: Seeds) -> tuple[str, bool | None]:
            said = f"{self.shown(ours)}; reached is what is not {WITHIN} points below."
            return said, above(100 * ours, paper.mean, -WITHIN)

        return Claim(
            f"{population.name}, {METHODS[method]}: {paper.mean:.2f} ± {paper.deviation:.2f} (Table 1)",
            [entry.name],
            judge,
        )

    def _wanted(self, population: Population) -> Claim:
        of_data = [one for one in self.populations if one.data == population.data]
        least = WANTED[population.data][of_data.index(population)]
        name = f"{population.name} ifca"

        def judge(ours: Seeds, collapsed: Seeds) -> tuple[str, bool | None]:
            said = f"{self.shown(ours)}, and {int(collapsed.sum())} of {len(collapsed)} collapsed."
            return said, bool(100 * ours.mean() >= least and not collapsed.any())

        return Claim(
            f"(a target of ours) {population.name}: best of 5 starts at {least} % on average or above, and "
            "no seed collapsed",
            [name, (name, "collapsed")],
            judge,
        )

    def notes(self) -> list[str]:
        said = [SMALLER] if self.scale != "paper" else []
        return [*said, *(AUTHORS if self.preset == "authors" else TEXT), *BOTH]

    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        from coterie.papers.ifca.beside import beside_published

        facts = [
            f"preset {self.preset}, scale {self.scale}; dots: seeds, line: their mean, diamond: published"
        ]
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries():
            group = f"rotated {entry.values['data']}, m = {entry.values['m']}, n = {entry.values['n']}"
            groups.setdefault(group, []).append(entry)
        return beside_published(self, results, "IFCA, Table 1: test accuracy", facts, groups, "method")


def _order(population: Population, ours: str, paper_size: bool) -> Claim:
    """Among the baselines only at the paper's size: the global model is the slowest to learn."""
    names = [f"{population.name} {method}" for method in (ours, "global", "local")]
    of_both = "our algorithm performs better than the two baselines (section 6.2)"
    of_all = f"{of_both}, and of these the global model better than local ones (Table 1)"

    def judge(ifca: Seeds, one: Seeds, alone: Seeds) -> tuple[str, bool | None]:
        said = ", ".join(f"{100 * a.mean():.2f}" for a in (ifca, one, alone))
        among = [above(one, alone)] if paper_size else []
        verdict = all_of(above(ifca, one), above(ifca, alone), *among)
        return f"IFCA, global, local: {said} %.", verdict

    return Claim(f"{population.name}: {of_all if paper_size else of_both}", names, judge)


def _rises(names: Sequence[str]) -> Claim:
    def judge(*accuracy: Seeds) -> tuple[str, bool | None]:
        said = ", ".join(f"{100 * a.mean():.2f}" for a in accuracy)
        steps = [above(b, a) for a, b in pairwise(accuracy)]
        return f"{said} %.", all_of(*steps)

    return Claim("rotated MNIST: IFCA's accuracy rises with n, as mn stays the same (Table 1)", names, judge)


def _identities(population: Population, method: str) -> Claim:
    name = f"{population.name} {method}"

    def judge(wrong: Seeds, collapsed: Seeds) -> tuple[str, bool | None]:
        found, seeds = int((wrong <= FOUND).sum()), len(wrong)
        said = (
            f"{100 * wrong.mean():.2f} % of the clients misclustered on average, at most {FOUND:.0%} in "
            f"{found} of {seeds} seeds; {int(collapsed.sum())} of {seeds} collapsed."
        )
        return said, found == seeds

    return Claim(
        f"{population.name}, {METHODS[method]}: we can gradually find the underlying cluster identities of "
        "the worker machines (section 6.2)",
        [(name, "misclustering"), (name, "collapsed")],
        judge,
    )


SMALLER = (
    "this scale has fewer clients, training images and rounds than the paper (and a narrower network "
    "for CIFAR-10): the published numbers beside it are for orientation, and nothing is judged by them."
)
BOTH = (
    "the test clients' images are disjoint from all training images and cover the test set at every angle. A "
    "test client takes the model of lowest loss on these very images, labels included, as the paper says.",
    "a local model is tested on all test images of its own rotation, and the mean is over all models.",
    "collapsed: some true cluster has no model of its own, that is, most of its clients take the same model "
    "as most clients of another one. Misclustered are clients in a wrong cluster under the best matching.",
)
TEXT = (
    "not printed, and as in the released code: rounds (300 for MNIST, 600 for CIFAR-10), a plain mean of the "
    "participants' models, PyTorch's usual initial weights, pixels from 0 to 1, widths of the CIFAR network "
    "(64 and 64 channels, 384).",
    "the step size for CIFAR-10 is read as MNIST's, 0.1, which the text gives for LocalUpdate; with decay "
    "0.99. τ = 5 are passes over the client's images. Flipping and cropping: after 4 black pixels around.",
    "how long local models train is not printed. Here: for as many rounds as a client takes part in with "
    "others, on average; all 300 for MNIST, 60 for CIFAR-10.",
    "one start is the paper's protocol. Best of 5 starts is this library's default: after a quarter of the "
    "rounds the start of lowest training loss goes on alone. Only training examples decide that.",
)
AUTHORS = (
    "only what the released code does otherwise: for MNIST the local models, whose training ends after 10 "
    "rounds of 10 steps against 3,000 steps of the others. For one start and global see preset text.",
    "CIFAR-10: TensorFlow's tutorial network on 24 x 24 pixels with its distortions; step size 0.25; "
    "weight decay 0.004 on the dense layers but the last; initial models of IFCA are drawn again until each "
    "is the best for 35 % of 20 clients. Best of 5 starts is not part of that code.",
    "local models for CIFAR-10: 300 rounds, of a tenth of the clients (every tenth here), with images cut to "
    "0 to 1 after they are standardised.",
    "not repeated: half of the local CIFAR models are tested on the other rotation there, so that "
    "33.97 % is no number to be reached; the released script for MNIST's local models does not run. "
    "Clusters are found there on distorted images, with weight decay in the loss; here on the middle "
    "of the images, by the loss alone.",
)


# -- scales ----------------------------------------------------------------------------------------------


def _read(scale: Scale, preset: str) -> Table1:
    dense = (384, 192) if preset == "authors" else (384,)
    if scale == "paper":
        mnist = [(4800, 50, 800), (2400, 100, 400), (1200, 200, 200)]
        populations = [Population("MNIST", *sizes, 300, 1.0, (), (200,)) for sizes in mnist]
        cifar = Population("CIFAR", 200, 500, 40, 600, 0.1, (64, 64), dense)
        return Table1(5, scale, preset, (*populations, cifar))
    if scale == "small":
        mnist = [(96, 50, 800), (48, 100, 400), (24, 200, 200)]
        populations = [Population("MNIST", *sizes, 40, 1.0, (), (200,)) for sizes in mnist]
        cifar = Population("CIFAR", 8, 120, 40, 12, 0.5, (16, 16), tuple(w // 6 for w in dense))
        return Table1(3, scale, preset, (*populations, cifar))
    mnist = [(16, 5, 8), (8, 10, 4)]
    populations = [Population("MNIST", *sizes, 3, 1.0, (), (16,)) for sizes in mnist]
    cifar = Population("CIFAR", 4, 10, 2, 2, 0.5, (4, 4), tuple(w // 24 for w in dense))
    return Table1(2, scale, preset, (*populations, cifar))


FIGURE = Figure(
    "ifca/table1", "IFCA, Table 1: rotated MNIST and CIFAR-10", _read, scales=("smoke", "small", "paper")
)
