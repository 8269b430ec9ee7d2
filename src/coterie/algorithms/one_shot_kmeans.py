"""Cluster once, by the models that clients train alone, and then train for each cluster, or not at all."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie.aggregate import Aggregator, Denominator, Mean
from coterie.algorithms.algorithm import Note, Pause, unknown
from coterie.algorithms.known_clusters import KnownClusters, State
from coterie.algorithms.parts import clusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.algorithms.parts.sharing import Share, Sharing, check_share
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.initialise.one_shot import OneShot
from coterie.initialise.random import fresh_models
from coterie.learn.learner import Learner
from coterie.learn.tasks import Send
from coterie.models import stacked
from coterie.words import count


@dataclasses.dataclass(frozen=True)
class OneShotKMeans(KnownClusters[State]):
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
    rounds
        Of federated averaging afterwards. With 0 the models are the means of the clients' own: Local-KMeans
        of the SR-FCA paper, which has a single exchange at the end of training.
    trained
        The models that clients have trained before, (clients, ...), such as those that `Local` found: they
        train alone no more.
    most
        The largest number of clusters that is tried.
    weight, average, normalise, aggregate
        See `Averaging`.
    share
        Arrays that all clusters have in common, as for `IFCA`: they are averaged over all clients, once
        these have trained alone and in every round.
    participation
        See `Algorithm`.
    """

    k: int | None = None
    alone: int = dataclasses.field(default=20, kw_only=True)
    trained: PyTree = dataclasses.field(default=None, kw_only=True, compare=False)
    most: int = dataclasses.field(default=10, kw_only=True)
    weight: Weight = dataclasses.field(default="clients", kw_only=True)
    average: Send = dataclasses.field(default="models", kw_only=True)
    normalise: Denominator = dataclasses.field(default="cluster", kw_only=True)
    aggregate: Aggregator = dataclasses.field(
        default_factory=Mean, kw_only=True, metadata={"part": "aggregate"}
    )
    share: Share | None = dataclasses.field(default=None, kw_only=True)

    least_rounds: ClassVar[int] = 0

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        self.averaging.sharing.check_model(server.learner.shapes(server.spec))
        return self.state_of(fresh_models(server, key, self.k or 1), server.clients)
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(models, unknown(clients), self.averaging.start(models))

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        if done > 0:
            return Pause(state, 0)
        numbers = range(2, self.most + 1) if self.k is None else [self.k]
        found = yield from OneShot(self.alone, self.trained).grouped(server, server.start_key(0), numbers)
        text = f"k-means on the models that clients trained alone: {count(found.k, 'cluster')}"
        if found.silhouettes:
            best, tried = found.silhouettes[found.k], max(found.silhouettes)
            text += f", whose silhouette of {best:.2f} is the highest of 2 to {tried}"
        details = {"silhouettes": {str(number): value for number, value in found.silhouettes.items()}}
        labels = jnp.asarray(found.labels, jnp.int32)
        members = np.bincount(found.labels[found.labels >= 0], minlength=found.k)
        everybody = stacked.weighted(found.models, np.tile(members / members.sum(), (found.k, 1)).T)
        models = self.averaging.sharing.with_shared(found.models, everybody)
        after = State(models, labels, self.averaging.start(models))
        return Pause(after, self.rounds, Note("one-shot", f"{text}.", details))

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight, self.average, self.normalise, self.aggregate, Sharing(self.share))

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        check_share(self.share)
        clusters.check_number(self.k, clients)
        if self.most < 2:
            raise SettingError(f"most must be at least 2 clusters, not {self.most}.")
        if self.k is None and clients < 3:
            raise SettingError(f"a silhouette needs at least 3 clients, and there are {clients}: give k.")
