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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys
from coterie.aggregate import Aggregator, Mean, Normalise, Sums
from coterie.algorithms import identities, sharing
from coterie.algorithms.restarts import Kept, lowest_loss
from coterie.algorithms.rounds import RoundAlgorithm
from coterie.algorithms.state import Outcome, Result, State, Step
from coterie.errors import SettingError
from coterie.federation.protocol import Answers, Federation, Reduction
from coterie.initialise import Given, Random
from coterie.learn import tasks
from coterie.learn.learner import Learner
from coterie.learn.tasks import Reply
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
    aggregate
        How the replies of a cluster's clients become one: `Mean()`, or what a few wrong ones cannot move far,
        `TrimmedMean(beta)` or `Median()`.
    """

    weight: Literal["clients", "examples"] = "clients"
    average: Literal["models", "gradients"] = "models"
    normalise: Normalise | None = None
    aggregate: Aggregator = dataclasses.field(default_factory=Mean, metadata={"part": "aggregate"})

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
        one_of("weight", self.weight, "clients", "examples")
        one_of("average", self.average, "models", "gradients")
        one_of("normalise", self.normalise, None, "cluster", "all")
        if self.clusters < 1:
            raise SettingError(f"k must be at least 1, not {self.clusters}.")
        if self.clusters > clients:
            raise SettingError(
                f"k={self.clusters} clusters need at least as many clients; there are {clients}."
            )
        if self.restarts < 1:
            raise SettingError(f"n_init must be at least 1, not {self.restarts}.")

    def template(self, federation: Federation, learner: Learner, models: int | None = None) -> State:
        count = self.clusters if models is None else models
        fresh = jax.eval_shape(
            lambda key: Random()(federation, learner, keys.grid(key, self.restarts, count)), jax.random.key(0)
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
        k = jax.tree.leaves(state.models)[0].shape[1]
        reduction = self.reduction(k)
        answers = federation.ask(
            self.task,
            self.broadcast(state.models, step),
            each=None if told is None else {"only": told[:, asked].T},
            clients=step.clients,
            key=step.key,
            reduce=reduction,
            replicas=self.restarts,
        )
        # IFCA 14 or 15, FedX 9; a cluster without participants stays as it is
        rate = None
        if self.average == "gradients":
            rate = jnp.broadcast_to(learner.local.rate(step.round), self.restarts)
        sums = answers.value if reduction is not None else _gathered(self.aggregate, answers, k)
        models = jax.vmap(self.updated)(sums, state.models, rate)
        known = state.assignment[:, answers.clients]
        latest = jnp.where(answers.answered.T, answers.cluster.T, known)
        assignment = state.assignment.at[:, answers.clients].set(latest)
        after = dataclasses.replace(state, models=models, assignment=assignment)
        outcome = Outcome.of(answers, answers.report["loss"], assignment, k)
        return self.followed_up(state, after, answers), outcome

    @property
    def task(self) -> tasks.Task:
        """What clients are asked in a round."""
        return tasks.choose_and_train if self.average == "models" else tasks.choose_and_gradient

    def reduction(self, k: int) -> Reduction | None:
        """How their replies are summed on the way; None if all of them are needed at once."""
        return self.aggregate.reduction(k)

    def broadcast(self, models: PyTree, step: Step) -> dict[str, Any]:
        """What every participant of a round is sent."""
        content = {"models": models, "round": jnp.broadcast_to(step.round, self.restarts)}
        return content | ({"by_examples": self.mark} if self.weight == "examples" else {})

    @property
    def mark(self) -> Array:
        """Something that is said by being there."""
        return jnp.ones(self.restarts, bool)

    def told(self, state: State) -> Int[Array, "restarts clients"] | None:
        """The cluster whose model a client trains without choosing, -1 where it chooses."""
        return None

    def updated(self, sums: Sums, old: PyTree, rate: Float[Array, ""] | None) -> PyTree:
        """The models of one restart, given the sums of what clients sent."""
        return _moved(sums, old, rate, self.normalise or self.printed)

    def followed_up(self, before: State, after: State, answers: Answers) -> State:
        """The state after a round, with what else an algorithm keeps of it."""
        return after

    def finish(self, federation: Federation, learner: Learner, state: State, seed: int) -> Result:
        # IFCA 17, then IFCA 6 once more for everybody under the final models: the assignment, and the
        # training loss by which the best restart is kept
        answers = federation.ask(tasks.losses, {"models": state.models}, replicas=self.restarts)
        best = lowest_loss(np.array(answers.report["losses"]), np.asarray(answers.answered))
        assignment = self.final(np.asarray(state.assignment)[best.restart], best)
        return Result(assignment, stacked.take(state.models, best.restart), best.restart, best.losses)

    def final(self, known: Int[np.ndarray, " clients"], best: Kept) -> np.ndarray:
        """The clusters of the clients, given those that the last round knew."""
        return np.where(best.told, np.asarray(tasks.lowest(jnp.asarray(best.losses))), known)


def _gathered(aggregate: Aggregator, answers: Answers, k: int) -> Sums:
    """What an aggregator makes of all replies at once, for each restart."""
    replies = Reply({}, answers.value, answers.cluster, answers.weight)
    together: Sums = jax.vmap(lambda r, a: aggregate.sums(r, a, k), in_axes=1)(replies, answers.answered)
    return together


def _moved(sums: Sums, old: PyTree, rate: Float[Array, ""] | None, normalise: Normalise) -> PyTree:
    return sums.mean(old, normalise) if rate is None else sums.descent(old, rate, normalise)


def one_of(name: str, value: Any, *allowed: Any) -> None:
    """Refuse a setting that is none of the allowed ones."""
    if value not in allowed:
        words = " or ".join(repr(choice) for choice in allowed if choice is not None)
        raise SettingError(f"{name} must be {words}, not {value!r}.")


class Told(Alternating):
    """Clients that are told which model to train, and are sent that one alone.

    A client that is told none, because it joined later or is not known, takes the model of lowest loss.
    """

    def told(self, state: State) -> Int[Array, "restarts clients"]:
        return state.assignment

    def final(self, known: Int[np.ndarray, " clients"], best: Kept) -> np.ndarray:
        return np.where(known < 0, super().final(known, best), known)


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
        one_of("empty", self.empty, "keep", "revive")
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
            content |= {"frozen": self.mark} if self.frozen else {}
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

    def followed_up(self, before: State, after: State, answers: Answers) -> State:
        if after.steady is not None:
            replied = jnp.zeros(after.steady.shape, bool).at[:, answers.clients].set(answers.answered.T)
            steady = identities.counted(after.steady, before.assignment, after.assignment, replied)
            after = dataclasses.replace(after, steady=steady)
        if after.told is not None:
            models, told = jax.vmap(identities.revived, in_axes=(0, 0, None, 1, 1, None))(
                after.models,
                after.assignment,
                answers.clients,
                answers.answered,
                answers.report["loss"],
                self.k,
            )
            after = dataclasses.replace(after, models=models, told=told)
        return after

    def __hash__(self) -> int:
        # `init` may hold arrays, and no compiled round depends on it. A dataclass makes a hash of its own
        # for every subclass, so each of them says that this is the one
        fields = [getattr(self, f.name) for f in dataclasses.fields(self) if f.compare]
        return hash((type(self), *fields))
