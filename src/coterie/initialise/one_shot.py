"""Clients train alone, and their models are clustered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys
from coterie.errors import FederationError, SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.initialise.alone import trained_before
from coterie.initialise.random import fresh_model
from coterie.models import stacked
from coterie.settings import Settings

WIDE = 1000  # coordinates per point, above which k-means is quicker in the span of the points


@dataclass(frozen=True)
class OneShot(Settings):
    """k-means on the models of clients that each train on their own shard, from the same fresh model.

    Parameters
    ----------
    rounds
        For how many rounds of its local update a client trains alone.
    trained
        The models that clients have trained before, (clients, ...), such as those that `Local` found: they
        train no more.

    It takes one exchange, in which every client sends its model. `Components` finds k by itself.
    """

    rounds: int = 20
    trained: PyTree = field(default=None, compare=False)

    def __call__(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[PyTree]:
        groups = yield from self.grouped(server, key, [k])
        return groups.models

    def grouped(self, server: Server, key: Key[Array, ""], numbers: Sequence[int]) -> Exchange[Groups]:
        """The groups of the clients: as many as one of `numbers` has it, that with the highest silhouette."""
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        own = keys.numbered(key, 1)[0]
        start = fresh_model(server, key)
        models, answered = yield from trained_before(server, self.trained, start, self.rounds, own)
        here, k = np.flatnonzero(answered), numbers[0]
        if len(here) < k:
            raise FederationError(f"{len(here)} clients answered, but k={k} groups need as many of them.")
        models = stacked.take(models, here)
        points = np.asarray(stacked.to_matrix(models))
        seed = int(jax.random.key_data(own)[-1])
        silhouettes: dict[int, float] = {}
        if len(numbers) > 1:
            silhouettes = _silhouettes(points, [n for n in numbers if n < len(points)], seed)
            k = max(silhouettes, key=lambda number: silhouettes[number])
        labels = np.full(server.clients, -1)
        labels[here] = k_means(points, k, seed)
        return Groups(mean_models(models, labels[here], k), labels, silhouettes)


class Groups(NamedTuple):
    """Clients grouped by the models that they trained alone."""

    models: PyTree  # (k, ...): the mean of each group
    labels: Int[np.ndarray, " clients"]  # -1 for a client that did not answer
    silhouettes: dict[int, float]  # of the numbers of groups that were tried, if several were

    @property
    def k(self) -> int:
        return stacked.count(self.models)


def mean_models(models: PyTree, labels: Int[np.ndarray, " clients"], k: int) -> PyTree:
    """The plain mean of the models of each of k groups."""
    member = np.eye(k)[labels]
    return stacked.weighted(models, member / member.sum(axis=0))


def _silhouettes(
    points: Float[np.ndarray, "points d"], numbers: Sequence[int], seed: int
) -> dict[int, float]:
    from sklearn.metrics import silhouette_score  # slow to import, and seldom needed

    differ = len(np.unique(points, axis=0))
    if differ < 2 or not numbers:
        raise SettingError(
            "the clients' models do not differ, or are too few: train them for longer, or give k."
        )
    return {n: float(silhouette_score(points, k_means(points, n, seed))) for n in numbers if n <= differ}


def k_means(points: Float[np.ndarray, "points d"], k: int, seed: int) -> Int[np.ndarray, " points"]:
    """k groups, none of them empty, by k-means with k-means++ starts."""
    from sklearn.cluster import KMeans  # slow to import, and seldom needed

    if len(np.unique(points, axis=0)) < k:
        raise SettingError(f"fewer than {k} clients' models differ: train them for longer, or lower k.")
    if points.shape[1] > WIDE * len(points):
        points = _in_their_span(points)
    labels: np.ndarray = KMeans(k, n_init=10, random_state=seed % 2**32).fit_predict(points)
    return labels


def _in_their_span(points: Float[np.ndarray, "points d"]) -> Float[np.ndarray, "points points"]:
    """As many coordinates as there are points, in which they are as far from each other as they were."""
    centred = points - points.mean(axis=0)
    values, vectors = np.linalg.eigh((centred @ centred.T).astype(float))
    coordinates: np.ndarray = vectors * np.sqrt(np.maximum(values, 0))
    return coordinates
