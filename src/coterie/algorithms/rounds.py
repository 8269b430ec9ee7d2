"""Algorithms that proceed in rounds of fixed shape: drawn, compiled, watched, and resumed in one place."""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys, registry
from coterie.clustering.history import Event, Record, RoundLog
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards, Spec
from coterie.errors import LearnerError, SettingError
from coterie.federation.counted import Count, with_count
from coterie.federation.protocol import Answers, Federation, Traffic, as_federation
from coterie.learn.learner import Learner
from coterie.models import stacked

Arrays = Mapping[str, Any]
START = "start"  # the name of what happens before anything else


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


class Note(NamedTuple):
    """What an algorithm tells of a pause between rounds."""

    name: str
    text: str  # a sentence
    details: dict[str, Any] = {}  # noqa: RUF012 (never changed)


class Observer(Protocol):
    """Watches a run: shows progress, writes it down, restores it."""

    def clients(self) -> tuple[np.ndarray, Spec] | None:
        """The ids of the clients so far, by position, and the shape of an example; None to start afresh."""
        ...

    def resume(self, restored: Callable[[Arrays], State]) -> tuple[State, list[Record]] | None:
        """The state to start from, and what led there; None to start afresh.

        `restored` makes a state of the arrays that were kept.
        """
        ...

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
        """Something happened: the state after it, with whom, what it was, and how many rounds are done."""
        ...


def diverged(when: str) -> LearnerError:
    """The error for a loss that is no longer a number."""
    return LearnerError(f"training diverged {when}: lower the learning rate, or clip gradients.")


class Unobserved:
    """Watches nothing."""

    def clients(self) -> None:
        return None

    def resume(self, restored: Callable[[Arrays], State]) -> None:
        return None

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
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
            if done in pauses and not any(_told_at(done, record) for record in records):
                state, event = self._paused(federation, learner, state, done, seed, init)
                if event is not None:
                    watch.after(state, federation, [event], done)
                    records.append(event)
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
                new.append(_log(t, outcome, before, seconds, federation.ids))
                before = outcome.assignment
            done = last
            watch.after(state, federation, list(new), done)
            records += new
            if new[-1].answered and not np.isfinite(new[-1].loss).any():
                raise diverged(f"in round {done - 1}")
        return self.finish(federation, learner, state, records, seed)

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
        return state, [_event(0, note, state, unknown, count, time.perf_counter() - began)]

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
        return state, _event(done, note, state, before, count, time.perf_counter() - began)

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
    def finish(
        self, federation: Federation, learner: Learner, state: State, records: Sequence[Record], seed: int
    ) -> Clustering:
        """The result, given the state after the last round and what led there."""

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


def _told_at(done: int, record: Record) -> bool:
    """Whether a record is that of the pause after so many rounds."""
    return isinstance(record, Event) and record.after == done and record.name != START


def _changes(
    before: Int[np.ndarray, "restarts clients"], now: Int[np.ndarray, "restarts clients"], clusters: int
) -> tuple[list[list[list[int]]], list[list[int]]]:
    """For each restart, who moved where, and how many clients each cluster has."""
    moved = [
        np.stack([np.flatnonzero(changed), row[changed]], axis=1).tolist()
        for changed, row in zip(now != before, now, strict=True)
    ]
    return moved, [np.bincount(row[row >= 0], minlength=clusters).tolist() for row in now]


def _event(done: int, note: Note, state: State, before: np.ndarray, count: Count, seconds: float) -> Event:
    clusters = jax.tree.leaves(state.models)[0].shape[1]
    moved, sizes = _changes(before, np.asarray(state.assignment), clusters)
    return Event(
        after=done,
        name=note.name,
        text=note.text,
        details=note.details,
        moved=moved,
        sizes=sizes,
        seconds=seconds,
        **asdict(count),
    )


def _log(number: int, outcome: Outcome, before: np.ndarray, seconds: float, ids: np.ndarray) -> RoundLog:
    moved, sizes = _changes(before, np.asarray(outcome.assignment), outcome.clusters)
    answered = np.asarray(outcome.answered)
    down, spared, up = outcome.traffic.total(answered)
    reasons = dict(outcome.failures)
    asked = np.asarray(outcome.clients)
    real = asked < len(ids)  # a place may be blank
    for client in asked[real & ~answered].tolist():
        reasons.setdefault(client, "no answer")
    missing: dict[str, list[str]] = {}
    for client, reason in sorted(reasons.items()):
        missing.setdefault(reason, []).append(str(ids[client]))
    return RoundLog(
        round=number,
        loss=[float(value) for value in outcome.loss],
        changed=[len(moves) for moves in moved],
        sizes=sizes,
        moved=moved,
        asked=int(real.sum()),
        answered=int(answered.sum()),
        bytes_down=down,
        bytes_spared=spared,
        bytes_up=up,
        seconds=seconds,
        missing=missing,
    )
