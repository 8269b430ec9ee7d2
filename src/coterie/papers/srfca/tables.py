"""The results of a comparison as tables and notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from coterie.papers.experiment import Arrays, Finding, Point, Row
from coterie.papers.srfca.authors import AUTHORS, METHODS
from coterie.papers.srfca.claims import PUBLISHED
from coterie.papers.srfca.populations import POPULATIONS
from coterie.papers.srfca.tuning import at_the_edge
from coterie.words import count

if TYPE_CHECKING:
    from coterie.papers.srfca.comparison import Compared

COMPARED = (
    "SR-FCA is trained as in the paper: ONE_SHOT and each of two REFINEs take as many steps as another "
    "method in all. With an equal budget it takes a third alone and a third in each REFINE, for which it "
    "starts afresh (warm: from the models it has). IFCA, best of 5, takes five times the steps.",
    "FedSoft is measured by the model of the cluster to which most of a client belongs, and by the "
    "clients' own models.",
    "IFCA, k-means and FedSoft are told the true number of clusters; SR-FCA and CFL are not. λ is the "
    "distance that the given share of all pairs of clients is within; with an automatic λ, β is 0.1.",
    "IFCA from k-means, and k-means then FedAvg, spend a third of the steps alone; they are not the "
    "paper's ONE_SHOT-IFCA (which starts from SR-FCA's ONE_SHOT) and Local-KMeans (which trains no more "
    "after k-means).",
)
RELEASED = (
    "rows called released have the settings of the released code, which were chosen on test data: SR-FCA "
    "with Adam (2.05e-3), λ = 22.2, β = 0.00098, one REFINE; IFCA with SGD (3.9e-4); one model for all "
    "and CFL with SGD (1e-3); batches of 50, and 10 clients per cluster drawn in each round. Other rows "
    "have settings chosen by the loss on held-out training examples, full batches and all clients.",
    "what is wrong in the released code is not repeated. Each client there starts alone from coins of its "
    "own, and not from a common w_0 as printed: here distances are shorter than those that λ = 22.2 was "
    "chosen for. Its trimming drops only the largest value, its CFL splits whatever its criteria say, it "
    "measures models before clients are regrouped, and its FedSoft does not run on these data.",
)
SHOWN = {"rate": "η", "threshold": "λ", "trim": "β", "mu": "μ", "pull": "λ of FedSoft"}


def headline(experiment: Compared, point: Point, result: Arrays) -> str:
    """A point's result in a few words."""
    population, method = point.values["population"], point.values["method"]
    said = _mean(experiment.served(result, population), POPULATIONS[population].regression)
    if not METHODS[method].alone:
        said += f", {result['misclustering'].mean():.1%} misclustered"
    return said


def row(experiment: Compared, point: Point, result: Arrays) -> Row:
    """All numbers of a point."""
    population, method = point.values["population"], point.values["method"]
    served, published = experiment.served(result, population), PUBLISHED.get(population, {}).get(method)
    content: Row = {
        "clients": population,
        "method": METHODS[method].label,
        "measure": "test loss" if POPULATIONS[population].regression else "test accuracy",
        "mean": float(served.mean()),
        "standard deviation": float(served.std()),
        "paper (MNIST)": None if published is None else published[0] / 100,
        "misclustering": None if METHODS[method].alone else float(result["misclustering"].mean()),
        "paper's misclustering": None if published is None else published[1],
        "clusters": _range(result["clusters"]),
        "settings": settings(method, result),
    }
    for name in ("models_down", "models_up", "forward", "steps_taken", "bytes_down", "bytes_up"):
        content[name.replace("_", " ")] = float(result[name].mean())
    return content | {"by Table 1": _by_formula(experiment, population, method, result)}


def short_row(experiment: Compared, point: Point, result: Arrays) -> Row:
    """The main numbers of a point."""
    population, method = point.values["population"], point.values["method"]
    return {
        "clients": population,
        "method": METHODS[method].label,
        "served": _mean(experiment.served(result, population), POPULATIONS[population].regression),
        "wrong": "–" if METHODS[method].alone else f"{result['misclustering'].mean():.1%}",
        "clusters": _range(result["clusters"]),
        "models moved": f"{(result['models_down'] + result['models_up']).mean():,.0f}",
    }


def settings(method: str, result: Arrays) -> str | None:
    """What was chosen, and among what."""
    chosen = METHODS[method].tuned
    if not chosen:
        return None
    parts = []
    for name in chosen:
        value, tried = float(result[f"{name}.chosen"]), result[f"{name}.tried"]
        said, low, high = (_shown(name, float(v)) for v in (value, tried.min(), tried.max()))
        parts.append(f"{SHOWN[name]} = {said} ({low} to {high})")
    return ", ".join(parts)


def inside_the_grids(experiment: Compared, results: Mapping[str, Arrays]) -> Finding:
    """Whether every setting that was chosen has others beside it that are worse."""
    faults, chosen = [], 0
    for point in experiment.points():
        population, method = point.values["population"], point.values["method"]
        for name in METHODS[method].tuned:
            value, tried = float(results[point.name][f"{name}.chosen"]), results[point.name][f"{name}.tried"]
            chosen += 1
            if at_the_edge(name, value, tried.tolist()):
                faults.append(f"{population}, {METHODS[method].label}: {SHOWN[name]} = {_shown(name, value)}")
    return Finding(
        "(a rule of ours) no setting is chosen at the edge of what was tried",
        f"{'; '.join(faults)}." if faults else f"none of the {count(chosen, 'setting')} is.",
        not faults,
    )


def notes(experiment: Compared) -> list[str]:
    """What a reader has to know."""
    released = any(method in AUTHORS for method in experiment.methods)
    return [
        *(RELEASED if released else COMPARED),
        "settings are chosen one after another until none changes, by the loss on the last fifth of each "
        "client's training examples in a draw that is not among the trials; what was tried is in brackets, "
        "and is extended until the best lies inside. All draws of digits have the same test images, and "
        "none trains on them.",
        "forward counts the losses of a model on a client's examples that were computed to find clusters; "
        "Table 1 leaves ONE_SHOT out, which takes m models more, and m x m with cross losses.",
        *(POPULATIONS[population].note for population in experiment.populations),
    ]


def _by_formula(experiment: Compared, population: str, method: str, result: Arrays) -> str | None:
    """What Table 1 says of communication, training steps and forward passes, with our numbers put in."""
    m, t, e, refines = experiment.clients, experiment.rounds, experiment.local, 2
    if method == "ifca":
        k = POPULATIONS[population].k
        return f"{m * t * k:,} models, {m * t * e:,} steps, {m * t * k:,} passes"
    if method in ("srfca", "srfca-auto", "srfca-equal", "srfca-warm"):
        t = t if method in ("srfca", "srfca-auto") else max(1, t // 3)
        k = int(np.median(result["clusters"]))
        models, steps = m * t * refines + m * k * refines, m * t * e * refines
        return f"{models:,} models, {steps:,} steps, {m * k * refines:,} passes"
    return None


def _mean(values: np.ndarray, regression: bool) -> str:
    form = ".4f" if regression else ".2%"
    return f"{values.mean():{form}}±{values.std():{form}}"


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.3g} %" if name == "threshold" else f"{value:.3g}"
