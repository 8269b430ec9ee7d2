"""The picture of a panel of Figure 2 of the IFCA paper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter
from matplotlib.transforms import offset_copy

from coterie.papers.experiment import Row
from coterie.papers.ifca.claims import STARTS
from coterie.papers.ifca.panel import Panel
from coterie.papers.pictures import DASHES, titled
from coterie.run.report.style import INK, MUTED, PALETTE

MARKS = ("o", "s", "D", "^", "v", "P", "X")
MEANING = {
    "R": "separation R, the norm of the true models",
    "sigma": "noise σ",
    "m": "clients m (log scale)",
    "n": "examples per client n",
}
SYMBOLS = {"R": "R", "sigma": "σ", "m": "m", "n": "n"}


def success_curves(panel: Panel, rows: Sequence[Row]) -> Figure:
    """Success against one quantity, a line for each value of another; against mn too, where that varies.

    Starts of either scale have axes of their own.
    """
    by_amount = panel.across == "m"
    starts = len(panel.start)
    figure = titled(
        f"IFCA, Figure 2({panel.letter}): how often the true models are recovered",
        _facts(panel),
        (9.6, 2.0 + 2.9 * starts) if by_amount else (2.2 + 4.4 * starts, 4.9),
    )
    shape = (starts, 2) if by_amount else (1, starts)
    grid = figure.subplots(*shape, squeeze=False, sharex="col", sharey=True)
    for number, start in enumerate(panel.start):
        beside, all_examples = grid[number] if by_amount else (grid[0, number], None)
        _lines(beside, all_examples, panel, [row for row in rows if row["start"] == start])
        beside.set_title(STARTS[start], fontsize=9, color=MUTED, loc="left")
    for axes in grid[-1]:
        axes.set_xlabel(_meaning(panel))
    if by_amount:
        grid[-1, -1].set_xlabel("examples in all, mn (log scale)")
    for axes in grid[:, 0]:
        axes.set(ylabel="trials that succeed", ylim=(-0.04, 1.04))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in grid.flat:
        axes.grid(axis="y")
        axes.tick_params(length=0)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), handlelength=3.4, labelcolor=INK
    )
    return figure


def _lines(beside: Axes, all_examples: Axes | None, panel: Panel, rows: Sequence[Row]) -> None:
    """The lines of one scale of starts, beside each other, and against mn on axes of their own."""
    lines = sorted({row[panel.by] for row in rows})
    for number, value in enumerate(lines):
        line = [row for row in rows if row[panel.by] == value]
        label = f"{SYMBOLS[panel.by]} = {value:g}"
        if panel.preset == "text" and "+" in line[0]["rule"]:
            label += " (within 0.001)"
        # beside each other, so that none hides another
        aside = 3.0 * (number - (len(lines) - 1) / 2)
        _curve(beside, line, [row[panel.across] for row in line], number, aside, label)
        if all_examples is not None:
            _curve(all_examples, line, [row["m"] * row["n"] for row in line], number, 0.0, None)
    _ticks(beside, sorted({row[panel.across] for row in rows}), log=all_examples is not None)
    if all_examples is not None:
        _amounts(all_examples, panel, rows)


def _meaning(panel: Panel) -> str:
    if panel.preset == "authors" and panel.across == "R":
        return "separation R, the factor on the Bernoulli coordinates"
    return MEANING[panel.across]


def _curve(
    axes: Axes, rows: Sequence[Row], at: Sequence[float], number: int, aside: float, label: str | None
) -> None:
    """A line with the interval of every point, `aside` from its place by so many points of a printer.

    Hollow where half of the successes or more do not tell the true models apart.
    """
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
    for value, row in zip(at, rows, strict=True):
        if 0 < row["success"] >= 2 * row["told apart"]:
            mark = axes.plot([value], [row["success"]], MARKS[number % len(MARKS)], clip_on=False)
            mark[0].set(mfc="white", mec=shade, mew=1.4, ms=5.2, transform=place, zorder=3)
    axes.update_datalim([(value, 0.5) for value in at])


def _amounts(axes: Axes, panel: Panel, rows: Sequence[Row]) -> None:
    """The axis of mn, and where on it the true models could be had if the clusters were known."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_sparse(sorted({row["m"] * row["n"] for row in rows}))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.axvline(panel.enough, color=MUTED, lw=1, ls=(0, (2, 2)), zorder=0)
    axes.annotate(
        "enough if the clusters were known",
        (panel.enough, 1.0),
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


def _facts(panel: Panel) -> list[str]:
    """The problem and how it was tried."""
    fixed = {"k": panel.k, "d": panel.dim}
    for name in ("m", "n", "R", "sigma"):
        if name not in (panel.across, panel.by):
            fixed[SYMBOLS[name]] = getattr(panel, name)[0]
    sizes = ", ".join(f"{name} = {value:g}" for name, value in fixed.items())
    compared = {
        "text": "under the best matching of learned and true models",
        "authors": "each learned model against the true one nearest to it",
    }[panel.preset]
    slack = f" + {panel.released_slack:g}" if panel.released_slack and panel.preset == "authors" else ""
    tried = f"{panel.starts} starts × {len(panel.rates)} step sizes"
    return [
        f"preset {panel.preset}, scale {panel.scale}: {sizes}; {panel.trials} trials, with 95 % intervals",
        f"success: for one of {tried}, after {panel.rounds} rounds, dist ≤ 0.6σ{slack},",
        compared,
        "hollow: half of the successes or more do not tell the true models apart",
    ]
