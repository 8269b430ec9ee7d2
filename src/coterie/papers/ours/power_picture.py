"""The picture of power: above how often the number of groups is right, below what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter
from matplotlib.transforms import offset_copy

from coterie.papers.experiment import Arrays
from coterie.papers.ifca.significance import interval
from coterie.papers.ours.methods import LABELS
from coterie.papers.pictures import DASHES, at_scale, titled
from coterie.run.report.style import INK, MUTED, PALETTE

if TYPE_CHECKING:
    from coterie.papers.ours.power import Power

MARKS = ("o", "s", "D", "^")
ASIDE = 2.5  # points of a printer, by which a line is beside the next
TICKS = (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10)  # of multiples of a loss


def panels(power: Power, results: Mapping[str, Arrays]) -> Figure:
    """Two rows, a column for each axis."""
    from coterie.papers.ours.power import APART, at_base

    facts = [
        f"{power.how_many(results)}{at_scale(power.scale)}; above: with 95 % intervals, below: mean and its "
        "standard error",
        f"Along one axis the others stay: {at_base(power.kind)}",
    ]
    figure = titled(f"Two groups, and how often they are found: {power.kind}", facts, (10.0, 5.6))
    grid = figure.subplots(2, len(power.axes), sharex="col", sharey="row", squeeze=False)
    names = (APART[power.kind], "examples of a client (log scale)", "clients (log scale)")
    for place, name in enumerate(names):
        for number, method in enumerate(m for m in power.methods if m != "oracle"):
            _line(power, results, grid[:, place], place, method, number)
        _ticks(grid[1, place], [settings[place] for settings in power.axes[place]], log=place > 0)
        grid[1, place].set_xlabel(name)
    above, below = grid[:, 0]
    above.set(ylabel="right number of groups", ylim=(-0.04, 1.04))
    above.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    below.set_ylabel("points below the oracle" if power.percent else "multiple of the oracle's loss")
    if not power.percent:
        below.set_yscale("log")
        below.yaxis.set_major_locator(FixedLocator(TICKS))
        below.yaxis.set_minor_locator(NullLocator())
        below.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axes in grid.flat:
        axes.grid(axis="y")
        axes.tick_params(length=0)
    for axes in grid[1]:
        axes.axhline(0 if power.percent else 1, color=MUTED, lw=0.8, zorder=0)
    handles, labels = grid[1, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), handlelength=3.4, labelcolor=INK
    )
    return figure


def _line(
    power: Power, results: Mapping[str, Arrays], column: np.ndarray, place: int, method: str, number: int
) -> None:
    from coterie.papers.ours.power import COUNTING, entry

    shade = PALETTE[number]
    how = {"color": shade, "ls": DASHES[number], "marker": MARKS[number], "ms": 5, "lw": 1.6, "mec": "white"}
    right, cost = [], []
    for settings in power.axes[place]:
        seeds = power.over_seeds(results, entry(settings, method))
        oracle = power.over_seeds(results, entry(settings, "oracle"))
        if method in COUNTING and len(seeds):
            share = power.over_seeds(results, entry(settings, method), "right")
            right.append((settings[place], share.mean(), *interval(round(share.sum()), len(share))))
        both = min(len(seeds), len(oracle))  # a run that was interrupted may lack the last draws
        if both:
            apart = 100 * (oracle - seeds)[:both] if power.percent else np.log(seeds[:both] / oracle[:both])
            error = apart.std(ddof=1) / np.sqrt(both) if both > 1 else 0.0
            ends = (apart.mean(), apart.mean() - error, apart.mean() + error)
            cost.append((settings[place], *(ends if power.percent else np.exp(ends))))
    for axes, line, label in ((column[0], right, None), (column[1], cost, LABELS[method])):
        if line:
            at, mean, low, high = np.array(line).T
            # beside each other, so that none hides another
            aside = offset_copy(axes.transData, axes.get_figure(root=True), ASIDE * (number - 1), 0, "points")
            axes.vlines(at, low, high, color=shade, lw=1.4, alpha=0.6, transform=aside)
            axes.plot(at, mean, label=label, transform=aside, **how)
            axes.update_datalim(np.array([[at[0], low.min()], [at[-1], high.max()]]))
            axes.autoscale_view()


def _ticks(axes: Axes, values: list[float], log: bool) -> None:
    low, high = min(values), max(values)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        reach = (high / low) ** 0.06 if high > low else 1.5
        axes.set_xlim(low / reach, high * reach)
    else:
        reach = 0.06 * (high - low) or 0.5
        axes.set_xlim(low - reach, high + reach)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
