"""Groups as connected components of a graph: who is near whom."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int


def components(
    distances: Float[np.ndarray, "n n"], threshold: float, nodes: Bool[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, " n"]:
    """The connected components of the graph with an edge wherever a distance is at most the threshold.

    They are numbered in the order of their first members. Only the given nodes belong to the graph: the
    others get -1. A distance that is not a number is no edge.
    """
    from scipy.sparse import csr_array  # slow to import, and seldom needed
    from scipy.sparse.csgraph import connected_components

    inside = np.ones(len(distances), bool) if nodes is None else nodes
    with np.errstate(invalid="ignore"):
        near = (distances <= threshold) & inside[:, None] & inside[None, :]
    _, labels = connected_components(csr_array(near), directed=False)
    return _renumbered(np.where(inside, labels, -1))


def with_nearest(distances: Float[np.ndarray, "n n"], nodes: Bool[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The connected components of the graph with an edge from every node to its nearest.

    Of the nodes that are given, and numbered as those of `components`.
    """
    apart = np.where(nodes[:, None] & nodes & ~np.eye(len(distances), dtype=bool), distances, np.nan)
    known = np.isfinite(apart).any(axis=1)
    nearest = np.where(np.isfinite(apart), apart, np.inf).argmin(axis=1)
    linked = np.full(apart.shape, np.nan)
    linked[known, nearest[known]] = linked[nearest[known], known] = 0
    return components(linked, 0, nodes)


def of_size(labels: Int[np.ndarray, " n"], least: int) -> Int[np.ndarray, " n"]:
    """The groups that have at least so many members, numbered anew; the members of others get -1."""
    sizes = np.bincount(labels[labels >= 0], minlength=1)
    large = (labels >= 0) & (sizes[labels] >= least)
    return _renumbered(np.where(large, labels, -1))


def reclustered(
    distances: Float[np.ndarray, "clients k"], before: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, " clients"]:
    """RECLUSTER, Algorithm 2 of the SR-FCA paper: every client joins the nearest cluster.

    A client whose distances are not known stays where it was.
    """
    known = ~np.isnan(distances).all(axis=1)
    return np.where(known, np.where(np.isnan(distances), np.inf, distances).argmin(axis=1), before)


def merged(
    apart: Float[np.ndarray, "k k"], assignment: Int[np.ndarray, " clients"], threshold: float, least: int
) -> Int[np.ndarray, " k"]:
    """MERGE, Algorithm 4 of the SR-FCA paper: clusters within the threshold of each other become one.

    Returns what becomes of each cluster: the number of the new one, or -1 for a cluster without clients, and
    for those that have fewer than `least` clients together. (If all are so small, all are kept.)
    """
    sizes = np.bincount(assignment[assignment >= 0], minlength=len(apart))
    into = components(apart, threshold, sizes > 0)
    together = np.bincount(into[into >= 0], weights=sizes[into >= 0])
    if (together >= least).any():
        into = np.where((into >= 0) & (together[into] >= least), into, -1)
    return _renumbered(into)


def _renumbered(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The same groups, numbered 0, 1, 2, ... in the order of their first members; -1 stays."""
    known = labels[labels >= 0]
    names, first = np.unique(known, return_index=True)
    order = np.empty(len(names), int)
    order[np.argsort(first)] = np.arange(len(names))
    new = np.full(len(labels), -1)
    new[labels >= 0] = order[np.searchsorted(names, known)]
    return new
