"""Pictures for the papers' figures, on white paper, in the colours of our reports."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from coterie.papers.claims import METHODS
from coterie.papers.experiment import Arrays
from coterie.papers.mixed_regression import Convergence
from coterie.papers.populations import POPULATIONS
from coterie.papers.srfca import Compared
from coterie.run.report.style import INK, MUTED, PALETTE, STYLE
from coterie.words import count

DASHES = ("-", (0, (5, 2)), (0, (6, 2, 1.2, 2)), (0, (1.2, 1.6)))


def rendered(draw: Callable[[], Figure]) -> dict[str, bytes]:
    """A figure as PNG and SVG, by the ending of the file; the same bytes for the same results."""
    files = {}
    with matplotlib.style.context(["default", STYLE | {"svg.hashsalt": "coterie"}]):
        figure = draw()
        for form in ("png", "svg"):
            buffer = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else None
            figure.savefig(buffer, format=form, dpi=160, facecolor="white", metadata=metadata)
            files[form] = buffer.getvalue()
    return files


def error_curves(experiment: Convergence, results: Mapping[str, Arrays]) -> Figure:
    """The error against the iteration: local updates of the two-phase system, and other methods."""
    figure = titled(
        f"Mixed regression, Figure {experiment.figure}: {experiment.title}",
        [
            f"k = {experiment.k}, d = {experiment.dim}, {len(experiment.sizes)} clients with "
            f"{min(experiment.sizes)} to {max(experiment.sizes)} examples" + _at_scale(experiment.scale),
            f"median of {experiment.trials} trials, with quartiles; Phase 1 up to the dotted line",
        ],
        (10.4, 5.4),
    )
    panels = figure.subplots(1, 2, sharey=True)
    arms = experiment.arms()
    left = [name for name, arm in arms.items() if arm.panel == 0]
    right = ["s=5", *(name for name, arm in arms.items() if arm.panel == 1)]
    for axes, names, title in (
        (panels[0], left, "two-phase system, by local update"),
        (panels[1], right, "two-phase system and other methods"),
    ):
        for number, name in enumerate(names):
            error, shade = results[name]["error"], PALETTE[number % len(PALETTE)]
            # a point per pixel or so: every iteration would make the file large
            at = np.unique(
                [*range(2 * experiment.iterations), *range(0, error.shape[1], 5), error.shape[1] - 1]
            )
            low, middle, high = np.quantile(error[:, at], (0.25, 0.5, 0.75), axis=0)
            label = "two-phase, s = 5" if axes is panels[1] and name == "s=5" else arms[name].label
            axes.fill_between(at, low, high, color=shade, alpha=0.15, lw=0)
            axes.plot(at, middle, color=shade, ls=DASHES[number % len(DASHES)], lw=1.7, label=label)
        axes.axvline(experiment.iterations, color=MUTED, lw=1, ls=(0, (1, 2)), zorder=0)
        axes.set(yscale="log", xlabel="iteration")
        axes.set_title(title, fontsize=9, color=MUTED, loc="left")
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.legend(
            fontsize=8,
            labelcolor=INK,
            handlelength=3.0,
            ncols=2,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
        )
    # the oracle starts without any error
    least = min(np.median(results[name]["error"][:, -1]) for name in arms)
    panels[0].set(ylabel="estimation error, max over clusters (log scale)", ylim=(least / 3, None))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].yaxis.set_minor_formatter(NullFormatter())
    return figure


def compared_methods(experiment: Compared, results: Mapping[str, Arrays]) -> Figure:
    """How well each method serves the clients, and the distances after SR-FCA's ONE_SHOT."""
    rows = len(experiment.populations)
    figure = titled(
        "SR-FCA and other methods on clients with known clusters",
        [
            f"{experiment.clients} clients, {count(experiment.trials, 'trial')} (dots) and the mean (line), "
            "as many local steps for each method" + _at_scale(experiment.scale),
            "right: distances of all pairs of clients after ONE_SHOT in the first trial, and the threshold λ",
        ],
        (10.4, 0.7 + 3.3 * rows),
    )
    panels = figure.subplots(rows, 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), population in zip(panels, experiment.populations, strict=True):
        _served(left, experiment, population, results)
        _distances(right, results[f"{population} srfca"], POPULATIONS[population].regression)
    return figure


def _served(axes: Axes, experiment: Compared, population: str, results: Mapping[str, Arrays]) -> None:
    """A row for each method: how well it serves the clients of every trial, and how many it misplaces."""
    for row, method in enumerate(METHODS):
        result = results[f"{population} {method}"]
        served, shade = experiment.served(result, population), PALETTE[0] if method == "srfca" else MUTED
        axes.plot(served, np.full(len(served), row), "o", color=shade, ms=4.5, alpha=0.55, mew=0)
        axes.vlines(served.mean(), row - 0.33, row + 0.33, color=shade, lw=2.2)
        wrong = result["misclustering"].mean()
        axes.annotate(
            "" if method == "local" else f"{wrong:.0%} wrong" if wrong else "all right",
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            color=shade,
        )
    axes.set_yticks(range(len(METHODS)), list(METHODS.values()))
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.tick_params(length=0)
    axes.set_title(population, fontsize=10, weight="bold", loc="left")
    if POPULATIONS[population].regression:
        axes.set_xlabel("test loss, mean over clients")
    else:
        axes.set_xlabel("test accuracy, mean over clients")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _distances(axes: Axes, result: Arrays, regression: bool) -> None:
    """The histogram of Figure 3."""
    threshold = result["threshold"][0]
    axes.stairs(result["counts"][0], result["edges"][0], fill=True, color=PALETTE[0], alpha=0.75)
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
    unit = "Euclidean distance of the models" if regression else "cross-cluster loss (nats)"
    axes.set(xlabel=unit, ylabel="pairs of clients")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(length=0)
    axes.grid(axis="y")


def _at_scale(scale: str) -> str:
    return "" if scale == "paper" else f" (scale: {scale})"


def titled(title: str, facts: Sequence[str], size: tuple[float, float]) -> Figure:
    """An empty figure with a title and small print above where its panels go."""
    figure = Figure(figsize=size, layout="constrained")
    top = 0.1 + 0.22 + 0.16 * len(facts) + 0.08  # inches
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, 1 - top / size[1]))  # type: ignore[call-arg]
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], title, va="top", fontsize=11, weight="bold")
    small_print = "\n".join(facts)
    figure.text(0.1 / size[0], 1 - 0.36 / size[1], small_print, va="top", fontsize=8, color=MUTED)
    return figure
