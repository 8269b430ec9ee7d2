"""Alternating minimisation: clients find their cluster, clusters improve their model, and again.

The Iterative Federated Clustering Algorithm (IFCA) of Ghosh, Chung, Yin and Ramchandran, "An Efficient
Framework for Clustered Federated Learning". Line numbers are those of its Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie import keys
from coterie.aggregate import Mean
from coterie.algorithms.rounds import Outcome, RoundAlgorithm, State, Step, diverged
from coterie.clustering.history import History, RoundLog
from coterie.clustering.result import Clustering
from coterie.errors import SettingError
from coterie.federation.protocol import Federation
from coterie.initialise import Random
from coterie.learn import tasks
from coterie.learn.learner import Learner
from coterie.models import stacked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternating(RoundAlgorithm):
    """The core that IFCA and FedAvg are named settings of."""

    weight: Literal["clients", "examples"] = "clients"

    @property
    @abstractmethod
    def clusters(self) -> int:
        """How many models are trained."""

    @property
    def restarts(self) -> int:
        """How many starts run side by side."""
        return 1

    @property
    def initialiser(self) -> Any:
        """How the models start."""
        return Random()

    def check(self, clients: int) -> None:
        super().check(clients)
        if self.weight not in ("clients", "examples"):
            raise SettingError(f"weight must be 'clients' or 'examples', not {self.weight!r}.")
        if self.clusters < 1:
            raise SettingError(f"k must be at least 1, not {self.clusters}.")
        if self.clusters > clients:
            raise SettingError(
                f"k={self.clusters} clusters need at least as many clients; there are {clients}."
            )
        if self.restarts < 1:
            raise SettingError(f"n_init must be at least 1, not {self.restarts}.")

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        # line 1: theta_j^(0); restart r starts the same whatever the number of restarts
        models = self.initialiser(federation, learner, keys.grid(key, self.restarts, self.clusters))
        return State(models, jnp.full((self.restarts, federation.clients), -1, jnp.int32))

    def round(self, federation: Federation, state: State, step: Step) -> tuple[State, Outcome]:
        # lines 3 to 12: broadcast theta_j to the participants M_t; each finds its cluster (line 6) and
        # updates that model (line 11) in one exchange
        broadcast = {"models": state.models, "round": jnp.broadcast_to(step.round, self.restarts)}
        if self.weight == "examples":
            broadcast["by_examples"] = jnp.ones(self.restarts, bool)
        answers = federation.ask(
            tasks.choose_and_train,
            broadcast,
            clients=step.clients,
            key=step.key,
            reduce=Mean(self.clusters),
            replicas=self.restarts,
        )
        # line 15: theta_j <- mean of the models of S_j; an empty cluster keeps its model
        models = jax.vmap(lambda sums, old: sums.mean(otherwise=old))(answers.value, state.models)
        known = state.assignment[:, answers.clients]
        latest = jnp.where(answers.answered.T, answers.cluster.T, known)
        assignment = state.assignment.at[:, answers.clients].set(latest)
        return State(models, assignment), Outcome.of(
            answers, answers.report["loss"], assignment, self.clusters
        )

    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        # line 17, then line 6 once more for everybody under the final models: the assignment, and the
        # training loss by which the best restart is kept
        answers = federation.ask(tasks.losses, {"models": state.models}, replicas=self.restarts)
        losses = np.array(answers.report["losses"])  # (clients, restarts, k)
        lowest = np.where(np.isfinite(losses), losses, np.inf).min(axis=2)
        answered = np.asarray(answers.answered)
        told = answered & np.isfinite(lowest)
        # a restart diverged if most say so; a few who have no number for it tell nothing
        sane = 2 * told.sum(axis=0) > answered.sum(axis=0)
        final = np.where(told, lowest, 0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
        final = np.where(sane | ~answered.any(axis=0), final, np.inf)
        best = int(np.argmin(final))
        if not np.isfinite(final[best]):
            raise diverged("in the last round")
        chosen = np.where(
            told[:, best],
            np.asarray(tasks.lowest(jnp.asarray(losses)))[:, best],
            np.asarray(state.assignment)[best],
        )
        return Clustering(
            ids=federation.ids,
            assignment=chosen.astype(np.int32),
            models=stacked.take(state.models, best),
            learner=learner,
            spec=federation.spec,
            history=History(logs, federation.clients, best),
            losses=np.where(told[:, best, None], losses[:, best], np.nan),
            algorithm=self.settings(),
            seed=seed,
            provenance=federation.describe(),
        )


@dataclasses.dataclass(frozen=True)
class IFCA(Alternating):
    """The Iterative Federated Clustering Algorithm with model averaging (Algorithm 1, option II).

    Parameters
    ----------
    k
        Number of clusters to look for.
    n_init
        Restarts from different initial models, run side by side; the one with the lowest training loss after
        the last round is kept.
    init
        How the k models start: an initialiser such as `Random()`, or k models given as a stacked pytree or
        as a (k, d) matrix.
    weight
        How much a client counts in its cluster's average: the same as any other (`"clients"`, the paper's) or
        as many times as it has examples (`"examples"`).
    rounds, participation
        See `RoundAlgorithm`.

    A client takes the model of lowest loss, the first of them in a tie. A cluster that no participant takes
    in a round keeps its model.
    """

    k: int
    n_init: int = dataclasses.field(default=5, kw_only=True)
    init: Any = dataclasses.field(default_factory=Random, kw_only=True, compare=False)

    @property
    def clusters(self) -> int:
        return self.k

    @property
    def restarts(self) -> int:
        return 1 if isinstance(self.initialiser, Given) else self.n_init

    @property
    def initialiser(self) -> Any:
        return self.init if callable(self.init) else Given(self.init)

    def settings(self) -> dict[str, Any]:
        default = isinstance(self.init, Random)
        return super().settings() | ({} if default else {"init": type(self.initialiser).__name__.lower()})

    def __hash__(self) -> int:
        # `init` may hold arrays, and no compiled round depends on it
        return hash((self.k, self.n_init, self.rounds, self.participation, self.weight, type(self)))


class Given:
    """Models that the user gave, for every restart."""

    def __init__(self, models: PyTree) -> None:
        self.models = models

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        models = stacked.given(self.models, learner.shapes(federation.spec))
        if stacked.count(models) != keys.shape[1]:
            raise SettingError(f"k is {keys.shape[1]} but {stacked.count(models)} initial models are given.")
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), models)
