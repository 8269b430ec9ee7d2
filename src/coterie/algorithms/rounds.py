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
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys, registry
from coterie.clustering.history import RoundLog
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards
from coterie.errors import LearnerError, SettingError
from coterie.federation.protocol import Answers, Federation, as_federation
from coterie.learn.learner import Learner


class State(eqx.Module):
    """All that a round needs of the rounds before it; a checkpoint is this and nothing else.

    Everything has a leading axis of restarts, which run side by side.
    """

    models: PyTree  # (restarts, k, ...)
    assignment: Int[Array, "restarts clients"]  # the last known cluster; -1 while a client has not answered


class Step(eqx.Module):
    """What is new in a round: its number, its key, and the clients drawn for it."""

    round: Int[Array, ""]
    key: Key[Array, ""]
    clients: Any = None


class Outcome(eqx.Module):
    """What a round tells the history."""

    loss: Float[Array, " restarts"]
    assignment: Int[Array, "restarts clients"]
    answered: Int[Array, ""]
    clusters: int = eqx.field(static=True)
    asked: int = eqx.field(static=True)
    down: int = eqx.field(static=True)  # bytes per client asked
    up: int = eqx.field(static=True)  # bytes per client that answered

    @classmethod
    def of(
        cls,
        answers: Answers,
        loss: Float[Array, "asked restarts"],
        assignment: Int[Array, "restarts clients"],
        clusters: int,
    ) -> Outcome:
        """The outcome of a round that made one ask; `loss` is what each client asked reported."""
        answered = answers.answered.sum()
        mean = jnp.where(answers.answered[:, None], loss, 0).sum(0) / jnp.maximum(answered, 1)
        # a round in which nobody answered tells nothing of the loss
        mean = jnp.where(answered > 0, mean, jnp.nan)
        return cls(mean, assignment, answered, clusters, len(answers.clients), answers.down, answers.up)


class Observer(Protocol):
    """Watches a run: shows progress, writes it down, restores it."""

    def resume(self, state: State) -> tuple[State, list[RoundLog]]:
        """The state to start from, given the initial one, and the rounds that led there."""
        ...

    def after(self, state: State, logs: list[RoundLog], done: int) -> None:
        """Some rounds were computed: the state after them, their logs, and how many are done in all."""
        ...


def diverged(when: str) -> LearnerError:
    """The error for a loss that is no longer a number."""
    return LearnerError(f"training diverged {when}: lower the learning rate, or clip gradients.")


class Unobserved:
    """Watches nothing."""

    def resume(self, state: State) -> tuple[State, list[RoundLog]]:
        return state, []

    def after(self, state: State, logs: list[RoundLog], done: int) -> None:
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
        int). Who is drawn depends on the seed, the round and the clients' ids alone.
    """

    rounds: int = 60
    participation: float | int = 1.0

    def fit(
        self,
        train: Shards | Federation,
        learner: Learner,
        *,
        seed: int = 0,
        chunk: int = 1,
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
            Rounds per compiled program where the federation is traceable. More than one saves the start of
            a program per round, which matters only for rounds of a millisecond or so.
        observer
            Watches the rounds as they are computed.
        """
        federation = as_federation(train)
        learner = learner.for_data(federation.spec)
        federation = federation.with_learner(learner)
        self.check(federation.clients)
        watch = observer or Unobserved()
        state, logs = watch.resume(self.start(federation, learner, keys.purpose(seed, "init")))
        state = federation.place(state)
        steps = self._steps(federation, seed)
        before = np.array(state.assignment)
        # always the same chunks, so that a resumed run repeats the very programs of an uninterrupted one
        for first in range(len(logs), self.rounds, chunk):
            last = min(first + chunk, self.rounds)
            began = time.perf_counter()
            state, outcomes = self._advance(federation, state, jax.tree.map(lambda a: a[first:last], steps))  # noqa: B023
            outcomes = jax.device_get(outcomes)
            seconds = (time.perf_counter() - began) / (last - first)
            new = []
            for t in range(first, last):
                outcome = jax.tree.map(lambda a: a[t - first], outcomes)  # noqa: B023
                new.append(_log(t, outcome, before, seconds))
                before = outcome.assignment
            watch.after(state, new, last)
            logs += new
            if new[-1].answered and not np.isfinite(new[-1].loss).any():
                raise diverged(f"in round {last - 1}")
        return self.finish(federation, learner, state, logs, seed)

    def _advance(self, federation: Federation, state: State, steps: Step) -> tuple[State, Outcome]:
        if federation.traceable:
            advanced: tuple[State, Outcome] = _compiled(self, federation, state, steps)
            return advanced
        count = steps.round.shape[0]
        outcomes = []
        for t in range(count):
            state, outcome = self.round(federation, state, jax.tree.map(lambda a: a[t], steps))  # noqa: B023
            outcomes.append(outcome)
        return state, jax.tree.map(lambda *a: jnp.stack(a), *outcomes)

    def _steps(self, federation: Federation, seed: int) -> Step:
        """All rounds, stacked; the clients of every round are drawn beforehand."""
        numbers = jnp.arange(self.rounds)
        each = keys.numbered(keys.purpose(seed, "rounds"), self.rounds)
        count = self.participants(federation.clients)
        if count == federation.clients:
            return Step(numbers, each)
        tokens = keys.tokens(federation.ids)
        drawn = np.stack([keys.participants(seed, t, tokens, count) for t in range(self.rounds)])
        return Step(numbers, each, federation.select(drawn))

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
    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        """The state before the first round."""

    @abstractmethod
    def round(self, federation: Federation, state: State, step: Step) -> tuple[State, Outcome]:
        """One round; pure, so that it compiles over a traceable federation."""

    @abstractmethod
    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        """The result, given the state after the last round."""

    def settings(self) -> dict[str, Any]:
        """The algorithm's name and settings, to be recorded with its result."""
        return registry.describe_algorithm(self)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _compiled(algorithm: RoundAlgorithm, federation: Any, state: State, steps: Step) -> tuple[State, Outcome]:
    return jax.lax.scan(lambda s, step: algorithm.round(federation, s, step), state, steps)


def _log(number: int, outcome: Outcome, before: np.ndarray, seconds: float) -> RoundLog:
    now = np.asarray(outcome.assignment)
    changed = now != before
    clusters = [np.bincount(row[row >= 0], minlength=outcome.clusters) for row in now]
    return RoundLog(
        round=number,
        loss=[float(value) for value in outcome.loss],
        changed=[int(row.sum()) for row in changed],
        sizes=[row.tolist() for row in clusters],
        moved=[
            np.stack([np.flatnonzero(c), row[c]], axis=1).tolist()
            for c, row in zip(changed, now, strict=True)
        ],
        asked=outcome.asked,
        answered=int(outcome.answered),
        bytes_down=outcome.asked * outcome.down,
        bytes_up=int(outcome.answered) * outcome.up,
        seconds=seconds,
    )
