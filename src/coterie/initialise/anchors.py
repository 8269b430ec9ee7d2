"""The anchors of moment descent: how far they have come, and which of them belong together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from coterie.errors import LearnerError
from coterie.models import stacked


@dataclass(frozen=True)
class Anchors:
    """The anchors, and how far they have come."""

    ids: np.ndarray
    models: PyTree  # leading axis anchors; on the host
    sigma: Float[np.ndarray, " anchors"]  # how large an anchor found its residual in the last step
    stopped: Bool[np.ndarray, " anchors"]  # whether its residual was too small for a step
    heard: Bool[np.ndarray, " anchors"]  # whether it has ever answered

    def centres(self, k: int, separation: float | None = None) -> PyTree:
        """Line 16: the anchors' models in k groups, and the mean of each; leading axis k.

        Anchors less than half the separation apart are in one group, and the k largest groups are kept.
        Without a separation, anchors are joined into k groups. One that never answered knows nothing and is
        in no group.
        """
        like = stacked.take(self.models, 0)
        found = _centres(matrix(self.models, 1)[self.heard], k, separation)
        return jax.tree.map(jnp.asarray, models_of(found, like))


# -- line 16: anchors in groups ---------------------------------------------------------------------------


def _centres(theta: Float[np.ndarray, "anchors d"], k: int, separation: float | None) -> np.ndarray:
    """The means of k groups of anchors, shape (k, d), in the order of their first members."""
    if len(theta) < k:
        raise LearnerError(f"{len(theta)} anchors have answered, fewer than k={k}: choose more anchors.")
    if separation is None:
        return joined(theta, k)
    group = chained(theta, separation)
    count = int(group.max()) + 1
    if count < k:
        raise LearnerError(
            f"with separation={separation} the anchors are in {count} groups, fewer than k={k}: lower it or "
            "leave it out, or choose more anchors."
        )
    largest = np.sort(np.argsort(-np.bincount(group), kind="stable")[:k])
    return np.stack([theta[group == g].mean(axis=0) for g in largest])


def chained(theta: Float[np.ndarray, "anchors d"], separation: float) -> Int[np.ndarray, " anchors"]:
    """The group of each anchor: those less than half the separation apart are in one, and so are chains."""
    from scipy.sparse.csgraph import connected_components  # slow to import, and seldom needed

    group: np.ndarray = connected_components(_distances(theta) < separation / 2, directed=False)[1]
    return group


def joined(theta: Float[np.ndarray, "anchors d"], k: int) -> Float[np.ndarray, "k d"]:
    """The means of k groups, into which single anchors are joined by Ward's criterion."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import, and seldom needed

    if len(theta) == 1:
        return theta
    group = cut_tree(linkage(theta, "ward"), n_clusters=k)[:, 0]
    return np.stack([theta[group == g].mean(axis=0) for g in dict.fromkeys(group.tolist())])


def least_distance(centres: Float[np.ndarray, "k d"]) -> float:
    """The least distance between two of k centres; 0 for a single one."""
    between = _distances(centres)[np.triu_indices(len(centres), 1)]
    return float(between.min()) if len(between) else 0.0


def _distances(theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    apart: np.ndarray = np.linalg.norm(theta[:, None] - theta, axis=2)
    return apart


# -- models as vectors, behind any number of leading axes -------------------------------------------------


def matrix(models: PyTree, lead: int) -> Float[np.ndarray, "*lead d"]:
    """The flattened parameters of models behind `lead` leading axes."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(models)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=-1)


def models_of(matrix: Float[np.ndarray, "*lead d"], like: PyTree) -> PyTree:
    """The inverse of `matrix`; `like` is one model."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(matrix, ends[:-1], axis=-1)
    shaped = [
        part.reshape(*part.shape[:-1], *leaf.shape).astype(leaf.dtype)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)
