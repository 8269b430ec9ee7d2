"""The pictures of Tables 1 to 5 and of Figure 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

from coterie.papers.experiment import Arrays
from coterie.papers.pictures import at_scale, titled
from coterie.papers.seeds import Published
from coterie.papers.srfca.picture import mark_threshold
from coterie.papers.srfca.published import COSTS, COURSE, NAMES, STEPS
from coterie.run.report.style import INK, MUTED, PALETTE

if TYPE_CHECKING:
    from coterie.papers.srfca.views import Costs, OwnData

SHORT = {"after ONE_SHOT": "ONE_SHOT", "after 1st REFINE": "1st REFINE", "after 2nd REFINE": "2nd REFINE"}
COUNTED = {
    "models moved": "models moved, down and up",
    "steps": "local steps of clients",
    "passes": "losses of a model on a client's examples",
}


def of_methods(view: OwnData, results: Mapping[str, Arrays], title: str) -> Figure:
    """A panel for each data set, and in it a row for each method."""
    entries = {data: [e for e in view.entries() if e.name.split(" ")[0] == data] for data in view.of}
    most, across = max(map(len, entries.values())), 2
    down = -(-len(entries) // across)
    facts = [
        f"dots: each seed; line: their mean{at_scale(view.scale)}",
        "hollow: as published" + (", mean ± standard deviation" if view.percent else ""),
    ]
    figure = titled(title, facts, (10.4, 0.9 + (0.75 + 0.25 * most) * down))
    panels = figure.subplots(down, across, squeeze=False).flat
    for axes in list(panels)[len(entries) :]:
        axes.set_axis_off()
    for axes, (data, rows) in zip(figure.axes, entries.items(), strict=False):
        for row, entry in enumerate(rows):
            shade = PALETTE[0] if "srfca" in entry.name else MUTED
            values = view.over_seeds(results, entry.name)
            axes.plot(values, np.full(len(values), row), "o", color=shade, ms=4.5, alpha=0.55, mew=0)
            if len(values):
                axes.vlines(values.mean(), row - 0.3, row + 0.3, color=shade, lw=2.2)
            _published(axes, entry.published, row, 100 if view.percent else 1)
        _rows(axes, [str(entry.values["method"]) for entry in rows], NAMES[data])
        if view.percent:
            axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    return figure


def _published(axes: Axes, paper: Published | None, row: float, unit: float) -> None:
    if paper is not None:
        reach = None if paper.deviation is None else paper.deviation / unit
        axes.errorbar(paper.mean / unit, row, xerr=reach, fmt="D", ms=4.5, mfc="white", color=INK, lw=1)


def _rows(axes: Axes, labels: list[str], name: str) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.tick_params(length=0)
    axes.set_title(name, fontsize=10, weight="bold", loc="left")


def of_steps(view: OwnData, results: Mapping[str, Arrays]) -> Figure:
    """Accuracy step by step, a panel for each data set."""
    facts = [f"lines and dots: each seed{at_scale(view.scale)}", "hollow: as published"]
    across = min(3, len(view.of))
    down = -(-len(view.of) // across)
    figure = titled("SR-FCA: test accuracy after each step", facts, (3.4 * across, 0.9 + 2.2 * down))
    panels = figure.subplots(down, across, squeeze=False)
    for axes in panels.flat[len(view.of) :]:
        axes.set_axis_off()
    places = np.arange(len(STEPS))
    for axes, data in zip(panels.flat, view.of, strict=False):
        course = np.array([view.over_seeds(results, f"{data} srfca", step) for step in STEPS])
        axes.plot(places, course, "o-", color=PALETTE[0], ms=3.5, lw=1, alpha=0.7)
        paper = [COURSE[data, step].mean / 100 for step in STEPS]
        axes.plot(places, paper, "D--", color=INK, mfc="white", ms=4.5, lw=1)
        axes.set_xticks(places, [SHORT[step] for step in STEPS], fontsize=8)
        axes.set_xlim(-0.3, len(STEPS) - 0.7)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.set_title(NAMES[data], fontsize=10, weight="bold", loc="left")
    return figure


def of_costs(view: Costs, results: Mapping[str, Arrays]) -> Figure:
    """What methods take, a row for each, on a scale of powers of ten; a mark for each data set."""
    names = list(dict.fromkeys(method for _, method in view.of_each()))
    facts = [f"as counted in each run, mean over seeds{at_scale(view.scale)}; 0 is not shown"]
    figure = titled("What each method takes", facts, (10.4, 1.5 + 0.32 * len(names)))
    panels = figure.subplots(1, len(COSTS), sharey=True)
    marks = "os^D"
    for axes, what in zip(panels, COSTS, strict=True):
        for place, data in enumerate(view.of):
            for row, method in enumerate(names):
                values = view.over_seeds(results, f"{data} {method}", what)
                if len(values) and values.mean() > 0:
                    # a little apart, so that one does not hide another
                    height = row + 0.14 * (place - (len(view.of) - 1) / 2)
                    axes.plot(values.mean(), height, marks[place], color=PALETTE[place], ms=5, mew=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(COUNTED[what])
        _rows(axes, [view.label(name) for name in names], "")
    keys = [
        Line2D([], [], marker=marks[i], color=PALETTE[i], ls="", label=NAMES[data])
        for i, data in enumerate(view.of)
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=8)
    return figure


def of_distances(view: OwnData, results: Mapping[str, Arrays]) -> Figure:
    """The histogram of the distances of all pairs, of the first seed that there is."""
    facts = [f"all pairs of clients with the first seed, and the automatic λ{at_scale(view.scale)}"]
    figure = titled("Cross-cluster losses after ONE_SHOT", facts, (4.6 * len(view.of), 3.4))
    for axes, data in zip(figure.subplots(1, len(view.of), squeeze=False).flat, view.of, strict=True):
        trials = [t for t in range(view.trials) if f"{data} srfca seed {t}" in results]
        axes.set_title(NAMES[data], fontsize=10, weight="bold", loc="left")
        axes.set(xlabel="cross-cluster loss (nats)", ylabel="pairs of clients")
        axes.tick_params(length=0)
        if not trials:
            continue
        result = results[f"{data} srfca seed {trials[0]}"]
        distances, threshold = result["distances"], float(result["threshold"])
        axes.hist(distances[np.triu_indices(len(distances), 1)], bins=40, color=PALETTE[0], alpha=0.75)
        mark_threshold(axes, threshold)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.grid(axis="y")
    return figure
