"""Cluster labels are names: matching found clusters with true ones."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from coterie.errors import DataError


def contingency(
    found: Int[np.ndarray, " clients"], truth: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, "found true"]:
    """Clients by found cluster (rows) and true cluster (columns); clients without a cluster count nowhere."""
    found, truth = np.asarray(found), np.asarray(truth)
    if found.shape != truth.shape or found.ndim != 1:
        raise DataError(
            f"found and true labels must be equally long; their shapes are {found.shape}, {truth.shape}."
        )
    if len(truth) == 0 or found.dtype.kind not in "iu" or truth.dtype.kind not in "iu" or truth.min() < 0:
        raise DataError("labels must be whole numbers, at least one, and the true ones 0 or more.")
    table = np.zeros((found.max() + 1, truth.max() + 1), int)
    np.add.at(table, (found[found >= 0], truth[found >= 0]), 1)
    return table


def best_match(table: Int[np.ndarray, "found true"]) -> tuple[np.ndarray, np.ndarray]:
    """The one-to-one matching of rows and columns that covers most clients (Hungarian method)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only results need it

    rows, columns = linear_sum_assignment(table, maximize=True)
    return rows, columns


def bottleneck(cost: Float[np.ndarray, "k k"]) -> float:
    """min over permutations pi of max_j cost[j, pi(j)]."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    values = np.unique(cost)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        matched = maximum_bipartite_matching(csr_array(cost <= values[middle]), perm_type="column")
        low, high = (low, middle) if (matched >= 0).all() else (middle + 1, high)
    return float(values[low])
