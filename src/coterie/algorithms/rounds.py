"""Algorithms that proceed in rounds of fixed shape: drawn, compiled, watched, and resumed in one place."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys, registry
from coterie.clustering.history import RoundLog
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards, Spec
from coterie.errors import LearnerError, SettingError
from coterie.federation.protocol import Answers, Federation, Traffic, as_federation
from coterie.learn.learner import Learner
from coterie.models import stacked


class State(eqx.Module):
    """All that a round needs of the rounds before it; a checkpoint is this and nothing else.

    Everything has a leading axis of restarts, which run side by side.
    """

    models: PyTree  # (restarts, k, ...)
    assignment: Int[Array, "restarts clients"]  # the last known cluster; -1 while a client has not answered
    # where an algorithm needs them:
    steady: Int[Array, "restarts clients"] | None = None  # rounds since a client's cluster last changed
    told: Int[Array, "restarts clients"] | None = None  # the cluster it is told to train next; -1: none


class Step(eqx.Module):
    """What is new in a round: its number, its key, and the clients drawn for it."""

    round: Int[Array, ""]
    key: Key[Array, ""]
    clients: Any = None


class Outcome(eqx.Module):
    """What a round tells the history."""

    loss: Float[Array, " restarts"]
    assignment: Int[Array, "restarts clients"]
    clients: Int[Array, " asked"]
    answered: Bool[Array, " asked"]
    traffic: Traffic
    clusters: int = eqx.field(static=True)
    failures: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())  # position and reason

    @classmethod
    def of(
        cls,
        answers: Answers,
        loss: Float[Array, "asked restarts"],
        assignment: Int[Array, "restarts clients"],
        clusters: int,
    ) -> Outcome:
        """The outcome of a round that made one ask; `loss` is what each client asked reported."""
        answered = jnp.broadcast_to(stacked.expand(answers.answered, loss), loss.shape)
        count = answered.sum(0)
        # a round in which nobody answered tells nothing of the loss
        mean = jnp.where(count > 0, jnp.where(answered, loss, 0).sum(0) / jnp.maximum(count, 1), jnp.nan)
        return cls(
            loss=mean,
            assignment=assignment,
            clients=answers.clients,
            answered=answered.any(1),
            traffic=answers.traffic,
            clusters=clusters,
            failures=answers.failures,
        )


class Observer(Protocol):
    """Watches a run: shows progress, writes it down, restores it."""

    def clients(self) -> tuple[np.ndarray, Spec] | None:
        """The ids of the clients so far, by position, and the shape of an example; None to start afresh."""
        ...

    def resume(self, template: State) -> tuple[State, list[RoundLog]] | None:
        """The state to start from, of the template's shapes, and the rounds that led there; None if none."""
        ...

    def after(self, state: State, federation: Federation, logs: list[RoundLog], done: int) -> None:
        """Some rounds were computed: the state after them, with whom, their logs, and how many in all."""
        ...


def diverged(when: str) -> LearnerError:
    """The error for a loss that is no longer a number."""
    return LearnerError(f"training diverged {when}: lower the learning rate, or clip gradients.")


class Unobserved:
    """Watches nothing."""

    def clients(self) -> None:
        return None

    def resume(self, template: State) -> None:
        return None

    def after(self, state: State, federation: Federation, logs: list[RoundLog], done: int) -> None:
        pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundAlgorithm(ABC):
    """A server that asks the same question round after round.

    Parameters
    ----------
    rounds
        How many.
    participation
        Clients asked per round, drawn at random: all (1.0), a fraction of them (a float), or a number (an
        int). Who is drawn, among those that are there, depends on the seed, the round and their ids alone.
    """

    rounds: int = 60
    participation: float | int = 1.0

    def fit(
        self,
        train: Shards | Federation,
        learner: Learner,
        *,
        seed: int = 0,
        chunk: int | None = None,
        observer: Observer | None = None,
    ) -> Clustering:
        """Run the algorithm.

        Parameters
        ----------
        train
            The clients: `Shards` (a `Simulation` is made for them) or any federation.
        learner
            What the clients know how to do.
        seed
            Everything random.
        chunk
            Rounds between two looks at the run. Where the federation is traceable they are one compiled
            program (1 if not given; more saves the start of a program per round, which matters only for
            rounds of a millisecond or so). Elsewhere the default is what one exchange can carry.
        observer
            Watches the rounds as they are computed.
        """
        federation = as_federation(train)
        watch = observer or Unobserved()
        known = watch.clients()
        if known is not None:
            federation.recall(*known)
        learner = learner.for_data(federation.spec)
        federation = federation.with_learner(learner)
        self.check(federation.clients)
        init = keys.purpose(seed, "init")
        resumed = watch.resume(self.template(federation, learner))
        state, logs = resumed or (self.start(federation, learner, init), [])
        if resumed is None:
            watch.after(state, federation, [], 0)  # to begin may have taken long
        state = federation.place(state)
        chunk = chunk or (1 if federation.traceable else self.rounds_per_exchange)
        drawn = self._steps(federation, seed, 0, self.rounds) if federation.traceable else None
        before = np.array(state.assignment)
        # always the same chunks, so that a resumed run repeats the very programs of an uninterrupted one
        for first in range(len(logs), self.rounds, chunk):
            last = min(first + chunk, self.rounds)
            began = time.perf_counter()
            if drawn is not None:
                steps = jax.tree.map(lambda a: a[first:last], drawn)  # noqa: B023
                state, outcomes = _compiled(self, federation, learner, state, steps)
                outcomes = _unstacked(jax.device_get(outcomes), last - first)
            else:
                federation.admit()
                state = self.grown(state, federation, learner, init)
                before = np.asarray(_padded(jnp.asarray(before), federation.clients))
                each = [self._steps(federation, seed, t, t + 1) for t in range(first, last)]
                singly = [stacked.take(step, 0) for step in each]
                state, outcomes = self.exchange(federation, learner, state, singly)
                outcomes = jax.device_get(outcomes)
            seconds = (time.perf_counter() - began) / (last - first)
            new = []
            for t, outcome in enumerate(outcomes, first):
                new.append(_log(t, outcome, before, seconds, federation.ids))
                before = outcome.assignment
            watch.after(state, federation, new, last)
            logs += new
            if new[-1].answered and not np.isfinite(new[-1].loss).any():
                raise diverged(f"in round {last - 1}")
        return self.finish(federation, learner, state, logs, seed)

    def _steps(self, federation: Federation, seed: int, first: int, last: int) -> Step:
        """The rounds from `first` to before `last`, stacked, with the clients drawn for each."""
        numbers = jnp.arange(first, last)
        each = self.round_keys(keys.purpose(seed, "rounds"))[first:last]
        count = self.participants(federation.clients)
        if count == federation.clients:
            return Step(numbers, each)
        here = federation.present()
        if not len(here):
            here = np.arange(federation.clients)  # to be waited for
        tokens = keys.tokens(federation.ids[here])
        drawn = np.stack([here[keys.participants(seed, t, tokens, count)] for t in range(first, last)])
        return Step(numbers, each, federation.select(drawn))

    def round_keys(self, key: Key[Array, ""]) -> Key[Array, " rounds"]:
        """The key of every round."""
        each: Array = keys.numbered(key, self.rounds)
        return each

    @property
    def rounds_per_exchange(self) -> int:
        """How many rounds one exchange with the clients can carry."""
        return 1

    def exchange(
        self, federation: Federation, learner: Learner, state: State, steps: Sequence[Step]
    ) -> tuple[State, list[Outcome]]:
        """Some rounds on the host, ask by ask."""
        outcomes = []
        for step in steps:
            state, outcome = self.round(federation, learner, state, step)
            outcomes.append(outcome)
        return state, outcomes

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        """The state with room for clients that have joined; `key` is the one that `start` was given."""
        return dataclasses.replace(
            state,
            assignment=_padded(state.assignment, federation.clients),
            steady=None if state.steady is None else _padded(state.steady, federation.clients, 0),
            told=None if state.told is None else _padded(state.told, federation.clients),
        )

    def participants(self, clients: int) -> int:
        """How many clients are asked in a round."""
        if isinstance(self.participation, int):
            return min(self.participation, clients)
        return max(1, round(self.participation * clients))

    def check(self, clients: int) -> None:
        """Refuse settings that make no sense for that many clients."""
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        fits = self.participation >= 1 if isinstance(self.participation, int) else 0 < self.participation <= 1
        if isinstance(self.participation, bool) or not fits:
            raise SettingError(
                f"participation must be a fraction above 0 and up to 1.0, or a number of clients, "
                f"not {self.participation!r}."
            )
        if isinstance(self.participation, int) and self.participation > clients:
            raise SettingError(
                f"participation={self.participation} asks for more than the {clients} clients there are."
            )

    @abstractmethod
    def template(self, federation: Federation, learner: Learner) -> State:
        """The shapes of the state, found without asking anybody anything."""

    @abstractmethod
    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        """The state before the first round."""

    @abstractmethod
    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        """One round; pure, so that it compiles over a traceable federation."""

    @abstractmethod
    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        """The result, given the state after the last round."""

    def settings(self) -> dict[str, Any]:
        """The algorithm's name and settings, to be recorded with its result."""
        return registry.describe_algorithm(self)


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _compiled(
    algorithm: RoundAlgorithm, federation: Any, learner: Learner, state: State, steps: Step
) -> tuple[State, Outcome]:
    return jax.lax.scan(lambda s, step: algorithm.round(federation, learner, s, step), state, steps)


def _unstacked(outcomes: Outcome, count: int) -> list[Outcome]:
    return [jax.tree.map(lambda a: a[t], outcomes) for t in range(count)]  # noqa: B023


def _padded(
    known: Int[Array, "restarts old"], clients: int, fill: int = -1
) -> Int[Array, "restarts clients"]:
    missing = clients - known.shape[1]
    return jnp.pad(known, ((0, 0), (0, missing)), constant_values=fill) if missing else known


def _log(number: int, outcome: Outcome, before: np.ndarray, seconds: float, ids: np.ndarray) -> RoundLog:
    now = np.asarray(outcome.assignment)
    changed = now != before
    clusters = [np.bincount(row[row >= 0], minlength=outcome.clusters) for row in now]
    answered = np.asarray(outcome.answered)
    down, spared, up = outcome.traffic.total(answered)
    reasons = dict(outcome.failures)
    for client in np.asarray(outcome.clients)[~answered].tolist():
        reasons.setdefault(client, "no answer")
    missing: dict[str, list[str]] = {}
    for client, reason in sorted(reasons.items()):
        missing.setdefault(reason, []).append(str(ids[client]))
    return RoundLog(
        round=number,
        loss=[float(value) for value in outcome.loss],
        changed=[int(row.sum()) for row in changed],
        sizes=[row.tolist() for row in clusters],
        moved=[
            np.stack([np.flatnonzero(c), row[c]], axis=1).tolist()
            for c, row in zip(changed, now, strict=True)
        ],
        asked=len(outcome.clients),
        answered=int(answered.sum()),
        bytes_down=down,
        bytes_spared=spared,
        bytes_up=up,
        seconds=seconds,
        missing=missing,
    )
