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
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys
from coterie.aggregate import Mean, Normalise, SoftMean, Sums
from coterie.algorithms import identities, sharing
from coterie.algorithms.restarts import Kept, lowest_loss
from coterie.algorithms.rounds import Outcome, RoundAlgorithm, State, Step
from coterie.clustering.history import History, RoundLog
from coterie.clustering.result import Clustering
from coterie.errors import SettingError
from coterie.federation.protocol import Federation, Reduction
from coterie.initialise import Given, Random
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
        which the server takes a step with the step size of the local update. That may be an array with one
        step size for each restart.
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

    @property
    def printed(self) -> Normalise:
        """What sums are divided by in the paper."""
        return "all" if self.average == "gradients" else "cluster"  # IFCA 14 and 15

    def check(self, clients: int) -> None:
        super().check(clients)
        _one_of("weight", self.weight, "clients", "examples")
        _one_of("average", self.average, "models", "gradients")
        _one_of("normalise", self.normalise, None, "cluster", "all")
        if self.clusters < 1:
            raise SettingError(f"k must be at least 1, not {self.clusters}.")
        if self.clusters > clients:
            raise SettingError(
                f"k={self.clusters} clusters need at least as many clients; there are {clients}."
            )
        if self.restarts < 1:
            raise SettingError(f"n_init must be at least 1, not {self.restarts}.")

    def template(self, federation: Federation, learner: Learner) -> State:
        fresh = jax.eval_shape(
            lambda key: Random()(federation, learner, keys.grid(key, self.restarts, self.clusters)),
            jax.random.key(0),
        )
        shapes: State = jax.eval_shape(lambda models: self.begin(models, federation.clients), fresh)
        return shapes

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        # IFCA 1: theta_j^(0); restart r starts the same whatever the number of restarts
        models = self.initialiser(federation, learner, keys.grid(key, self.restarts, self.clusters))
        return self.begin(models, federation.clients)

    def begin(self, models: PyTree, clients: int) -> State:
        """The state before the first round, given the models."""
        return State(models, jnp.full((self.restarts, clients), -1, jnp.int32))

    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        # IFCA 3 to 12, FedX 5 to 8: broadcast theta_j to the participants; each finds its cluster (IFCA 6,
        # FedX 6) and updates that model (IFCA 9 or 11, FedX 8), all in one exchange
        told = self.told(state)
        asked = jnp.arange(federation.clients) if step.clients is None else step.clients.clients
        answers = federation.ask(
            self.task,
            self.broadcast(state.models, step),
            each=None if told is None else {"only": told[:, asked].T},
            clients=step.clients,
            key=step.key,
            reduce=self.reduction,
            replicas=self.restarts,
        )
        # IFCA 14 or 15, FedX 9; a cluster without participants stays as it is
        rate = None
        if self.average == "gradients":
            rate = jnp.broadcast_to(learner.local.rate(step.round), self.restarts)
        models = jax.vmap(self.updated)(answers.value, state.models, rate)
        known = state.assignment[:, answers.clients]
        latest = jnp.where(answers.answered.T, answers.cluster.T, known)
        assignment = state.assignment.at[:, answers.clients].set(latest)
        loss = answers.report["loss"]
        after = self.followed_up(
            dataclasses.replace(state, models=models, assignment=assignment),
            state.assignment,
            answers.clients,
            answers.answered,
            loss,
        )
        return after, Outcome.of(answers, loss, assignment, self.clusters)

    @property
    def task(self) -> tasks.Task:
        """What clients are asked in a round."""
        return tasks.choose_and_train if self.average == "models" else tasks.choose_and_gradient

    @property
    def reduction(self) -> Reduction:
        """How their replies are summed."""
        return Mean(self.clusters)

    def broadcast(self, models: PyTree, step: Step) -> dict[str, Any]:
        """What every participant of a round is sent."""
        content = {"models": models, "round": jnp.broadcast_to(step.round, self.restarts)}
        return content | ({"by_examples": self._mark} if self.weight == "examples" else {})

    @property
    def _mark(self) -> Array:
        """Something that is said by being there."""
        return jnp.ones(self.restarts, bool)

    def told(self, state: State) -> Int[Array, "restarts clients"] | None:
        """The cluster whose model a client trains without choosing, -1 where it chooses."""
        return None

    def updated(self, sums: Sums, old: PyTree, rate: Float[Array, ""] | None) -> PyTree:
        """The models of one restart, given the sums of what clients sent."""
        return _moved(sums, old, rate, self.normalise or self.printed)

    def followed_up(
        self,
        state: State,
        before: Int[Array, "restarts clients"],
        clients: Int[Array, " asked"],
        answered: Array,
        loss: Float[Array, "asked restarts"],
    ) -> State:
        """The state after a round: `before` it the clients' clusters were those, and it told this."""
        return state

    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        # IFCA 17, then IFCA 6 once more for everybody under the final models: the assignment, and the
        # training loss by which the best restart is kept
        answers = federation.ask(tasks.losses, {"models": state.models}, replicas=self.restarts)
        best = lowest_loss(np.array(answers.report["losses"]), np.asarray(answers.answered))
        assignment = self.final(np.asarray(state.assignment)[best.restart], best)
        return Clustering(
            ids=federation.ids,
            assignment=assignment.astype(np.int32),
            models=stacked.take(state.models, best.restart),
            learner=learner,
            spec=federation.spec,
            history=History(logs, federation.clients, best.restart),
            losses=best.losses,
            algorithm=self.settings(),
            seed=seed,
            provenance=federation.describe(),
        )

    def final(self, known: Int[np.ndarray, " clients"], best: Kept) -> np.ndarray:
        """The clusters of the clients, given those that the last round knew."""
        return np.where(best.told, np.asarray(tasks.lowest(jnp.asarray(best.losses))), known)


def _moved(sums: Sums, old: PyTree, rate: Float[Array, ""] | None, normalise: Normalise) -> PyTree:
    return sums.mean(old, normalise) if rate is None else sums.descent(old, rate, normalise)


def _one_of(name: str, value: Any, *allowed: Any) -> None:
    if value not in allowed:
        words = " or ".join(repr(choice) for choice in allowed if choice is not None)
        raise SettingError(f"{name} must be {words}, not {value!r}.")


@dataclasses.dataclass(frozen=True)
class Clustered(Alternating):
    """Alternating minimisation with k models, from any start: see `IFCA`."""

    k: int
    n_init: int = dataclasses.field(default=5, kw_only=True)
    init: Any = dataclasses.field(
        default_factory=Random, kw_only=True, compare=False, metadata={"part": "init"}
    )
    empty: Literal["keep", "revive"] = dataclasses.field(default="keep", kw_only=True)
    share: sharing.Share | None = dataclasses.field(default=None, kw_only=True)
    settle: int | None = dataclasses.field(default=None, kw_only=True)
    recheck: int = dataclasses.field(default=10, kw_only=True)
    resample: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.share, list):  # as an experiment file has it
            object.__setattr__(self, "share", tuple(self.share))

    @property
    def clusters(self) -> int:
        return self.k

    @property
    def restarts(self) -> int:
        return 1 if isinstance(self.initialiser, Given) else self.n_init

    @property
    def initialiser(self) -> Any:
        return self.init if callable(self.init) else Given(self.init)

    @property
    def frozen(self) -> bool:
        """Whether what is shared stays as it starts."""
        return False

    def check(self, clients: int) -> None:
        super().check(clients)
        _one_of("empty", self.empty, "keep", "revive")
        sharing.check(self.share)
        if self.settle is not None and self.settle < 1:
            raise SettingError(f"settle must be a number of rounds from 1 up, not {self.settle}.")
        if self.recheck < 2:
            raise SettingError(f"recheck must be a number of rounds from 2 up, not {self.recheck}.")
        if self.resample and self.settle is not None:
            raise SettingError("resample has clients find their cluster in every round: leave settle out.")

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        sharing.shared_names(self.share, learner.shapes(federation.spec))  # a mistake is heard of at once
        if self.resample:
            self._check_slices(federation)
        return super().start(federation, learner, key)

    def _check_slices(self, federation: Federation) -> None:
        sizes = federation.ask(tasks.size)
        few = np.flatnonzero(np.asarray(sizes.answered & (sizes.report["examples"] < 2 * self.rounds)))
        if len(few):
            raise SettingError(
                f"resample needs 2 examples per round of each client, {2 * self.rounds} in all; "
                f"client {federation.ids[few[0]]} has {int(sizes.report['examples'][few[0]])}."
            )

    def begin(self, models: PyTree, clients: int) -> State:
        state = super().begin(models, clients)
        shared = sharing.shared_names(self.share, models)
        # all clusters start with the shared arrays of the first
        first = {
            name: jnp.broadcast_to(a[:, :1], a.shape) for name, a in stacked.part(models, shared).items()
        }
        return State(
            stacked.with_part(models, first),
            state.assignment,
            steady=None if self.settle is None else jnp.zeros_like(state.assignment),
            told=jnp.full_like(state.assignment, -1) if self.empty == "revive" else None,
        )

    def broadcast(self, models: PyTree, step: Step) -> dict[str, Any]:
        content = super().broadcast(models, step)
        shared = sharing.shared_names(self.share, models)
        if shared:
            # one copy of what all have in common, k of the rest
            one = {name: leaf[:, 0] for name, leaf in stacked.part(models, shared).items()}
            content |= {"models": stacked.part(models, stacked.named(models).keys() - shared), "shared": one}
            content |= {"frozen": self._mark} if self.frozen else {}
        if self.resample:
            content["slices"] = jnp.full(self.restarts, 2 * self.rounds)
        return content

    def told(self, state: State) -> Int[Array, "restarts clients"] | None:
        told = state.told
        if state.steady is not None and self.settle is not None:
            alone = identities.settled(state.steady, self.settle, self.recheck)
            own = jnp.where(alone, state.assignment, -1)
            told = own if told is None else jnp.where(told < 0, own, told)
        return told

    def updated(self, sums: Sums, old: PyTree, rate: Float[Array, ""] | None) -> PyTree:
        shared = sharing.shared_names(self.share, old)
        if shared and self.frozen:
            own = stacked.part(old, stacked.named(old).keys() - shared)
            return stacked.with_part(old, super().updated(sums, own, rate))
        new = super().updated(sums, old, rate)
        if not shared:
            return new
        # "run vanilla gradient averaging or Federated Averaging on the remaining coordinates"
        together = _moved(sums.pooled(), old, rate, "cluster")
        return stacked.with_part(new, stacked.part(together, shared))

    def followed_up(
        self,
        state: State,
        before: Int[Array, "restarts clients"],
        clients: Int[Array, " asked"],
        answered: Array,
        loss: Float[Array, "asked restarts"],
    ) -> State:
        if state.steady is not None:
            replied = jnp.zeros(before.shape, bool).at[:, clients].set(answered.T)
            steady = identities.counted(state.steady, before, state.assignment, replied)
            state = dataclasses.replace(state, steady=steady)
        if state.told is not None:
            models, told = jax.vmap(identities.revived, in_axes=(0, 0, None, 1, 1, None))(
                state.models, state.assignment, clients, answered, loss, self.k
            )
            state = dataclasses.replace(state, models=models, told=told)
        return state

    def __hash__(self) -> int:
        # `init` may hold arrays, and no compiled round depends on it. A dataclass makes a hash of its own
        # for every subclass, so each of them says that this is the one
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
    empty
        What becomes of a cluster that no client belongs to: its model stays as it is (`"keep"`), or it
        begins anew from a client that its own cluster fits badly (`"revive"`).
    share
        Arrays that all clusters have in common (section 4.1): they are averaged over all participants in
        every round, while the others are clustered, and only one copy of them is sent. `"all but last"`
        layer, names of layers such as `["layers.0"]`, or a function of an array's name.
    settle, recheck
        A client whose cluster has stayed the same for `settle` of its rounds is sent only its own model
        (section 4.1), and all of them every `recheck`-th time, to see whether that is still right. What is
        not sent for this reason is `bytes_spared` in the history.
    resample
        In every round find the cluster on one slice of the shard and train on another, all of them disjoint:
        the assumption of the theory in section 5, of no use in practice.
    preset
        `"authors"`: what is shared is not trained at all, as in the released code, where it comes from a
        model trained before; give it as `init`.
    weight, average, normalise, rounds, participation
        See `Alternating` and `RoundAlgorithm`. Line 14 divides gradients by the number of all participants,
        line 15 models by that of the cluster.

    A client takes the model of lowest loss, the first of them in a tie.
    """

    preset: Literal["authors"] | None = dataclasses.field(default=None, kw_only=True)

    __hash__ = Clustered.__hash__

    @property
    def frozen(self) -> bool:
        return self.preset == "authors"

    def check(self, clients: int) -> None:
        super().check(clients)
        _one_of("preset", self.preset, None, "authors")
        if self.preset == "authors" and self.share is None:
            raise SettingError("preset='authors' is about shared layers: say with share which they are.")


@dataclasses.dataclass(frozen=True)
class FedX(Clustered):
    """FedAvg or FedProx with clustering: Phase 2 of the mixed-regression paper.

    The local update decides which: `SGD(lr=eta, steps=s)` is FedAvg's, s steps of gradient descent, and
    `Proximal(lr=eta)` is FedProx's. The paper's loss is `"half_squared"`; Phase 1 is `init=MomentDescent()`.

    Parameters
    ----------
    temperature
        0: hard labels, (7) of the paper, and a client trains one model. Above 0: soft labels, lambda =
        softmax(-loss / temperature), and a client trains and sends all k, each as far as it belongs to it.
    weight, normalise
        As printed, theta_t = sum over clients of w_i theta_{i,t} with w_i = n_i / N, where a client leaves
        the models of other clusters as they are: `weight="examples"` and `normalise="all"`.
    k, n_init, init, empty, share, settle, recheck, resample, average, rounds, participation
        As for `IFCA`.
    """

    weight: Literal["clients", "examples"] = dataclasses.field(default="examples", kw_only=True)
    temperature: float = dataclasses.field(default=0.0, kw_only=True)

    __hash__ = Clustered.__hash__

    @property
    def printed(self) -> Normalise:
        return "all"  # FedX 9

    @property
    def soft(self) -> bool:
        return self.temperature > 0

    def check(self, clients: int) -> None:
        super().check(clients)
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature must be 0 or a positive number, not {self.temperature}.")
        others = {
            "average='gradients'": self.average == "gradients",
            "share": self.share is not None,
            "settle": self.settle is not None,
            "resample": self.resample,
            "empty='revive'": self.empty == "revive",
        }
        clash = [name for name, given in others.items() if given]
        if self.soft and clash:
            raise SettingError(f"with soft labels clients train every model: leave {clash[0]} out.")

    @property
    def task(self) -> tasks.Task:
        return tasks.weigh_and_train if self.soft else super().task

    @property
    def reduction(self) -> Reduction:
        return SoftMean(self.k) if self.soft else super().reduction

    def broadcast(self, models: PyTree, step: Step) -> dict[str, Any]:
        content = super().broadcast(models, step)
        return content | ({"temperature": jnp.full(self.restarts, self.temperature)} if self.soft else {})
