"""What the IFCA paper says of its Figure 2, beside what is found; and how the paper was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

from coterie.papers.experiment import Arrays, Finding, Point
from coterie.papers.ifca import significance
from coterie.papers.ifca.recovery import RULES, SLACK, TOLD_APART
from coterie.papers.ifca.significance import Trend

if TYPE_CHECKING:
    from coterie.papers.ifca.panel import Panel

TRENDS: dict[str, tuple[str, str]] = {
    "R": (
        "the success probability gets better with increasing R, i.e., more separation between ground truth "
        "parameter vectors (caption of Figure 2)",
        "from a smaller to a larger R with the same sigma",
    ),
    "m": (
        "the success probability improves with an increase of mn, i.e., more data on each machine and/or "
        "more machines (caption of Figure 2)",
        "from smaller to larger m, n or both",
    ),
}
STARTS = {"unscaled": "starts of 0 and 1", "rescaled": "starts rescaled to norm R"}
COLUMNS = (
    "told apart: trials in which a success tells the true models apart (see below); least squares: the error "
    "to expect if the clusters were known, sigma sqrt(d / (mn/k - d - 1))."
)
SCALE_NOTES = {
    "small": "d and m are a fifth of the paper's and n is the same, so that d/(mn/k) is as in the paper; "
    "fewer trials.",
    "smoke": "d is a fiftieth, m a tenth and n a fifth of the paper's, so that d/(mn/k) is as in the paper; "
    "few trials, starts and rounds: this shows that everything runs, and nothing else.",
}


def findings(panel: Panel, results: Mapping[str, Arrays]) -> list[Finding]:
    """The paper's sentences about a panel, each judged by its own rule, beside what was found."""
    found = [_rises(panel, results, start) for start in panel.start]
    if len(panel.start) > 1:
        found.append(_starts(panel, results))
    found += [_order(panel, results), _dubbed_successful(panel, results)]
    if panel.across == "m":
        found.append(_known_clusters(panel, results))
    return found


def readings(panel: Panel) -> list[str]:
    """What the text leaves open and how it was read, and where the released code differs from it."""
    return [*_settings(panel), COLUMNS]


def _settings(panel: Panel) -> list[str]:
    norm = np.sqrt(panel.dim / 2)
    said = [SCALE_NOTES[panel.scale]] if panel.scale in SCALE_NOTES else []
    if panel.across == "R":
        said.append("the values of R and sigma are not in the text: they are the released code's.")
    else:
        said.append(
            f"sigma = {panel.sigma[0]:g} and the values of m and n are not in the text: they are the "
            "released code's."
        )
    if panel.preset == "authors":
        said.append(f"true models are R times their coordinates: of norm about {norm:.1f} R, not R.")
        said.append(f"starts have coordinates of 0 and 1: norm about {norm:.1f}.")
        if panel.across == "m":
            said.append(f"R is {panel.R[0]:g}, as in the saved plots, and not as in the text.")
        return said
    said.append(
        "the text does not say at what scale starts are drawn. unscaled: coordinates of 0 and 1, of norm "
        f"about {norm:.1f}, as in the released code; rescaled: to norm R, like the true models. All else is "
        "the same."
    )
    if 0.0 in panel.sigma:
        said.append(
            "sigma = 0: as printed the rule asks for a distance of 0, which rounding never allows; such "
            f"points are judged with the {SLACK:g} that the released code adds."
        )
    return said


def _rises(panel: Panel, results: Mapping[str, Arrays], start: str) -> Finding:
    """The caption's trend, for starts of one scale."""
    said, compared = TRENDS[panel.across]
    trend = _trend(panel, start, lambda point: panel.succeeded(point, results[point.name]))
    points = _of(panel, start)

    def share(point: Point) -> str:
        return f"{_share(*_successes(panel, results, [point]))} at {_words(panel, point)}"

    ends = "; ".join(f"{share(hard)} to {share(easy)}" for hard, easy in _ends(panel, points))
    unclear = " These trials do not decide it." if trend.agrees is None else ""
    return Finding(said, f"{STARTS[start]}: {compared}, {trend}. It goes from {ends}.{unclear}", trend.agrees)


def _starts(panel: Panel, results: Mapping[str, Arrays]) -> Finding:
    total = {start: _successes(panel, results, _of(panel, start)) for start in panel.start}
    return Finding(
        "randomly initialize theta_j^(0) according to an independent coordinate-wise Bernoulli distribution "
        "(section 6.1); at what scale is not said.",
        "; ".join(f"{STARTS[s]}: {_share(*total[s])} of all trials succeed" for s in panel.start) + ".",
        None,
    )


def _order(panel: Panel, results: Mapping[str, Arrays]) -> Finding:
    points = panel.points()
    by_rule = {
        rule: sum(panel.successes(p, results[p.name], rule, panel.rule(p)[1]) for p in points)
        for rule in RULES
    }
    share = {rule: _share(number, panel.trials * len(points)) for rule, number in by_rule.items()}
    return Finding(
        "dist = (1/k) sum_j ||theta_j - theta*_j|| (section 6.1), in which the order of the learned models "
        "matters.",
        f"the order means nothing to the algorithm: index by index {share['printed']} of all trials succeed, "
        f"under the best matching {share['matched']}, with each learned model beside the true one nearest to "
        f"it, as in the released code, {share['nearest']}.",
        None,
    )


def _dubbed_successful(panel: Panel, results: Mapping[str, Arrays]) -> Finding:
    """Which successes are not recoveries: near all true models at once, without telling these apart."""
    parts = []
    for start in panel.start:
        points = _of(panel, start)
        total, _ = _successes(panel, results, points)
        false = [panel.successes(p, results[p.name]) - _recoveries(panel, results, p) for p in points]
        at = zip(false, points, strict=True)
        where = ", ".join(f"{number} at {_words(panel, p)}" for number, p in at if number)
        part = f"{STARTS[start]}: {sum(false)} of {total} successes do not tell the true models apart"
        if where:
            trend = _trend(panel, start, lambda point: panel.recovered(point, results[point.name]))
            part += f" ({where}); without them, {trend}"
        parts.append(part)
    return Finding(
        "A trial is dubbed successful if ... we obtain dist <= 0.6 sigma (section 6.1)",
        f"models that do not tell the true ones apart (less than {TOLD_APART:g} as far from each other as "
        "two of these, along the line between them) can be that near, too. " + "; ".join(parts) + ".",
        None,
    )


def _known_clusters(panel: Panel, results: Mapping[str, Arrays]) -> Finding:
    """What could be had if the clusters were known, which needs no experiment."""
    parts = []
    for start in panel.start:
        points = _of(panel, start)
        able = [p for p in points if p.values["m"] * p.values["n"] >= panel.enough]
        others = [p for p in points if p not in able]
        below, above = (
            _share(*_successes(panel, results, some)) if some else "unknown" for some in (others, able)
        )
        parts.append(f"{STARTS[start]}: success is {below} on average below that and {above} above")
    return Finding(
        "more data and/or more worker machines help improve the performance of the algorithm (section 6.1)",
        f"least squares with known clusters is within 0.6 sigma from mn of about {panel.enough:,.0f} on; "
        + "; ".join(parts)
        + ".",
        None,
    )


def _trend(panel: Panel, start: str, won: Callable[[Point], Bool[np.ndarray, " trials"]]) -> Trend:
    """How trials compare in all pairs of points, one of which the paper says is no harder than the other."""
    pairs = permutations(_of(panel, start), 2)
    return significance.trend([(won(hard), won(easy)) for hard, easy in pairs if _easier(panel, easy, hard)])


def _easier(panel: Panel, a: Point, b: Point) -> bool:
    """Whether success at `a` should not be less than at another point `b`, by what the paper says."""
    if panel.across == "R":
        return bool(a.values["sigma"] == b.values["sigma"] and a.values["R"] >= b.values["R"])
    return bool(a.values["m"] >= b.values["m"] and a.values["n"] >= b.values["n"])


def _ends(panel: Panel, points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Where success should be lowest, and where highest: for every sigma where R varies."""
    if panel.across == "R":
        lines = [[p for p in points if p.values["sigma"] == sigma] for sigma in panel.sigma]
        return [(line[0], line[-1]) for line in lines]
    by_amount = sorted(points, key=lambda p: p.values["m"] * p.values["n"])
    return [(by_amount[0], by_amount[-1])]


def _of(panel: Panel, start: str) -> list[Point]:
    return [point for point in panel.points() if point.values["start"] == start]


def _successes(panel: Panel, results: Mapping[str, Arrays], points: Sequence[Point]) -> tuple[int, int]:
    """How many trials of these points succeed, of how many."""
    return sum(panel.successes(p, results[p.name]) for p in points), panel.trials * len(points)


def _recoveries(panel: Panel, results: Mapping[str, Arrays], point: Point) -> int:
    return int(panel.recovered(point, results[point.name]).sum())


def _share(number: int, total: int) -> str:
    return f"{number / total:.0%}"


def _words(panel: Panel, point: Point) -> str:
    return ", ".join(f"{name} = {point.values[name]:g}" for name in (panel.across, panel.by))
