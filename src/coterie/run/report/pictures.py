"""Pictures of a run, as SVG to stand inside a page.

Colour always means the cluster, so methods differ by the form of their lines and marks. Greys and the accent
are variables of the page, which knows whether it is light or dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice, pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis, YAxis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from coterie.clustering import History
from coterie.run.contents import Measure
from coterie.run.report.style import ACCENT, GRID, INK, MUTED, PAPER, UNKNOWN, WIDTH, colour, picture

DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (9, 3)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
)
MARKS = ("D", "^", "s", "v", "P", "X")
NAMED = 60  # up to so many clients get a place and a name of their own
CELLS = 600  # rows or columns of an image: beyond that, a screen has no pixels for them

# -- one picture each ------------------------------------------------------------------------------------


@picture
def loss_per_round(methods: Sequence[tuple[str, History]]) -> Figure:
    """Training loss by round: the first method with all its restarts, then the other methods."""
    figure, axes = _figure(3.3)
    name, history = methods[0]
    others = np.delete(history.restarts, history.restart, axis=1)
    mark = "o" if max(len(h) for _, h in methods) == 1 else ""
    rounds = np.arange(1, len(history) + 1)
    axes.plot(rounds, _losses(history), color=ACCENT, lw=2.2, marker=mark, zorder=3, label=name)
    for r, restart in enumerate(others.T):
        label = f"{others.shape[1]} other restart{'s' if others.shape[1] > 1 else ''} of {name}"
        axes.plot(
            rounds, restart, color=MUTED, lw=0.7, alpha=0.4, marker=mark, label=label if r == 0 else None
        )
    for (other, past), dash in zip(methods[1:], cycle(DASHES)):
        axes.plot(
            np.arange(1, len(past) + 1), _losses(past), color=MUTED, lw=1.6, ls=dash, marker=mark, label=other
        )
    shown = np.concatenate([others.ravel(), *(_losses(h) for _, h in methods)])
    axes.set(xlabel="round", ylabel="mean training loss")
    _count_rounds(axes, max(len(h) for _, h in methods))
    _scale(axes, shown)
    axes.grid(axis="y")
    _legend(figure, axes)
    return figure


@picture
def moves(
    assignments: Int[np.ndarray, "rounds clients"],
    final: Int[np.ndarray, " clients"],
    group_colours: Sequence[str] | None,
    groups: Int[np.ndarray, " clients"] | None,
    ids: np.ndarray,
) -> Figure:
    """Every client's cluster by round, between its true group and the cluster it ended in; then the moves.

    All that concerns clients comes in the order in which they are shown, from top to bottom.
    """
    rounds, clients = assignments.shape
    height = max(0.125 * clients, 1.2) if clients <= NAMED else 4.5
    figure = Figure(figsize=(WIDTH, height + 1.8), layout="constrained")
    main, below = figure.subplots(2, sharex=True, height_ratios=[height, 1])
    colours = _colours(max(int(assignments.max()), int(final.max())) + 1)
    _show(main, assignments.T, lambda cells: colours[cells], (0.5, rounds + 0.5, clients - 0.5, -0.5))
    strips = [main.inset_axes((1.008, 0, 0.014, 1))]
    _show(strips[0], final[:, None], lambda cells: colours[cells], (0, 1, clients - 0.5, -0.5))
    strips[0].set_title("found", fontsize=8, color=MUTED)
    if groups is not None and group_colours is not None:
        strips.append(main.inset_axes((-0.022, 0, 0.014, 1)))
        paint = to_rgba_array(list(group_colours))
        _show(strips[1], groups[:, None], lambda cells: paint[cells], (0, 1, clients - 0.5, -0.5))
        strips[1].set_title("true", fontsize=8, color=MUTED)
    for axes in (main, *strips):
        axes.tick_params(bottom=False, labelbottom=False, left=False, labelleft=False)
        axes.spines[:].set_visible(False)
        for start, _, _ in _bands(final)[1:]:
            axes.axhline(start - 0.5, color=PAPER, lw=1.2)
    leftmost = main if groups is None else strips[1]
    _name_clients(leftmost.yaxis, ids)
    leftmost.set_ylabel(f"{clients:,} clients, by final cluster")
    for start, stop, cluster in _bands(final):
        if (stop - start) / clients * height > 0.14:
            strips[0].text(1.5, (start + stop - 1) / 2, _band_name(cluster), va="center", fontsize=8)
    moved = ((assignments[1:] != assignments[:-1]) & (assignments[:-1] >= 0)).sum(axis=1)
    counts = np.concatenate([[0], moved])
    below.fill_between(np.arange(1, rounds + 1), counts, step="mid", color=ACCENT, alpha=0.25, lw=0)
    below.step(np.arange(1, rounds + 1), counts, where="mid", color=ACCENT, lw=1.2)
    below.set(xlabel="round", ylabel="clients\nthat moved", ylim=(0, max(1, counts.max()) * 1.1))
    below.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    _count_rounds(below, rounds)
    below.grid(axis="y")
    return figure


@picture
def distances(
    edges: Sequence[float], counts: Sequence[int], threshold: float, gap: Sequence[float] | None
) -> Figure:
    """How many pairs of clients are how far apart, and where the cut is."""
    figure, axes = _figure(2.8)
    axes.stairs(counts, edges, fill=True, color=ACCENT, alpha=0.75)
    if gap is not None:
        axes.axvspan(*gap, color=MUTED, alpha=0.12, lw=0)
    axes.axvline(threshold, color=INK, lw=1.3, ls=(0, (4, 2)))
    axes.annotate(
        f"threshold {threshold:.3g}",
        (threshold, 1),
        (4 if threshold < (edges[0] + edges[-1]) / 2 else -4, -3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        ha="left" if threshold < (edges[0] + edges[-1]) / 2 else "right",
        fontsize=8,
        color=INK,
    )
    axes.set(xlabel="distance", ylabel="pairs of clients", ylim=(0, 1.08 * max(1, *counts)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.grid(axis="y")
    return figure


@picture
def heat_map(
    losses: Float[np.ndarray, "clients k"], final: Int[np.ndarray, " clients"], ids: np.ndarray
) -> Figure:
    """Training loss of every client (column) under every model (row), the model it has marked by a dot."""
    clients, k = losses.shape
    height = float(np.clip(0.34 * k, 0.5, 4.5))
    named = clients <= NAMED
    figure, axes = _figure(height + (1.5 if named else 1.0))
    finite = np.isfinite(losses)
    low, high = (losses[finite].min(), losses[finite].max()) if finite.any() else (0.0, 1.0)
    # a model that went astray must not make all others look alike
    norm = LogNorm(low, high) if low > 0 and high > 50 * low else Normalize(low, high)
    shades = ScalarMappable(norm, colormaps["viridis"].with_extremes(bad=UNKNOWN))
    cells = np.ma.masked_array(losses, ~finite).T
    _show(axes, cells, shades.to_rgba, (-0.5, clients - 0.5, k - 0.5, -0.5))
    chosen = np.flatnonzero(final >= 0)
    if named:
        axes.scatter(chosen, final[chosen], s=7, color="white", lw=0)
    _mark_bands(axes, final, clients)
    _name_clients(axes.xaxis, ids)
    axes.set_xlabel(f"{clients:,} clients, by cluster")
    axes.set_yticks(range(0, k, k // 25 + 1), [f"model {j}" for j in range(0, k, k // 25 + 1)])
    axes.tick_params(left=False, bottom=False)
    axes.spines[:].set_visible(False)
    label = "mean training loss" + (" (log scale)" if isinstance(norm, LogNorm) else "")
    bar = figure.colorbar(shades, cax=axes.inset_axes((1.02, 0, 0.018, 1)))
    bar.set_label(label if height > 1.2 else label.replace(" training ", "\ntraining\n"))
    bar.ax.spines[:].set_visible(False)
    if isinstance(norm, LogNorm):
        _log_ticks(bar.ax.yaxis)
    return figure


@picture
def scores_by_client(
    methods: Sequence[tuple[str, Float[np.ndarray, " clients"]]],
    measure: Measure,
    final: Int[np.ndarray, " clients"],
    ids: np.ndarray,
) -> Figure:
    """A mark for each client and method, joined by a line; means as lines across. For few clients."""
    figure, axes = _figure(4.0)
    places = np.arange(len(ids))
    table = np.array([values for _, values in methods])
    known = np.isfinite(table).any(axis=0)
    axes.vlines(
        places[known],
        np.nanmin(table[:, known], axis=0),
        np.nanmax(table[:, known], axis=0),
        color=GRID,
        lw=2,
    )
    name, values = methods[0]
    clusters = _colours(int(final.max()) + 1)[final]
    axes.scatter(places, values, s=28, color=clusters, lw=0, zorder=3)
    axes.plot([], [], color=ACCENT, lw=1.4, marker="o", ms=5.5, mew=0, label=f"{name}, coloured by cluster")
    axes.axhline(float(np.nanmean(values)), color=ACCENT, lw=1.4, zorder=1)
    for (name, values), mark, dash in zip(methods[1:], cycle(MARKS), cycle(DASHES)):
        # hollow and on top, so that a client equally served by two methods shows both
        look: dict[str, Any] = {"color": MUTED, "marker": mark, "ms": 5.5, "mfc": "none", "mew": 0.9}
        axes.plot(places, values, ls="none", zorder=4, **look)
        axes.plot([], [], ls=dash, lw=1.1, label=name, **look)
        axes.axhline(float(np.nanmean(values)), color=MUTED, ls=dash, lw=1.1, zorder=1)
    _mark_bands(axes, final, len(ids))
    _name_clients(axes.xaxis, ids)
    axes.tick_params(bottom=False)
    axes.set(xlim=(-0.7, len(ids) - 0.3), xlabel=f"{len(ids):,} clients, by cluster")
    _measured(axes, measure, table)
    axes.grid(axis="y")
    _legend(figure, axes)
    return figure


@picture
def scores_sorted(methods: Sequence[tuple[str, Float[np.ndarray, " clients"]]], measure: Measure) -> Figure:
    """Every method's clients from worst to best, with a mark where the mean lies. For many clients."""
    figure, axes = _figure(3.6)
    looks = [(ACCENT, 2.2, "-"), *((MUTED, 1.6, dash) for dash in islice(cycle(DASHES), len(methods) - 1))]
    marks = ["o", *islice(cycle(MARKS), len(methods) - 1)]
    share = np.linspace(0, 1, 401)
    for (name, values), (shade, width, dash), mark in zip(methods, looks, marks, strict=True):
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        curve = np.quantile(values, share if measure == "accuracy" else 1 - share)
        mean = values.mean()
        axes.plot(
            100 * share,
            curve,
            color=shade,
            lw=width,
            ls=dash,
            label=name,
            marker=mark,
            ms=6,
            markevery=[int(np.abs(curve - mean).argmin())],
            mfc=PAPER,
            mew=1.4,
        )
    axes.set(xlabel="clients, from worst to best (%)", xlim=(0, 100))
    _measured(axes, measure, np.concatenate([values for _, values in methods]))
    axes.grid()
    _legend(figure, axes)
    return figure


# -- what they share -------------------------------------------------------------------------------------


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _losses(history: History) -> Float[np.ndarray, " rounds"]:
    return history.restarts[:, history.restart]


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the picture, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        [_short(label, 40) for label in labels],
        loc="outside upper left",
        ncols=4,
        handlelength=3,
        columnspacing=2,
        labelcolor=INK,
    )


def _measured(axes: Axes, measure: Measure, values: np.ndarray) -> None:
    if measure == "accuracy":
        axes.set_ylabel("test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        axes.set_ylabel("test loss")
        _scale(axes, values)


def _scale(axes: Axes, values: np.ndarray) -> None:
    """Logarithmic where the values span more than a factor of twenty; plain numbers at the ticks."""
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 20 * values.min():
        axes.set_yscale("log")
        _log_ticks(axes.yaxis)
        axes.set_ylabel(f"{axes.get_ylabel()} (log scale)")


def _log_ticks(axis: Axis) -> None:
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _count_rounds(axes: Axes, rounds: int) -> None:
    axes.set_xlim(0.5, rounds + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def _colours(clusters: int) -> Float[np.ndarray, "clusters+1 4"]:
    """One row per cluster, and a last one, which index -1 finds, for clients without a cluster."""
    return to_rgba_array([*map(colour, range(clusters)), UNKNOWN])


def _show(
    axes: Axes,
    cells: np.ndarray,
    paint: Callable[[np.ndarray], np.ndarray],
    extent: tuple[float, float, float, float],
) -> None:
    """An image of painted cells, in which neighbours share a pixel where there are too many of them."""
    rows, columns = (_edges(n) for n in cells.shape)
    bands = [
        np.add.reduceat(paint(cells[a:b]).mean(axis=0), columns[:-1], axis=0) / np.diff(columns)[:, None]
        for a, b in pairwise(rows)
    ]
    axes.imshow(np.clip(bands, 0, 1), extent=extent, aspect="auto", interpolation="none")


def _edges(count: int) -> Int[np.ndarray, " edges"]:
    return np.linspace(0, count, min(count, CELLS) + 1).astype(int)


def _bands(final: Int[np.ndarray, " clients"]) -> list[tuple[int, int, int]]:
    """Start, stop and cluster of each run of equal clusters; none where too many to be told apart."""
    cuts = [0, *(np.flatnonzero(np.diff(final)) + 1).tolist(), len(final)]
    return [] if len(cuts) > NAMED + 1 else [(a, b, int(final[a])) for a, b in pairwise(cuts)]


def _band_name(cluster: int) -> str:
    return f"cluster {cluster}" if cluster >= 0 else "no cluster"


def _mark_bands(axes: Axes, final: Int[np.ndarray, " clients"], clients: int) -> None:
    """A coloured bar above each cluster's clients, with its name where there is room, and a line between."""
    above = axes.get_xaxis_transform()
    for start, stop, cluster in _bands(final):
        shade = colour(cluster) if cluster >= 0 else UNKNOWN
        axes.plot(
            [start - 0.5, stop - 0.5],
            [1.015, 1.015],
            color=shade,
            lw=4,
            transform=above,
            clip_on=False,
            solid_capstyle="butt",
        )
        if start:
            axes.axvline(start - 0.5, color=PAPER, lw=1.6)
        if (stop - start) / clients > 0.085:
            axes.annotate(
                _band_name(cluster),
                ((start + stop - 1) / 2, 1.015),
                (0, 4),
                xycoords=above,
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
            )


def _name_clients(axis: XAxis | YAxis, ids: np.ndarray) -> None:
    if len(ids) <= NAMED:
        axis.set_ticks(range(len(ids)), [_short(str(name), 18) for name in ids])
        axis.set_tick_params(labelsize=6.5, labelleft=True, rotation=90 if axis.axis_name == "x" else 0)
    else:
        axis.set_ticks([])


def _short(name: str, letters: int) -> str:
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return name if len(name) <= letters else name[: letters - 1] + "…"
