"""How far apart models are: in parameters, or in what they cost each other's clients.

A distance first finds out about the models that clients trained alone, then about those of clusters, as far
as it needs the clients for it; the rest is arithmetic on the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from coterie.errors import one_of
from coterie.federation.exchange import Exchange
from coterie.federation.protocol import Ask, bytes_of
from coterie.learn.shard import Part
from coterie.learn.tasks import MeasureLosses
from coterie.models import stacked
from coterie.settings import Settings

BLOCK_BYTES = 2**25  # of models in one exchange


class Clusters(NamedTuple):
    """Clusters as a distance sees them."""

    models: PyTree  # (k, ...)
    said: Float[np.ndarray, "clients k"] | None  # by the clients of these models, if they were asked
    assignment: Int[np.ndarray, " clients"]


class Distance(Settings, ABC):
    """Between models of clients and of clusters: symmetric, and NaN where it is not known."""

    @abstractmethod
    def blank(self, clients: int, parameters: int) -> Float[np.ndarray, "clients known"]:
        """What is known of the clients' own models before anything is: NaN."""

    @abstractmethod
    def measure(
        self, own: PyTree, there: Bool[np.ndarray, " clients"], part: Part = None
    ) -> Exchange[Float[np.ndarray, "clients known"]]:
        """What is to be known of the clients' own models, (clients, ...).

        `there` tells whose model is known, and `part` on which part of their examples clients look.
        """

    @abstractmethod
    def look(self, models: PyTree, part: Part = None) -> Exchange[Float[np.ndarray, "clients k"] | None]:
        """What clients have to say of the clusters' models, if they are asked at all."""

    @abstractmethod
    def between_clients(self, own: np.ndarray) -> Float[np.ndarray, "clients clients"]:
        """dist(w_i, w_j), given what was measured."""

    @abstractmethod
    def to_clusters(self, own: np.ndarray, clusters: Clusters) -> Float[np.ndarray, "clients k"]:
        """dist(w_i, omega_c), for the clusters that clients are in."""

    @abstractmethod
    def between_clusters(self, clusters: Clusters) -> Float[np.ndarray, "k k"]:
        """dist(omega_c, omega_c')."""


@dataclass(frozen=True)
class L2(Distance):
    """The Euclidean distance of the parameters, for which the SR-FCA paper has its theory (section 4).

    The server computes it by itself: no model is sent to anybody.
    """

    def blank(self, clients: int, parameters: int) -> Float[np.ndarray, "clients known"]:
        return np.full((clients, parameters), np.nan, np.float32)

    def measure(
        self, own: PyTree, there: Bool[np.ndarray, " clients"], part: Part = None
    ) -> Exchange[np.ndarray]:
        points = np.asarray(stacked.to_matrix(own), np.float32)
        return np.where(there[:, None], points, np.nan)
        yield

    def look(self, models: PyTree, part: Part = None) -> Exchange[None]:
        return None
        yield

    def between_clients(self, own: np.ndarray) -> Float[np.ndarray, "clients clients"]:
        return _euclidean(own, own)

    def to_clusters(self, own: np.ndarray, clusters: Clusters) -> Float[np.ndarray, "clients k"]:
        return _euclidean(own, np.asarray(stacked.to_matrix(clusters.models)))

    def between_clusters(self, clusters: Clusters) -> Float[np.ndarray, "k k"]:
        points = np.asarray(stacked.to_matrix(clusters.models))
        return _euclidean(points, points)


@dataclass(frozen=True)
class CrossLoss(Distance):
    """The cross-cluster loss, Definition 5.1 of the SR-FCA paper: (f_i(w_j) + f_j(w_i)) / 2.

    f_i is the mean loss over the examples of client i, and f_c that of the clients of cluster c. The server
    sends the model of each client to all others, once, and the models of clusters to all clients; what comes
    back are numbers.
    """

    def blank(self, clients: int, parameters: int) -> Float[np.ndarray, "clients known"]:
        return np.full((clients, clients), np.nan, np.float32)

    def measure(
        self, own: PyTree, there: Bool[np.ndarray, " clients"], part: Part = None
    ) -> Exchange[np.ndarray]:
        """The loss of every client (row) under the model of every client (column)."""
        losses = self.blank(len(there), 0)
        known = np.flatnonzero(there)
        if not len(known):
            return losses
        at_once = max(1, BLOCK_BYTES // bytes_of(stacked.take(own, 0)))
        asked = None if there.all() else known
        # of nearly equal size, so that they share a compiled program or two
        for block in np.array_split(known, -(-len(known) // at_once)):
            answers = yield Ask(MeasureLosses(stacked.take(own, block), part), clients=asked)
            measured = np.where(np.asarray(answers.answered)[:, None], answers.report.losses, np.nan)
            losses[np.ix_(known, block)] = measured
        return losses

    def look(self, models: PyTree, part: Part = None) -> Exchange[Float[np.ndarray, "clients k"]]:
        answers = yield Ask(MeasureLosses(models, part))
        measured = np.asarray(answers.report.losses)
        return np.where(np.asarray(answers.answered)[:, None], measured, np.nan)

    def between_clients(self, own: np.ndarray) -> Float[np.ndarray, "clients clients"]:
        return np.asarray((own + own.T) / 2)

    def to_clusters(self, own: np.ndarray, clusters: Clusters) -> Float[np.ndarray, "clients k"]:
        assert clusters.said is not None
        # f_c(w_i): the clients of the cluster told of w_i before any cluster had a model
        of_cluster = np.full((stacked.count(clusters.models), len(own)), np.nan)
        of_cluster[:, : own.shape[1]] = _by_cluster(own, clusters)  # clients that joined later have no w_i
        return np.asarray((clusters.said + of_cluster.T) / 2)

    def between_clusters(self, clusters: Clusters) -> Float[np.ndarray, "k k"]:
        assert clusters.said is not None
        losses = _by_cluster(clusters.said, clusters)
        return np.asarray((losses + losses.T) / 2)


def _by_cluster(
    losses: Float[np.ndarray, "clients models"], clusters: Clusters
) -> Float[np.ndarray, "k models"]:
    """f_c: the mean loss over the clients of a cluster; NaN for one without clients that told a number."""
    measured = np.isfinite(losses)
    k = stacked.count(clusters.models)
    member = (clusters.assignment[:, None] == np.arange(k)).astype(np.float64)
    count = member.T @ measured
    return np.where(count > 0, member.T @ np.where(measured, losses, 0) / np.maximum(count, 1), np.nan)


def _euclidean(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
    """Distances without the difference of every pair in memory, nor that of two large squares."""
    return np.stack([np.linalg.norm(b - row, axis=1) for row in a])


DISTANCES: dict[str, type[Distance]] = {"cross_loss": CrossLoss, "l2": L2}


def distance_of(setting: Any) -> Distance:
    """The distance that a setting names, or is."""
    return DISTANCES[setting]() if isinstance(setting, str) else setting


def check_distance(setting: Any) -> None:
    """Refuse what is no distance."""
    if not isinstance(setting, Distance):
        one_of("distance", setting, *DISTANCES)
