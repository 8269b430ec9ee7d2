"""Federated averaging: one model for all clients, or one for each of clusters that are known beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from coterie.aggregate import Aggregator, Denominator, Mean
from coterie.algorithms.algorithm import Round, unknown
from coterie.algorithms.known_clusters import KnownClusters, State
from coterie.algorithms.parts import clusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.initialise.random import fresh_models
from coterie.learn.learner import Learner
from coterie.learn.tasks import Send


@dataclasses.dataclass(frozen=True, kw_only=True)
class Global(KnownClusters[State]):
    """One model for all clients: FedAvg; FedProx with a `proximal` term in the local update.

    Parameters
    ----------
    weight, average, normalise, aggregate
        See `Averaging`: a plain mean of the participants' models, when not given. FedAvgM and FedAdam are
        `aggregate=FedAvgM()` and `aggregate=FedAdam()`.
    rounds, participation
        See `Algorithm`.
    """

    weight: Weight = "clients"
    average: Send = "models"
    normalise: Denominator = "cluster"
    aggregate: Aggregator = dataclasses.field(default_factory=Mean, metadata={"part": "aggregate"})

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        return self.state_of(fresh_models(server, key, 1), server.clients)
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(models, unknown(clients), self.averaging.start(models))

    def ask(self, state: State, round: Round) -> Ask:
        return self.averaging.ask(state.models, round.number)

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight, self.average, self.normalise, self.aggregate)


@dataclasses.dataclass(frozen=True)
class Oracle(KnownClusters[State]):
    """One model for each cluster, of clients that are told which cluster they belong to.

    It is what a method could reach at best if it found the true clusters. A client of which the truth is not
    known takes the model of lowest loss.

    Parameters
    ----------
    truth
        The cluster of every client, in the order of `data.train.ids` (such as `data.truth`), or by client id.
    weight, average, normalise, aggregate
        See `Averaging`.
    rounds, participation
        See `Algorithm`.
    """

    truth: Any = dataclasses.field(default=None, compare=False)
    weight: Weight = dataclasses.field(default="clients", kw_only=True)
    average: Send = dataclasses.field(default="models", kw_only=True)
    normalise: Denominator = dataclasses.field(default="cluster", kw_only=True)
    aggregate: Aggregator = dataclasses.field(
        default_factory=Mean, kw_only=True, metadata={"part": "aggregate"}
    )

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        state = self.state_of(fresh_models(server, key, len(set(self._labels))), server.clients)
        return dataclasses.replace(state, assignment=jnp.asarray(self._clusters(server.ids)))
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(models, unknown(clients), self.averaging.start(models))

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight, self.average, self.normalise, self.aggregate)

    def joined(self, server: Server, state: State) -> State:
        known = jnp.asarray(self._clusters(server.ids))
        return dataclasses.replace(state, assignment=jnp.where(state.assignment < 0, known, state.assignment))

    def check(self, clients: int, learner: Learner) -> None:
        if self.truth is None:
            raise SettingError("the oracle needs the true clusters: give truth, such as data.truth.")
        try:
            sorted(set(self._labels))
        except TypeError:
            raise SettingError(
                "truth must be one label per client, all of them numbers or all of them words."
            ) from None
        if not self._labels:
            raise SettingError("truth has no labels: give one per client, such as data.truth.")
        super().check(clients, learner)
        clusters.check_number(len(set(self._labels)), clients)
        if not isinstance(self.truth, Mapping) and len(self.truth) != clients:
            raise SettingError(f"truth has {len(self.truth)} labels for {clients} clients.")

    @property
    def _labels(self) -> list[Any]:
        """The label of every client, in order."""
        given = list(self.truth.values() if isinstance(self.truth, Mapping) else self.truth)
        return [label.item() if isinstance(label, np.generic) else label for label in given]

    def _clusters(self, ids: np.ndarray) -> Int[np.ndarray, " clients"]:
        """The cluster of each of these clients; -1 for one of which it is not known."""
        number = {label: j for j, label in enumerate(sorted(set(self._labels)))}
        clients = self.truth if isinstance(self.truth, Mapping) else ids[: len(self.truth)]
        known = {str(c): number[label] for c, label in zip(clients, self._labels, strict=True)}
        return np.array([known.get(str(client), -1) for client in ids], np.int32)
