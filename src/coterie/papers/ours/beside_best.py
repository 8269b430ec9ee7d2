"""The picture of a comparison: how far each method is from the best of those that are not told anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from coterie.papers.experiment import Arrays
from coterie.papers.ours.methods import LABELS, TOLD
from coterie.papers.pictures import at_scale, titled
from coterie.run.report.style import GRID, INK, MUTED, PALETTE

if TYPE_CHECKING:
    from coterie.papers.ours.without_k import WithoutK

COLOURS = LinearSegmentedColormap.from_list("worse, better", [PALETTE[5], "white", PALETTE[0]])
DEEPEST = {True: 5.0, False: np.log(1.25)}  # points, or a factor on the loss, where colours end
PALE = 0.62  # of the colours, so that numbers are read on them
APART = 0.25  # between Discover, those who are not told, those who are, and what is said of them


def beside_best(table: WithoutK, results: Mapping[str, Arrays]) -> Figure:
    """A row for each population, a cell for each method."""
    methods = list(table.methods)
    place = {m: i + APART * ((i > 0) + (m in TOLD)) for i, m in enumerate(methods)}
    best_at, right_at = (max(place.values()) + APART + more for more in (1.1, 2.3))
    against = "the best method that is told nothing, Discover aside"
    number = (
        f"accuracy minus that of {against}, in points"
        if table.percent
        else f"loss as a multiple of that of {against}"
    )
    ends = "5 points" if table.percent else "a quarter"
    facts = [
        f"Equal {table.equal}; mean of {table.how_many(results)}{at_scale(table.scale)}. Numbers: {number}.",
        f"Blue is better and orange worse; colours are deepest from {ends} on.",
    ]
    height = 1.35 + 0.26 * len(table.names)
    figure = titled("Groups without being told how many", facts, (10.0, height))
    axes = figure.subplots()
    for row, name in enumerate(table.names):
        means = {
            m: float(table.over_seeds(results, table.entry(name, m)).mean())
            for m in table.methods_of(name)
            if len(table.over_seeds(results, table.entry(name, m)))
        }
        others = [means[m] for m in means if m != "discover" and m not in TOLD]
        best = None if not others else max(others) if table.percent else min(others)
        for m in methods:
            _cell(axes, table.percent, place[m], row, means.get(m), best, bold=m == "discover")
        said = "–" if best is None else f"{100 * best:.1f} %" if table.percent else f"{best:.3g}"
        axes.text(best_at, row, said, ha="center", va="center", fontsize=8)
        clusters = table.over_seeds(results, table.entry(name, "discover"), "clusters")
        axes.text(
            right_at,
            row,
            _groups(clusters, table.population(name).groups),
            ha="center",
            va="center",
            fontsize=8,
        )
    heads = {
        **{place[m]: LABELS[m] for m in methods},
        best_at: "the best,\nuntold",
        right_at: "groups:\nDiscover right",
    }
    axes.set_xticks(list(heads), [head.replace(", ", ",\n") for head in heads.values()], fontsize=8)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(table.names)), list(table.names))
    axes.set_xlim(-0.55, right_at + 0.65)
    axes.set_ylim(len(table.names) - 0.45, -0.55)
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    return figure


def _cell(
    axes: Axes, points: bool, x: float, row: int, mean: float | None, best: float | None, bold: bool
) -> None:
    if mean is None or best is None:
        axes.text(x, row, "–", ha="center", va="center", color=MUTED, fontsize=8)
        return
    gain = 100 * (mean - best) if points else np.log(best / mean)
    depth = PALE * np.clip(gain / DEEPEST[points], -1, 1)
    axes.add_patch(Rectangle((x - 0.48, row - 0.45), 0.96, 0.9, fc=COLOURS(0.5 + depth / 2), ec=GRID, lw=0.5))
    said = _signed(gain) if points else _multiple(mean / best)
    axes.text(x, row, said, ha="center", va="center", fontsize=8, weight="bold" if bold else "normal")


def _signed(points: float) -> str:
    return "0.0" if abs(points) < 0.05 else f"{points:+.1f}".replace("-", "−")


def _multiple(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _groups(clusters: Float[np.ndarray, " seeds"], groups: int | None) -> str:
    """How many there were: in how many draws as many as there are, or else from how many to how many."""
    if not len(clusters):
        return "–"
    if groups is not None:
        return f"{groups}: {(clusters == groups).sum()} of {len(clusters)}"
    low, high = clusters.min(), clusters.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
