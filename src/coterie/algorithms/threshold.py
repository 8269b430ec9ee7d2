"""Where to cut: the largest distance between clients that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from coterie.errors import SettingError
from coterie.words import is_number, percent

BINS = 40
MOST = 0.5  # of the clients, who must belong to groups for a cut to be one between groups
OUTLIER = 3.0  # quartile ranges beyond the quartiles, as in a box plot: Tukey's outer fence


@dataclass(frozen=True)
class Threshold:
    """A threshold, and why it is that.

    Attributes
    ----------
    threshold
        Clients that are no farther apart belong together.
    reason
        In a few words.
    gap
        The two distances between which it was put, where a gap was seen.
    nearest
        Whether only each client and its nearest belong together, of those that are no farther apart.
    """

    threshold: float
    reason: str
    gap: tuple[float, float] | None = None
    nearest: bool = False


def check(threshold: float | str) -> None:
    """Refuse what is no threshold."""
    if isinstance(threshold, str):
        known = threshold == "auto" or (percent(threshold) or 2) <= 1
    else:
        known = is_number(threshold) and 0 <= threshold < np.inf
    if known:
        return
    raise SettingError(
        f"threshold must be 'auto', a distance, or a share of all pairs such as '25%', not {threshold!r}."
    )


def choose(threshold: float | str, distances: Float[np.ndarray, "n n"], least: int) -> Threshold:
    """The threshold that a setting stands for, given the distances of all pairs.

    Nothing but the distances is looked at. With `"auto"` the threshold is put into the middle of a gap: the
    first leap, from below, that the lengths of the edges of a minimum spanning tree make where two or more
    groups of at least `least` clients, half of all clients among them, are parted. (Whatever the threshold,
    who is connected with whom depends on these edges alone. Where groups consist of groups, the first leap
    is that between the smallest.) A leap is a gap only if it is several times as long as the shorter edges'
    standard deviation, or as a tenth of their mean, if that is more.

    Where there is no gap, the threshold is the smallest at which every client has two others near, or as
    many as make `least` with it, but for clients that are near nobody. That may part clients who belong
    together, which MERGE can mend: models that several clients train are nearer to each other than those of
    single clients. It seldom joins clients who do not, which nothing could mend. (Where MERGE decides on
    held-out examples, `of_nearest` is taken instead.)
    """
    pairs = of_pairs(distances)
    if not len(pairs):
        raise SettingError("no two clients' models can be compared: fewer than two of them answered.")
    if threshold == "auto":
        return _automatic(distances, float(pairs.max()), least)
    share = percent(threshold)
    if share is not None:
        return Threshold(
            float(np.quantile(pairs, share)), f"{threshold} of all pairs are within the threshold"
        )
    return Threshold(float(threshold), "the threshold was given")


def of_nearest(distances: Float[np.ndarray, "n n"]) -> Threshold:
    """What puts every client together with its nearest, for clusters that are merged on held-out examples."""
    apart = np.where(np.eye(len(distances), dtype=bool) | ~np.isfinite(distances), np.inf, distances)
    reach = apart.min(axis=1)
    return Threshold(
        float(reach[np.isfinite(reach)].max()),
        "there is no visible gap between near and far clients: each is with its nearest",
        nearest=True,
    )


def of_pairs(distances: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " pairs"]:
    """The distances of all pairs that are known."""
    pairs = distances[np.triu_indices(len(distances), 1)]
    return np.asarray(pairs[np.isfinite(pairs)], float)


def details(cut: Threshold, distances: Float[np.ndarray, "n n"]) -> dict[str, Any]:
    """The threshold and the histogram of the distances, as plain values."""
    counts, edges = np.histogram(of_pairs(distances), bins=BINS)
    return {
        "threshold": cut.threshold,
        "reason": cut.reason,
        "gap": None if cut.gap is None else list(cut.gap),
        "with_nearest": cut.nearest,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
    }


def _automatic(distances: Float[np.ndarray, "n n"], farthest: float, least: int) -> Threshold:
    # one client alone is a group where clusters may be so small, but it parts nothing
    edges, parted = _leaps(distances, max(2, least))
    low, high = edges[:-1], edges[1:]
    count = np.arange(1, len(low) + 1)
    mean = np.cumsum(low) / count
    spread = np.array([edges[:n].std() for n in count])
    # of clients that are all alike, 1 in 50 groups of 10 or more would still leap so far, in 2 dimensions or
    # more (of models that have one number only, up to 1 in 3). The mean, since few edges are equal by chance
    far = (2.5 + 60 / (len(edges) + 1)) * np.maximum(spread, mean / 10)
    gaps = np.flatnonzero(parted & (high - low > np.maximum(far, farthest * 1e-6)))
    if not len(gaps):
        return _near_others(distances, max(2, least - 1))
    gap = float(low[gaps[0]]), float(high[gaps[0]])
    middle = sum(gap) / 2
    return Threshold(
        middle, f"the threshold is {middle:.4g}, in the gap between {gap[0]:.4g} and {gap[1]:.4g}", gap
    )


def _near_others(distances: Float[np.ndarray, "n n"], others: int) -> Threshold:
    """The smallest threshold within which every client has so many others, but for outliers."""
    apart = np.where(np.eye(len(distances), dtype=bool) | ~np.isfinite(distances), np.inf, distances)
    apart = np.sort(apart[np.isfinite(apart).any(axis=1)], axis=1)
    others = min(others, int(np.isfinite(apart).sum(axis=1).max()))
    reach = apart[:, others - 1]
    low, high = np.quantile(reach[np.isfinite(reach)], (0.25, 0.75))
    inside = reach <= high + OUTLIER * (high - low)
    threshold = float(reach[inside].max())
    without = len(inside) - int(inside.sum())
    who = f"all but {without} of {len(inside)} clients have" if without else "every client has"
    return Threshold(
        threshold,
        f"there is no visible gap between near and far clients: the threshold is {threshold:.4g}, within "
        f"which {who} {others} {'other' if others == 1 else 'others'}",
    )


def _leaps(
    distances: Float[np.ndarray, "n n"], least: int
) -> tuple[Float[np.ndarray, " edges"], Bool[np.ndarray, " leaps"]]:
    """The edges of a minimum spanning tree by length, and between which of them a cut parts two groups."""
    from scipy.cluster.hierarchy import DisjointSet  # slow to import, and seldom needed
    from scipy.sparse.csgraph import minimum_spanning_tree

    known = np.isfinite(distances).any(axis=1)
    inside = distances[np.ix_(known, known)].astype(float)
    # scipy takes what is zero, or nearly so, for no edge at all
    unit = float(inside[np.isfinite(inside)].max(initial=0)) or 1.0
    tree = minimum_spanning_tree(np.where(np.isfinite(inside), 1 + inside / unit, 0)).tocoo()
    lengths = inside[tree.row, tree.col]
    order = np.argsort(lengths, kind="stable")
    edges = lengths[order]
    groups, large, covered = DisjointSet(range(len(inside))), 0, 0
    parted = np.zeros(max(0, len(edges) - 1), bool)
    for step, (a, b) in enumerate(zip(tree.row[order], tree.col[order], strict=True)):
        sizes = groups.subset_size(a), groups.subset_size(b)
        groups.merge(a, b)
        large += (sum(sizes) >= least) - sum(size >= least for size in sizes)
        covered += sum(size for size in sizes if size < least) if sum(sizes) >= least else 0
        if step < len(parted):
            parted[step] = large >= 2 and covered >= MOST * len(inside)
    return edges, parted
