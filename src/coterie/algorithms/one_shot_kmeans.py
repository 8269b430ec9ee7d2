"""Cluster once, by the models that clients train alone, and then train for each cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Key

from coterie import keys
from coterie.algorithms.alternating import Told
from coterie.algorithms.state import Note, State
from coterie.errors import SettingError
from coterie.federation.protocol import Federation
from coterie.initialise.one_shot import OneShot
from coterie.learn.learner import Learner
from coterie.words import count


@dataclasses.dataclass(frozen=True)
class OneShotKMeans(Told):
    """One-shot clustering: local models, k-means on their parameters, then federated averaging per cluster.

    A client's cluster never changes, so that it is sent one model only; a client that joins later takes the
    model that fits it best, and keeps to it.

    Parameters
    ----------
    k
        Number of clusters. When not given, the number from 2 to `most` with the highest silhouette: which it
        was is in `history.events`. (A silhouette cannot tell that all clients are alike.)
    alone
        For how many rounds of its local update each client trains before its model is clustered.
    most
        The largest number of clusters that is tried.
    weight, average, normalise, aggregate, rounds, participation
        See `Alternating` and `RoundAlgorithm`.
    """

    k: int | None = None
    alone: int = dataclasses.field(default=20, kw_only=True)
    most: int = dataclasses.field(default=10, kw_only=True)

    @property
    def clusters(self) -> int:
        return 1 if self.k is None else self.k

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.most < 2:
            raise SettingError(f"most must be at least 2 clusters, not {self.most}.")
        if self.k is None and clients < 3:
            raise SettingError(f"a silhouette needs at least 3 clients, and there are {clients}: give k.")

    def pauses(self) -> Sequence[int]:
        return (0,)

    def between(
        self, federation: Federation, learner: Learner, state: State, done: int, seed: int
    ) -> tuple[State, Note]:
        return self.grouped(federation, learner, keys.purpose(seed, "init"))

    def grouped(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> tuple[State, Note]:
        """The clusters, by the models that clients train alone."""
        numbers = range(2, self.most + 1) if self.k is None else [self.k]
        found = OneShot(self.alone).grouped(federation, learner, keys.grid(key, 1, 1), numbers)
        text = f"k-means on the models that clients trained alone: {count(found.k, 'cluster')}"
        if found.silhouettes:
            best, tried = found.silhouettes[found.k], max(found.silhouettes)
            text += f", whose silhouette of {best:.2f} is the highest of 2 to {tried}"
        details = {"silhouettes": {str(number): value for number, value in found.silhouettes.items()}}
        return State(found.models, jnp.asarray(found.labels, jnp.int32)), Note(
            "one-shot", f"{text}.", details
        )
