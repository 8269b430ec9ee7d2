"""Pictures for the figures of the mixed-regression paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from coterie.papers.experiment import Arrays
from coterie.papers.mixed_regression.bounds import last, rate
from coterie.papers.mixed_regression.changes import CHANGES, Changes
from coterie.papers.mixed_regression.figures import Convergence
from coterie.papers.mixed_regression.mnist import OnDigits
from coterie.papers.mixed_regression.phase_one import NEAR_ENOUGH
from coterie.papers.mixed_regression.problem import TITLES
from coterie.papers.mixed_regression.theory import UNCERTAIN, Case, Theory
from coterie.papers.pictures import DASHES, at_scale, titled
from coterie.run.report.style import INK, MUTED, PALETTE
from coterie.words import count

Measured = Callable[[Arrays], np.ndarray]
Bound = Callable[[Case, Arrays], float]
KNOWN = "clusters known"


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
    of = experiment.digits
    figure = titled(
        f"Mixed regression, Figure {of.figure}: MNIST in 14 x 14, k = {of.k}",
        [
            f"{of.clients:,} clients with {count(of.images, 'image')} and {of.k} anchors with "
            f"{of.anchor_images}; test images, each cluster with its best model" + at_scale(experiment.scale),
            f"mean and standard deviation of {experiment.how_many(results)}; up to the dotted line the "
            "two-phase systems are in Phase 1",
        ],
        (10.4, 5.4),
    )
    shown = {
        "oracle": "oracle",
        "two-phase both": "two-phase, all pairs and clients in Phase 1",
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


def bounds(experiment: Theory, results: Mapping[str, Arrays]) -> Figure:
    """Rates and last errors against what they depend on, and how the bounds would have them change."""
    figure = titled(
        "Mixed regression, Theorems 2 and 3: rates and errors in the end",
        [
            f"median and quartiles of {count(experiment.trials, 'trial')}" + at_scale(experiment.scale),
            "dotted: how the bound changes, drawn through the first point",
        ],
        (12.4, 6.2),
    )
    panels = figure.subplots(2, 4)
    every = experiment.cases.values()

    def curve(axes: Axes, shade: int, label: str, varied: str, what: Measured, bound: Bound | None) -> None:
        own = [case for case in every if (case.varied, case.known) == (varied, label == KNOWN)]
        values = [what(results[case.name]) for case in own]
        at = np.array([case.value for case in own], float) + (varied == "chi2")
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
        color, dashes = PALETTE[shade], DASHES[shade]
        axes.plot(at, middle, "o", ls=dashes, color=color, ms=4, lw=1.5, label=label)
        axes.vlines(at, low, high, color=color, lw=1.5)
        if bound is not None:
            says = np.array([bound(case, results[case.name]) for case in own])
            axes.plot(at, middle[0] * says / says[0], color=color, ls=(0, (1, 2)), lw=1.2, zorder=0)

    def contraction(case: Case, result: Arrays) -> float:
        return (case.steps or 1) * case.rate * float(np.median(result["rho"] / result["kappa"]))

    def deviation(case: Case, result: Arrays) -> float:
        return case.deviation

    (a, b, c, d), (e, f, g, h) = panels
    curve(a, 0, "η = 0.01", "s", rate, contraction)
    curve(a, 1, "η = 0.1", "s far", rate, contraction)
    curve(b, 0, "FedX", "rho", rate, contraction)
    curve(c, 0, "FedProx", "eta", rate, contraction)
    for axes, varied, bound in ((d, "M", deviation), (e, "n", deviation), (g, "sigma", None)):
        curve(axes, 0, "FedX", varied, last, bound)
        curve(axes, 1, KNOWN, varied, last, None)
    curve(f, 0, "FedX", "chi2", last, deviation)
    held = np.array(list(experiment.labels.values()))
    wrong = [100 * np.mean(results[name]["wrong"]) for name in experiment.labels]
    h.plot(held, wrong, "o-", color=PALETTE[0], ms=4, lw=1.5)
    for axes, title, along in (
        (a, "rate a round", "local steps s"),
        (b, "rate a round", "share ρ of the smallest cluster"),
        (c, "rate a round, FedProx", "η"),
        (d, "error in the end", "clients M, of 10 examples"),
        (e, "error in the end", "examples n, 8,000 in all"),
        (f, "error in the end", "1 + χ²(n)"),
        (g, "error in the end", "noise σ, 2,000 clients of 4 examples"),
        (h, f"wrong labels (%), σ = {UNCERTAIN:g}", "examples n of a client"),
    ):
        axes.set(yscale="log", xlabel=along)
        if axes is not h:
            axes.set_xscale("log")
        ticks = sorted({float(x) for line in axes.lines for x in line.get_xdata()})
        axes.set_xticks(ticks, [f"{round(t, 2):g}" for t in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(_one_two_five))
        axes.set_title(title, fontsize=9, color=MUTED, loc="left")
        axes.grid(axis="y")
        axes.tick_params(length=0, which="both", labelsize=8)
        if axes in (a, d, e, g):
            axes.legend(fontsize=8, labelcolor=INK, handlelength=3.0)
    return figure


def _one_two_five(value: float, _: int) -> str:
    """A label for 2 and 5 times a power of ten alone."""
    return f"{value:g}" if f"{value:.0e}"[0] in "25" else ""
