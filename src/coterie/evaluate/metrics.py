"""How good a clustering is, when the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int

from coterie.errors import DataError
from coterie.evaluate.matching import best_match, bottleneck, contingency
from coterie.models import stacked


def misclustering(found: Int[np.ndarray, " clients"], truth: Int[np.ndarray, " clients"]) -> float:
    """The fraction of clients in the wrong cluster under the best one-to-one matching of clusters.

    A client without a cluster (-1) counts as wrong.
    """
    table = contingency(found, truth)
    return 1 - float(table[best_match(table)].sum()) / len(truth)


def impurity(found: Int[np.ndarray, " clients"], truth: Int[np.ndarray, " clients"]) -> float:
    """The fraction of clients in clusters whose label is not their true cluster.

    By Definition 3.1 of the SR-FCA paper, the label of a found cluster is the true cluster from which the
    majority of its clients (more than half) are; its impurities are its clients that are from another. A
    cluster without a majority has no label, so that all of its clients are impurities. Clients without a
    cluster (-1) are in none, and are not counted; if nobody is in a cluster, nothing is impure.

    Found clusters may share a label: a true cluster that was found in pieces is pure (0), which
    `misclustering` counts as wrong. So it tells how good a clustering is that is still to be merged.
    """
    table = contingency(found, truth)
    sizes = table.sum(axis=1)
    largest = table.max(axis=1, initial=0)
    pure = int(largest[2 * largest > sizes].sum())
    return 1 - pure / int(sizes.sum()) if sizes.sum() else 0.0


def adjusted_rand(found: Int[np.ndarray, " clients"], truth: Int[np.ndarray, " clients"]) -> float:
    """The adjusted Rand index: 1 for the same partition, about 0 for an unrelated one."""
    from sklearn.metrics import adjusted_rand_score  # slow to import, and seldom needed

    contingency(found, truth)  # checks the shapes
    return float(adjusted_rand_score(truth, found))


def parameter_distance(found: Any, true: Any) -> float:
    """min over permutations of max_j ||found_j - true_j||, as in (5) of the mixed-regression paper.

    Each set of models is a stacked pytree or a (k, d) matrix of flattened parameters.
    """
    a, b = (np.asarray(stacked.to_matrix(models), float) for models in (found, true))
    if a.shape != b.shape:
        raise DataError(f"the two sets of models have shapes {a.shape} and {b.shape}; they must agree.")
    return bottleneck(np.linalg.norm(a[:, None] - b[None, :], axis=2))
