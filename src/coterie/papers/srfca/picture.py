"""The picture of a comparison, with the histogram of Figure 3."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from coterie.papers.experiment import Arrays
from coterie.papers.pictures import titled
from coterie.papers.srfca.authors import METHODS
from coterie.papers.srfca.comparison import Compared
from coterie.papers.srfca.populations import POPULATIONS
from coterie.run.report.style import INK, MUTED, PALETTE
from coterie.words import count


def compared_methods(experiment: Compared, results: Mapping[str, Arrays]) -> Figure:
    """How well each method serves the clients, and the distances after SR-FCA's ONE_SHOT."""
    rows = len(experiment.populations)
    figure = titled(
        "SR-FCA and other methods on clients with known clusters",
        [
            f"{experiment.clients} clients, {count(experiment.trials, 'trial')} (dots) and the mean (line); "
            f"scale: {experiment.scale}",
            "right: distances of all pairs of clients after ONE_SHOT in the first trial, and the threshold λ",
        ],
        (10.4, 0.7 + (0.5 + 0.2 * len(experiment.methods)) * rows),
    )
    panels = figure.subplots(rows, 2, squeeze=False, width_ratios=(3, 2))
    looked_at = next(method for method in experiment.methods if METHODS[method].course)
    for (left, right), population in zip(panels, experiment.populations, strict=True):
        _served(left, experiment, population, results)
        _distances(right, results[f"{population} {looked_at}"], POPULATIONS[population].regression)
    return figure


def _served(axes: Axes, experiment: Compared, population: str, results: Mapping[str, Arrays]) -> None:
    """A row for each method: how well it serves the clients of every trial, and how many it misplaces."""
    for row, name in enumerate(experiment.methods):
        result, method = results[f"{population} {name}"], METHODS[name]
        served, shade = experiment.served(result, population), PALETTE[0] if method.course else MUTED
        axes.plot(served, np.full(len(served), row), "o", color=shade, ms=4.5, alpha=0.55, mew=0)
        axes.vlines(served.mean(), row - 0.33, row + 0.33, color=shade, lw=2.2)
        wrong = result["misclustering"].mean()
        axes.annotate(
            "" if method.alone else f"{wrong:.{0 if wrong >= 0.01 else 2}%} wrong" if wrong else "all right",
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            color=shade,
        )
    axes.set_yticks(range(len(experiment.methods)), [METHODS[name].label for name in experiment.methods])
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.tick_params(length=0)
    axes.set_title(population, fontsize=10, weight="bold", loc="left")
    if POPULATIONS[population].regression:
        axes.set_xlabel("test loss, mean over clients")
    else:
        axes.set_xlabel("test accuracy, mean over clients")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def mark_threshold(axes: Axes, threshold: float) -> None:
    """A line at λ among the distances."""
    axes.axvline(threshold, color=INK, lw=1.3, ls=(0, (4, 2)))
    axes.annotate(
        f"λ = {threshold:.3g}",
        (threshold, 1),
        (3, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=INK,
    )


def _distances(axes: Axes, result: Arrays, regression: bool) -> None:
    """The histogram of Figure 3."""
    threshold = result["threshold"][0]
    axes.stairs(result["counts"][0], result["edges"][0], fill=True, color=PALETTE[0], alpha=0.75)
    mark_threshold(axes, threshold)
    unit = "Euclidean distance of the models" if regression else "cross-cluster loss (nats)"
    axes.set(xlabel=unit, ylabel="pairs of clients")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(length=0)
    axes.grid(axis="y")
