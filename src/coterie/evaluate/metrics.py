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
