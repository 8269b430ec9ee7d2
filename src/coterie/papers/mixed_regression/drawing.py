"""Pictures for the figures of the mixed-regression paper."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from coterie.papers.experiment import Arrays
from coterie.papers.mixed_regression.changes import CHANGES, Changes
from coterie.papers.mixed_regression.figures import Convergence
from coterie.papers.mixed_regression.mnist import OnDigits
from coterie.papers.mixed_regression.phase_one import NEAR_ENOUGH
from coterie.papers.mixed_regression.problem import TITLES
from coterie.papers.pictures import DASHES, at_scale, titled
from coterie.run.report.style import INK, MUTED, PALETTE
from coterie.words import count


def error_curves(experiment: Convergence, results: Mapping[str, Arrays]) -> Figure:
    """The error against the iteration: local updates of the two-phase system, and other methods."""
    clients = experiment.problem
    least, most = min(clients.sizes), max(clients.sizes)
    examples = count(most, "example") if least == most else f"{least} to {count(most, 'example')}"
    figure = titled(
        f"Mixed regression, Figure {clients.figure}: {TITLES[clients.figure]}",
        [
            f"k = {clients.k}, d = {clients.dim}, {len(clients.sizes)} clients with {examples}"
            + at_scale(experiment.scale),
            f"median of {count(experiment.trials, 'trial')}, with quartiles; Phase 1 up to the dotted line",
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
    lowest = min(np.median(results[name]["error"][:, -1]) for name in arms)
    panels[0].set(ylabel="estimation error, max over clusters (log scale)", ylim=(lowest / 3, None))
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].yaxis.set_minor_formatter(NullFormatter())
    return figure


def first_phases(experiment: Changes, results: Mapping[str, Arrays]) -> Figure:
    """A row for each change: the error after Phase 1, and what came of it."""
    figure = titled(
        f"Mixed regression, clients of Figure {experiment.problem.figure}: Phase 1 as printed, and changed",
        [
            f"error after Phase 1 in {count(experiment.trials, 'trial')} (dots) and its median (line); left "
            "of the dotted line Theorem 2 has Phase 2 converge" + at_scale(experiment.scale),
            "at the right: in how many trials Phase 2 ends as good as the oracle",
        ],
        (8.4, 0.9 + 0.33 * len(CHANGES)),
    )
    axes = figure.subplots()
    for row, name in enumerate(CHANGES):
        first, well = results[name]["first"], int(experiment.near(results, name).sum())
        shade = PALETTE[0] if np.median(first) <= NEAR_ENOUGH else MUTED
        axes.plot(first, np.full(len(first), row), "o", color=shade, ms=4, alpha=0.5, mew=0)
        axes.vlines(np.median(first), row - 0.33, row + 0.33, color=shade, lw=2)
        axes.annotate(
            f"{well} of {experiment.trials}",
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            color=shade,
        )
    axes.axvline(NEAR_ENOUGH, color=MUTED, lw=1, ls=(0, (1, 2)), zorder=0)
    axes.set(xlim=(0, None), xlabel="error after Phase 1 / Δ")
    axes.set_yticks(range(len(CHANGES)), [change.label for change in CHANGES.values()], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.tick_params(length=0)
    return figure


def test_curves(experiment: OnDigits, results: Mapping[str, Arrays]) -> Figure:
    """Loss and error on the test images against the round: the mean over seeds, and their deviation."""
    of, seeds = experiment.digits, experiment.trials
    figure = titled(
        f"Mixed regression, Figure {of.figure}: MNIST in 14 x 14, k = {of.k}",
        [
            f"{of.clients:,} clients with {count(of.images, 'image')} and {of.k} anchors with "
            f"{of.anchor_images}; test images, each cluster with its best model"
            + at_scale(experiment.scale),
            f"mean and standard deviation of {count(seeds, 'seed')}; Phase 1 up to the dotted line",
        ],
        (10.4, 5.4),
    )
    shown = {
        "oracle": "oracle",
        "two-phase all clients": "two-phase, all pairs and clients in Phase 1",
        "two-phase printed": "two-phase, Phase 1 as printed",
        "IFCA": "IFCA",
        "one-shot": "one-shot clustering",
        "FedAvg": "vanilla FedAvg",
    }
    panels = figure.subplots(1, 2)
    for axes, curve, unit, scale in (
        (panels[0], "losses", "negative log-likelihood", 1),
        (panels[1], "errors", "misclassified (%)", 100),
    ):
        for number, (name, label) in enumerate(shown.items()):
            values = scale * experiment.over_seeds(results, name, curve)
            if not len(values):
                continue
            shade, at = PALETTE[number % len(PALETTE)], np.arange(values.shape[1])
            at = at[(at < 100) | (at % 10 == 0)]
            mean, spread = values.mean(axis=0)[at], values.std(axis=0, ddof=len(values) > 1)[at]
            axes.fill_between(at, mean - spread, mean + spread, color=shade, alpha=0.15, lw=0)
            axes.plot(at, mean, color=shade, ls=DASHES[number % len(DASHES)], lw=1.7, label=label)
        axes.axvline(of.iterations, color=MUTED, lw=1, ls=(0, (1, 2)), zorder=0)
        axes.set_xscale("symlog", linthresh=10, linscale=0.7)
        whole = of.iterations + of.rounds
        ticks = [t for t in (0, 5, 10, 100, 1000) if t <= whole]
        axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axes.set(xlim=(0, whole), ylim=(0, None), xlabel="round, Phase 1 included (log scale from 10 on)")
        axes.set_title(f"test {unit}", fontsize=9, color=MUTED, loc="left")
        axes.grid(axis="y")
        axes.tick_params(length=0, which="both")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, fontsize=8, labelcolor=INK, handlelength=3.0, ncols=3, loc="outside lower center"
    )
    return figure
