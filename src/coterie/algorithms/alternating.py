"""Alternating minimisation: clients find their cluster, clusters improve their model, and again.

Two papers, one core, each a named setting of it:

- IFCA: the Iterative Federated Clustering Algorithm of Ghosh, Chung, Yin and Ramchandran, "An Efficient
  Framework for Clustered Federated Learning". Line numbers "IFCA n" are those of its Algorithm 1.
- FedX: Phase 2 of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression". Line
  numbers "FedX n" are those of the box "Phase 2 FedX+clustering".
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
from coterie.aggregate import Mean, Normalise, Sums
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
    """The core that IFCA, FedX and FedAvg are named settings of.

    Parameters
    ----------
    weight
        How much a client counts: the same as any other (`"clients"`) or as many times as it has examples
        (`"examples"`).
    average
        What clients send and the server averages: `"models"` after their local update, or `"gradients"`, of
        which the server takes a step with the step size of the local update.
    normalise
        By what a cluster's sum is divided: the weight of its own clients (`"cluster"`), so that it is their
        mean, or that of all participants (`"all"`), so that a cluster moves in proportion to its share of
        them. When not given, as the paper prints it.
    """

    weight: Literal["clients", "examples"] = "clients"
    average: Literal["models", "gradients"] = "models"
    normalise: Normalise | None = None

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
        if self.average not in ("models", "gradients"):
            raise SettingError(f"average must be 'models' or 'gradients', not {self.average!r}.")
        if self.normalise not in (None, "cluster", "all"):
            raise SettingError(f"normalise must be 'cluster' or 'all', not {self.normalise!r}.")
        if self.clusters < 1:
            raise SettingError(f"k must be at least 1, not {self.clusters}.")
        if self.clusters > clients:
            raise SettingError(
                f"k={self.clusters} clusters need at least as many clients; there are {clients}."
            )
        if self.restarts < 1:
            raise SettingError(f"n_init must be at least 1, not {self.restarts}.")

    @property
    def printed(self) -> Normalise:
        """What sums are divided by in the paper."""
        return "all" if self.average == "gradients" else "cluster"  # IFCA 14 and 15

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        # IFCA 1: theta_j^(0); restart r starts the same whatever the number of restarts
        models = self.initialiser(federation, learner, keys.grid(key, self.restarts, self.clusters))
        return State(models, jnp.full((self.restarts, federation.clients), -1, jnp.int32))

    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        # IFCA 3 to 12, FedX 5 to 8: broadcast theta_j to the participants; each finds its cluster (IFCA 6,
        # FedX 6) and updates that model (IFCA 9 or 11, FedX 8), all in one exchange
        broadcast = {"models": state.models, "round": jnp.broadcast_to(step.round, self.restarts)}
        if self.weight == "examples":
            broadcast["by_examples"] = jnp.ones(self.restarts, bool)
        answers = federation.ask(
            tasks.choose_and_train if self.average == "models" else tasks.choose_and_gradient,
            broadcast,
            clients=step.clients,
            key=step.key,
            reduce=Mean(self.clusters),
            replicas=self.restarts,
        )
        # IFCA 14 or 15, FedX 9; a cluster without participants stays as it is
        normalise = self.normalise or self.printed

        def updated(sums: Sums, old: PyTree) -> PyTree:
            if self.average == "gradients":
                return sums.descent(old, learner.local.rate(step.round), normalise)
            return sums.mean(old, normalise)

        models = jax.vmap(updated)(answers.value, state.models)
        known = state.assignment[:, answers.clients]
        latest = jnp.where(answers.answered.T, answers.cluster.T, known)
        assignment = state.assignment.at[:, answers.clients].set(latest)
        return State(models, assignment), Outcome.of(
            answers, answers.report["loss"], assignment, self.clusters
        )

    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        # IFCA 17, then IFCA 6 once more for everybody under the final models: the assignment, and the
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
class Clustered(Alternating):
    """Alternating minimisation with k models, from any start."""

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
        fields = [getattr(self, f.name) for f in dataclasses.fields(self) if f.compare]
        return hash((type(self), *fields))


@dataclasses.dataclass(frozen=True)
class IFCA(Clustered):
    """The Iterative Federated Clustering Algorithm: model averaging (option II) or gradient averaging (I).

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
    weight, average, normalise, rounds, participation
        See `Alternating` and `RoundAlgorithm`. Line 14 divides gradients by the number of all participants,
        line 15 models by that of the cluster.

    A client takes the model of lowest loss, the first of them in a tie. A cluster that no participant takes
    in a round keeps its model.
    """

    __hash__ = Clustered.__hash__


@dataclasses.dataclass(frozen=True)
class FedX(Clustered):
    """FedAvg or FedProx with clustering: Phase 2 of the mixed-regression paper.

    The local update decides which: `SGD(lr=eta, steps=s)` is FedAvg's, s steps of gradient descent. The
    paper's loss is `"half_squared"`.

    Parameters
    ----------
    k, n_init, init, average, rounds, participation
        As for `IFCA`.
    weight, normalise
        As printed, theta_t = sum over clients of w_i theta_{i,t} with w_i = n_i / N, where a client leaves
        the models of other clusters as they are: `weight="examples"` and `normalise="all"`.
    """

    weight: Literal["clients", "examples"] = dataclasses.field(default="examples", kw_only=True)

    __hash__ = Clustered.__hash__

    @property
    def printed(self) -> Normalise:
        return "all"  # FedX 9


class Given:
    """Models that the user gave, for every restart."""

    def __init__(self, models: PyTree) -> None:
        self.models = models

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        models = stacked.given(self.models, learner.shapes(federation.spec))
        if stacked.count(models) != keys.shape[1]:
            raise SettingError(f"k is {keys.shape[1]} but {stacked.count(models)} initial models are given.")
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), models)
