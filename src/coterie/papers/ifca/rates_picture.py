"""The picture of the rates: distances by round, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from coterie.papers.experiment import Arrays
from coterie.papers.ifca.rates import CONTRACTIONS, Case
from coterie.papers.pictures import DASHES, titled
from coterie.run.report.style import INK, MUTED, PALETTE

if TYPE_CHECKING:
    from coterie.papers.ifca.rates import Rates


def rates(table: Rates, results: Mapping[str, Arrays]) -> Figure:
    """Contraction, and how the distance in the end depends on m, n' and the separation."""
    figure = titled(
        "IFCA, Corollary 1 and Theorem 2: distance to the true models",
        [
            f"scale {table.scale}; means over {table.how_many(results)} of {table.runs} runs each",
            "thin grey dots: the power -1/2 of mn', as printed",
        ],
        (11.4, 6.6),
    )
    panels = figure.subplot_mosaic([["course", "course", "of"], ["examples", "misplaced", "separation"]])
    _courses(panels["course"], table, results)
    panels["of"].set_axis_off()
    lines, labels = panels["course"].get_legend_handles_labels()
    panels["of"].legend(lines, labels, loc="center left", labelcolor=INK, handlelength=3.4)
    for number, sweep in enumerate(("corollary m", "corollary n", "theorem m", "theorem n")):
        _sweep(panels["examples"], table, results, table.there(sweep), number)
    panels["examples"].set(xlabel="examples of all clients in a round, mn'", ylabel="distance in the end")
    _shares(panels["misplaced"], table, results)
    cases = table.there("separation")
    values = [table.over_seeds(results, case.name) for case in cases]
    label = f"σ = {cases[0].sigma:g}, n' = {cases[0].n}, m = {cases[0].m}"
    _points(panels["separation"], [case.delta for case in cases], values, 0, label)
    panels["separation"].set(xlabel="separation Δ", ylabel="distance in the end", ylim=(0, None))
    panels["separation"].xaxis.set_major_locator(FixedLocator([case.delta for case in cases]))
    for name, axes in panels.items():
        axes.grid(axis="y")
        axes.tick_params(length=0, which="both")
        if axes.get_yscale() == "log":
            axes.yaxis.set_major_locator(LogLocator(subs=(1,) if name == "course" else (1, 2, 3, 5)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if name in ("examples", "misplaced", "separation") and axes.has_data():
            axes.legend(fontsize=8, labelcolor=INK, handlelength=2.6)
    return figure


def _courses(axes: Axes, table: Rates, results: Mapping[str, Arrays]) -> None:
    for number, case in enumerate(CONTRACTIONS):
        found = table.over_seeds(results, case.name, "course")
        if not len(found):
            continue
        first = "Corollary 1" if case.theory == "corollary" else "Theorem 2"
        label = f"{first}: k = {case.k}, p = {case.p:g}" + (f", λ/L = {case.mu:g}" if case.mu < 1 else "")
        shade = PALETTE[number % len(PALETTE)]
        rounds = np.arange(found.shape[1])
        axes.plot(rounds, found.mean(axis=0), color=shade, ls=DASHES[number % len(DASHES)], label=label)
    axes.set(xlabel="round", ylabel="distance", yscale="log")
    if axes.get_ylim()[1] > 1:  # one of them diverges
        axes.set_ylim(top=1)
    axes.set_title(f"σ = {CONTRACTIONS[0].sigma:g}, and so nearly no error floor", fontsize=10, loc="left")


def _sweep(
    axes: Axes, table: Rates, results: Mapping[str, Arrays], cases: Sequence[Case], number: int
) -> None:
    of, symbol = ("Corollary 1", "Theorem 2")[number // 2], ("m", "n'")[number % 2]
    at = [case.m * case.n for case in cases]
    values = [table.over_seeds(results, case.name) for case in cases]
    _points(axes, at, values, number, f"{of}, more {symbol}")
    axes.set(xscale="log", yscale="log")
    known = [(x, y.mean()) for x, y in zip(at, values, strict=True) if len(y)]
    if known and symbol == "m":
        (x, y), line = known[0], np.array([at[0], at[-1]])
        axes.plot(line, y * np.sqrt(x / line), color=MUTED, lw=1, ls=(0, (1, 2)))
    axes.xaxis.set_major_locator(FixedLocator(at))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _shares(axes: Axes, table: Rates, results: Mapping[str, Arrays]) -> None:
    cases = table.there("misplaced")
    values = [100 * table.over_seeds(results, case.name, "misplaced") for case in cases]
    _points(axes, [case.n for case in cases], values, 0, f"Δ = σ, m = {cases[0].m}")
    axes.set(xlabel="examples n' to find the cluster by", ylabel="clients misplaced (%)", yscale="log")
    axes.xaxis.set_major_locator(FixedLocator([case.n for case in cases]))


def _points(axes: Axes, at: Sequence[float], values: Sequence[np.ndarray], number: int, label: str) -> None:
    there = [(x, y) for x, y in zip(at, values, strict=True) if len(y)]
    if not there:
        return
    xs, ys = [x for x, _ in there], [y.mean() for _, y in there]
    shade = PALETTE[number]
    axes.plot(xs, ys, color=shade, ls=DASHES[number], marker="o", ms=5, mec="white", label=label)
    for x, y in there:
        axes.plot(np.full(len(y), x), y, ".", color=shade, ms=4, alpha=0.5)
