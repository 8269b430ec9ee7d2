"""Algorithms that proceed in rounds of fixed shape: drawn, compiled, watched, and resumed in one place."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from coterie import keys, registry
from coterie.algorithms.observer import Arrays, Observer, Unobserved
from coterie.algorithms.records import event, log, told_at
from coterie.algorithms.state import Note, Outcome, Result, State, Step
from coterie.clustering.history import FINISH, START, Event, History, Record, RoundLog
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards
from coterie.errors import SettingError, diverged
from coterie.federation.counted import Count, with_count
from coterie.federation.protocol import Federation, as_federation
from coterie.learn.learner import Learner
from coterie.models import stacked


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
        resumed = watch.resume(lambda arrays: self.restored(arrays, federation, learner))
        state, records = resumed or self._begun(federation, learner, init)
        if resumed is None:
            watch.after(state, federation, list(records), 0)  # to begin may have taken long
        state = federation.place(state)
        chunk = chunk or (1 if federation.traceable else self.rounds_per_exchange)
        done = sum(isinstance(record, RoundLog) for record in records)
        drawn: tuple[int, Step] | None = None  # rounds whose clients are drawn, and the first of them
        while True:
            pauses = [t for t in self.pauses() if t >= done]
            if done in pauses and not any(told_at(done, record) for record in records):
                state, told = self._paused(federation, learner, state, done, seed, init)
                if told is not None:
                    watch.after(state, federation, [told], done)
                    records.append(told)
                    state = federation.place(state)
                    drawn = None  # who may be drawn may have changed
            if done >= self.length:
                break
            pause = min([t for t in pauses if t > done], default=self.length)
            # always the same chunks, so that a resumed run repeats the very programs of an uninterrupted one
            first, last = done, min(done + chunk - done % chunk, pause)
            before = np.array(state.assignment)
            began = time.perf_counter()
            if federation.traceable:
                if drawn is None or first >= drawn[0] + len(drawn[1].round):
                    # as many as can be, since all that are drawn together have one shape: also those that a
                    # resumed run has behind it
                    begin, until = 0, self.length
                    if self.eligible(state) is not None:
                        begin, until = max([t for t in self.pauses() if t <= first], default=0), pause
                    drawn = begin, self._steps(federation, state, seed, begin, until)
                begin, every = drawn
                steps = jax.tree.map(lambda a: a[first - begin : last - begin], every)  # noqa: B023
                state, outcomes = _compiled(self, federation, learner, state, steps)
                outcomes = _unstacked(jax.device_get(outcomes), last - first)
            else:
                federation.admit()
                state = self.grown(state, federation, learner, init)
                before = np.asarray(_padded(jnp.asarray(before), federation.clients))
                each = [self._steps(federation, state, seed, t, t + 1) for t in range(first, last)]
                singly = [stacked.take(step, 0) for step in each]
                state, outcomes = self.exchange(federation, learner, state, singly)
                outcomes = jax.device_get(outcomes)
            seconds = (time.perf_counter() - began) / (last - first)
            new = []
            for t, outcome in enumerate(outcomes, first):
                new.append(log(t, outcome, before, seconds, federation.ids))
                before = outcome.assignment
            done = last
            watch.after(state, federation, list(new), done)
            records += new
            if new[-1].answered and not np.isfinite(new[-1].loss).any():
                raise diverged(f"in round {done - 1}")
        return self._finished(federation, learner, state, records, seed)

    def _begun(
        self, federation: Federation, learner: Learner, key: Key[Array, ""]
    ) -> tuple[State, list[Record]]:
        """The state before the first round, and what it took."""
        began, count = time.perf_counter(), Count()
        state = self.start(with_count(federation, count), learner, key)
        if not count.asks:
            return state, []
        note = Note(START, "clients were asked for the models to begin with.")
        unknown = np.full(state.assignment.shape, -1)
        return state, [_told(0, note, unknown, state, count, began)]

    def _paused(
        self,
        federation: Federation,
        learner: Learner,
        state: State,
        done: int,
        seed: int,
        key: Key[Array, ""],
    ) -> tuple[State, Event | None]:
        """The state after a pause, and what happened in it, if anything did."""
        began, count = time.perf_counter(), Count()
        federation.admit()
        state = self.grown(state, federation, learner, key)
        before = np.array(state.assignment)
        asks = jax.random.fold_in(keys.purpose(seed, "pauses"), done)
        state, note = self.between(with_count(federation, count, asks), learner, state, done, seed)
        if note is None:
            return state, None
        return state, _told(done, note, before, state, count, began)

    def _finished(
        self, federation: Federation, learner: Learner, state: State, records: list[Record], seed: int
    ) -> Clustering:
        """The result, and what it took to make it of the last state."""
        began, count = time.perf_counter(), Count()
        result = self.finish(with_count(federation, count), learner, state, seed)
        if count.asks:
            now = state.assignment.at[result.restart].set(jnp.asarray(result.assignment))
            last = dataclasses.replace(state, assignment=now)
            note = Note(FINISH, "the clients were asked a last time.")
            records = [*records, _told(self.length, note, np.array(state.assignment), last, count, began)]
        return Clustering(
            ids=federation.ids,
            assignment=result.assignment.astype(np.int32),
            models=result.models,
            learner=learner,
            spec=federation.spec,
            history=History(records, federation.clients, result.restart),
            losses=result.losses,
            shares=result.shares,
            personal=result.personal,
            algorithm=self.settings(),
            seed=seed,
            provenance=federation.describe(),
        )

    @property
    def length(self) -> int:
        """How many rounds there are in all."""
        return self.rounds

    def pauses(self) -> Sequence[int]:
        """After how many rounds `between` is called: 0 is before the first."""
        return ()

    def between(
        self, federation: Federation, learner: Learner, state: State, done: int, seed: int
    ) -> tuple[State, Note | None]:
        """What the server does in a pause, on the host: it may change the number of models.

        None in place of the note: nothing happened. The state is then the one given, nobody was asked, and
        the history tells nothing; a run that is resumed here looks again, and sees the same.
        """
        return state, None

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        """Who may be drawn for a round; None for everybody."""
        return None

    def _steps(self, federation: Federation, state: State, seed: int, first: int, last: int) -> Step:
        """The rounds from `first` to before `last`, stacked, with the clients drawn for each."""
        numbers = jnp.arange(first, last)
        each = self.round_keys(keys.purpose(seed, "rounds"))[first:last]
        drawn = self.drawn(federation, state, seed, first, last)
        return Step(numbers, each, None if drawn is None else federation.select(drawn))

    def drawn(
        self, federation: Federation, state: State, seed: int, first: int, last: int
    ) -> Int[np.ndarray, "rounds asked"] | None:
        """The clients asked in each of these rounds, by position; None for everybody in all of them."""
        may = self.eligible(state)
        everybody = np.arange(federation.clients) if may is None else np.flatnonzero(may)
        count = self.participants(len(everybody))
        if count == federation.clients:
            return None
        here = np.intersect1d(federation.present(), everybody)
        if not len(here):
            here = everybody  # to be waited for
        if count == len(everybody):
            return np.tile(everybody, (last - first, 1))
        tokens = keys.tokens(federation.ids[here])
        return np.stack([here[keys.participants(seed, t, tokens, count)] for t in range(first, last)])

    def round_keys(self, key: Key[Array, ""]) -> Key[Array, " rounds"]:
        """The key of every round."""
        each: Array = keys.numbered(key, self.length)
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
    def template(self, federation: Federation, learner: Learner, models: int | None = None) -> State:
        """The shapes of the state, found without asking anybody anything.

        `models` is how many of them there are, where that changes in the course of a run.
        """

    def restored(self, arrays: Arrays, federation: Federation, learner: Learner) -> State:
        """The state that was kept as arrays by name."""
        models = next(array.shape[1] for name, array in arrays.items() if name.startswith("models"))
        state: State = stacked.from_named(arrays, self.template(federation, learner, models))
        return state

    @abstractmethod
    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        """The state before the first round."""

    @abstractmethod
    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        """One round; pure, so that it compiles over a traceable federation."""

    @abstractmethod
    def finish(self, federation: Federation, learner: Learner, state: State, seed: int) -> Result:
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


def _told(done: int, note: Note, before: np.ndarray, state: State, count: Count, began: float) -> Event:
    models = jax.tree.leaves(state.models)[0].shape[1]
    seconds = time.perf_counter() - began
    return event(done, note, before, np.asarray(state.assignment), models, count, seconds)
