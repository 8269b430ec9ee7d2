"""Pictures for the papers' figures, on white paper, in the colours of our reports."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)
from matplotlib.transforms import offset_copy

from coterie.papers.claims import METHODS
from coterie.papers.experiment import Arrays, Row
from coterie.papers.populations import POPULATIONS
from coterie.papers.srfca import Compared
from coterie.papers.success import SLACK, Success
from coterie.run.report.style import INK, MUTED, PALETTE, STYLE
from coterie.words import count

MARKS = ("o", "s", "D", "^", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (6, 2, 1.2, 2)), (0, (1.2, 1.6)))
MEANING = {
    "R": "separation R, the norm of the true models",
    "sigma": "noise σ",
    "m": "clients m (log scale)",
    "n": "examples per client n",
}
SYMBOLS = {"R": "R", "sigma": "σ", "m": "m", "n": "n"}


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


def success_curves(experiment: Success, rows: Sequence[Row]) -> Figure:
    """Success against one quantity, a line for each value of another; against mn too, where that varies."""
    by_amount = experiment.across == "m"
    facts = _facts(experiment)
    figure = titled(
        f"IFCA, Figure {experiment.panel}: how often the true models are recovered",
        facts,
        (9.6 if by_amount else 7.2, 4.6),
    )
    panels = figure.subplots(1, 2 if by_amount else 1, squeeze=False, sharey=True)[0]
    lines = sorted({row[experiment.by] for row in rows})
    for number, value in enumerate(lines):
        line = [row for row in rows if row[experiment.by] == value]
        label = f"{SYMBOLS[experiment.by]} = {value:g}"
        if experiment.preset == "text" and "+" in line[0]["rule"]:
            label += " (within 0.001)"
        # beside each other, so that none hides another
        aside = 3.0 * (number - (len(lines) - 1) / 2)
        _curve(panels[0], line, [row[experiment.across] for row in line], number, aside, label)
        if by_amount:
            _curve(panels[1], line, [row["m"] * row["n"] for row in line], number, 0.0, None)
    _ticks(panels[0], sorted({row[experiment.across] for row in rows}), log=by_amount)
    meaning = MEANING[experiment.across]
    if experiment.preset == "authors" and experiment.across == "R":
        meaning = "separation R, the factor on the Bernoulli coordinates"
    panels[0].set(xlabel=meaning, ylabel="trials that succeed", ylim=(-0.04, 1.04))
    panels[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in panels:
        axes.grid(axis="y")
        axes.tick_params(length=0)
    if by_amount:
        _amounts(panels[1], experiment, rows)
    figure.legend(loc="outside lower center", ncols=len(lines), handlelength=3.4, labelcolor=INK)
    return figure


def compared_methods(experiment: Compared, results: Mapping[str, Arrays]) -> Figure:
    """How well each method serves the clients, and the distances after SR-FCA's ONE_SHOT."""
    rows = len(experiment.populations)
    figure = titled(
        "SR-FCA and other methods on clients with known clusters",
        [
            f"{experiment.clients} clients, {count(experiment.trials, 'trial')} (dots) and the mean (line), "
            "as many local steps for each method" + at_scale(experiment.scale),
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


def at_scale(scale: str) -> str:
    """What a reader is told of a scale that is not the paper's."""
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


def _curve(
    axes: Axes, rows: Sequence[Row], at: Sequence[float], number: int, aside: float, label: str | None
) -> None:
    """A line with the interval of every point, `aside` from its place by so many points of a printer."""
    success, low, high = (np.array([row[name] for row in rows]) for name in ("success", "low", "high"))
    shade = PALETTE[number % len(PALETTE)]
    place = offset_copy(axes.transData, axes.get_figure(root=True), aside, 0, units="points")
    axes.vlines(at, low, high, color=shade, lw=1.4, alpha=0.6, transform=place)
    axes.plot(
        at,
        success,
        color=shade,
        ls=DASHES[number % len(DASHES)],
        marker=MARKS[number % len(MARKS)],
        lw=1.6,
        ms=6,
        mec="white",
        mew=0.8,
        label=label,
        clip_on=False,
        transform=place,
    )
    axes.update_datalim([(value, 0.5) for value in at])


def _amounts(axes: Axes, experiment: Success, rows: Sequence[Row]) -> None:
    """The axis of mn, and where on it the true models could be had if the clusters were known."""
    axes.set(xscale="log", xlabel="examples in all, mn (log scale)")
    axes.xaxis.set_major_locator(FixedLocator(_sparse(sorted({row["m"] * row["n"] for row in rows}))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.axvline(experiment.enough, color=MUTED, lw=1, ls=(0, (2, 2)), zorder=0)
    axes.annotate(
        "enough if the clusters were known",
        (experiment.enough, 1.0),
        (0, 2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
        color=MUTED,
    )


def _ticks(axes: Axes, values: Sequence[float], log: bool) -> None:
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _sparse(values: Sequence[float]) -> list[float]:
    """Some of the values, no two of which would overlap as labels on a logarithmic axis."""
    kept = [values[0]]
    for value in values[1:]:
        if np.log(value / kept[-1]) > np.log(values[-1] / values[0]) / 6.5:
            kept.append(value)
    return kept


def _facts(experiment: Success) -> list[str]:
    """The problem and how it was tried."""
    fixed = {"k": experiment.k, "d": experiment.dim}
    for name in ("m", "n", "R", "sigma"):
        if name not in (experiment.across, experiment.by):
            fixed[SYMBOLS[name]] = getattr(experiment, name)[0]
    sizes = ", ".join(f"{name} = {value:g}" for name, value in fixed.items())
    scale = at_scale(experiment.scale)
    compared = {
        "text": "under the best matching of learned and true models",
        "authors": "each learned model against the true one nearest to it (preset: authors)",
    }[experiment.preset]
    slack = f" + {SLACK:g}" if experiment.lenient and experiment.preset == "authors" else ""
    tried = f"{experiment.starts} starts × {len(experiment.rates)} step sizes"
    return [
        f"{sizes}{scale}; {experiment.trials} trials, with 95 % intervals",
        f"success: for one of {tried}, after {experiment.rounds} rounds, dist ≤ 0.6σ{slack},",
        compared,
    ]
