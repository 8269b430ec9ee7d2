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
    NullFormatter,
    NullLocator,
    PercentFormatter,
)
from matplotlib.transforms import offset_copy

from coterie.papers.experiment import Arrays, Row
from coterie.papers.mixed_regression import Convergence
from coterie.papers.success import SLACK, Success
from coterie.run.report.style import INK, MUTED, PALETTE, STYLE

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
    scale = _at_scale(experiment.scale)
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
