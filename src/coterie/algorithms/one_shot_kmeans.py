"""Cluster once, by the models that clients train alone, and then train for each cluster."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from coterie import keys
from coterie.algorithms.alternating import Alternating
from coterie.algorithms.restarts import Kept
from coterie.algorithms.rounds import State
from coterie.federation.protocol import Federation
from coterie.initialise.one_shot import OneShot
from coterie.learn.learner import Learner


@dataclasses.dataclass(frozen=True)
class OneShotKMeans(Alternating):
    """One-shot clustering: local models, k-means on their parameters, then federated averaging per cluster.

    A client's cluster never changes, so that it is sent one model only; a client that joins later takes the
    model that fits it best, and keeps to it.

    Parameters
    ----------
    k
        Number of clusters.
    alone
        For how many rounds of its local update each client trains before its model is clustered.
    weight, average, normalise, aggregate, rounds, participation
        See `Alternating` and `RoundAlgorithm`.
    """

    k: int
    alone: int = dataclasses.field(default=20, kw_only=True)

    @property
    def clusters(self) -> int:
        return self.k

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        models, labels = OneShot(self.alone).grouped(federation, learner, keys.grid(key, 1, self.k))
        return State(models, jnp.asarray(labels, jnp.int32))

    def told(self, state: State) -> Int[Array, "restarts clients"]:
        return state.assignment

    def final(self, known: Int[np.ndarray, " clients"], best: Kept) -> np.ndarray:
        return np.where(known < 0, super().final(known, best), known)
