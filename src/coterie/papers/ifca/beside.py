"""The picture of a table: what each method reaches with every seed, beside what is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from coterie.papers.experiment import Arrays
from coterie.papers.pictures import titled
from coterie.papers.seeds import Entry, Table
from coterie.run.report.style import INK, MUTED, PALETTE


def beside_published(
    table: Table,
    results: Mapping[str, Arrays],
    title: str,
    facts: Sequence[str],
    groups: Mapping[str, Sequence[Entry]],
    label: str,
) -> Figure:
    """A panel for each group of entries, a row for each of them, called by its value `label`."""
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    most = max(len(entries) for entries in groups.values())
    figure = titled(title, facts, (5.2 * columns + 0.6, 1.1 + (0.75 + 0.3 * most) * rows))
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (group, entries) in zip(panels.flat, groups.items(), strict=False):
        _panel(axes, table, results, entries, label)
        axes.set_title(group, fontsize=10, weight="bold", loc="left")
    for axes in panels.flat[len(groups) :]:
        axes.set_axis_off()
    of = f"{table.measure} (%)" if table.percent else table.measure
    for axes in panels.flat[: len(groups)][-columns:]:  # with none below them
        axes.set_xlabel(of)
    published = Line2D([], [], marker="D", mfc="none", mec=INK, ls="", ms=6, label="published")
    seeds = Line2D([], [], marker="o", color=PALETTE[0], ls="", ms=5, alpha=0.6, label="ours, a seed")
    mean = Line2D([], [], marker="|", color=PALETTE[0], ls="", ms=12, mew=2.2, label="ours, the mean")
    figure.legend(handles=[seeds, mean, published], loc="outside lower center", ncols=3, labelcolor=INK)
    return figure


def _panel(
    axes: Axes, table: Table, results: Mapping[str, Arrays], entries: Sequence[Entry], label: str
) -> None:
    scale = 100 if table.percent else 1
    for row, entry in enumerate(entries):
        ours = scale * table.over_seeds(results, entry.name)
        if len(ours):
            axes.plot(ours, np.full(len(ours), row), "o", color=PALETTE[0], ms=5, alpha=0.6, mew=0)
            axes.vlines(ours.mean(), row - 0.28, row + 0.28, color=PALETTE[0], lw=2.2)
        else:
            axes.annotate(
                "not computed", (0.5, row), xycoords=("axes fraction", "data"), va="center", color=MUTED
            )
        if entry.published is not None:
            paper = entry.published
            axes.errorbar(
                paper.mean,
                row,
                xerr=paper.deviation,
                fmt="D",
                mfc="none",
                mec=INK,
                ecolor=MUTED,
                ms=6,
                lw=1.2,
            )
    axes.set_yticks(range(len(entries)), [str(entry.values[label]) for entry in entries])
    axes.set_ylim(len(entries) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="x")
    axes.tick_params(length=0)
