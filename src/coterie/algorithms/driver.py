"""What runs an algorithm: several starts side by side, rounds that compile, pauses, checkpoints, the result.

An algorithm is written for one start. Here its state has a leading axis of starts, and all of them share
every exchange: rounds are mapped over that axis, and what runs on the host is advanced in step (`lockstep`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from coterie import keys
from coterie.algorithms.algorithm import (
    Algorithm,
    Note,
    Result,
    State,
    clusters_of,
    of_one_start,
    with_room_for,
)
from coterie.algorithms.lockstep import in_step
from coterie.algorithms.observer import Moment, Observer, Place, Saved
from coterie.algorithms.records import Count, Outcome, among_all, event, log, logs_alone
from coterie.algorithms.rounds import Step, compiled_round, one_round
from coterie.clustering.history import CONTEST, FINISH, START, Event, History, Record
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards, Spec
from coterie.errors import RunFolderError, SettingError, diverged
from coterie.federation import batches
from coterie.federation.devices import physical_memory
from coterie.federation.exchange import Server
from coterie.federation.protocol import Federation, as_federation, bytes_of
from coterie.learn.learner import Learner
from coterie.models import stacked
from coterie.words import count

if TYPE_CHECKING:
    from coterie.federation.simulation import Simulation

AHEAD = 2  # rounds that are begun before the one before them is looked at


def run(
    algorithm: Algorithm[Any],
    train: Shards | Federation,
    learner: Learner,
    seed: int,
    observers: Sequence[Observer],
) -> Clustering:
    """Run an algorithm, from the beginning or from where an observer has kept it."""
    federation = as_federation(train)
    if not isinstance(learner, Learner):
        raise SettingError(f"learner must be a Learner(model, loss, local), not {learner!r}.")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise SettingError(f"seed must be a whole number, not {seed!r}.")
    saved = next((found for found in (observer.saved() for observer in observers) if found), None)
    if saved is not None:
        federation.recall(saved.ids, saved.spec)
    learner = learner.for_data(federation.spec)
    federation = federation.with_learner(learner)
    algorithm.check(federation.clients, learner)
    _check_room(algorithm, learner, federation.spec)
    going = Run(algorithm, federation, learner, seed, observers)
    if saved is None:
        going.begin()
    else:
        going.resume(saved)
    while not going.place.ended:
        if going.place.done == going.place.last:
            going.pause()
        elif going.in_contest():
            going.keep_best()
        else:
            going.advance()
    return going.finish()


def _check_room(algorithm: Algorithm[Any], learner: Learner, spec: Spec) -> None:
    """Refuse more models than this machine has memory for, before somebody waits for them."""
    k, starts = (getattr(algorithm, name, None) or 1 for name in ("k", "n_init"))
    need, there = k * starts * bytes_of(learner.shapes(spec)), physical_memory()
    if need > there:
        raise SettingError(
            f"{count(k * starts, 'model')} of {bytes_of(learner.shapes(spec)) / 1e9:,.3g} GB each take "
            f"{need / 1e9:,.3g} GB, and this machine has {there / 1e9:,.3g} GB of memory: choose a smaller "
            "model, fewer clusters or fewer starts."
        )


class Run:
    """A run of an algorithm: where it stands, and what has happened."""

    states: State  # a leading axis of the starts that go on
    place: Place
    known: Int[np.ndarray, "starts clients"]  # the assignment after the last record, of these starts

    def __init__(
        self,
        algorithm: Algorithm[Any],
        federation: Federation,
        learner: Learner,
        seed: int,
        observers: Sequence[Observer],
    ) -> None:
        self.algorithm, self.federation, self.learner = algorithm, federation, learner
        self.seed, self.observers = seed, observers
        self.going = list(range(algorithm.starts))  # the starts that go on
        self._key = keys.purpose(seed, "rounds")
        self.records: list[Record] = []
        self._ahead: deque[tuple[int, Outcome]] = deque()  # rounds that have not been looked at
        self._looked = 0.0  # when the last of them was, or the first of these was begun
        self._fits = False  # whether the program of the rounds is known to find memory enough
        self._drawn: tuple[Any, Any] | None = None  # who takes part until the next pause

    @property
    def server(self) -> Server:
        """What algorithms may know."""
        return Server.of(self.federation, self.learner, self.seed)

    # -- the beginning ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The states before the first round."""
        began, count = time.perf_counter(), Count()
        server = self.server
        each = [self.algorithm.start(server, server.start_key(start)) for start in self.going]
        states = in_step(self.federation, each, keys.purpose(self.seed, "asks of start"), count)
        self.states = self.federation.place(stacked.stack(states))
        self.place, self.known = Place(), np.array(self.states.assignment)
        new: list[Record] = []
        if count.asks:
            note = Note(START, "clients were asked for the models to begin with.")
            before = np.full(self.states.assignment.shape, -1)
            new = [self._event(note, before, self.known, count, began)]
        self._tell(new)  # to begin may have taken long

    def resume(self, saved: Saved) -> None:
        """The states as they were kept."""
        ended = [r for r in saved.records if isinstance(r, Event) and r.name == CONTEST]
        self.going = [ended[0].details["start"]] if ended else self.going
        try:
            states = _restored(self.algorithm, self.learner, saved, len(self.going))
            self.states = self.federation.place(states)
        except SettingError as error:
            raise RunFolderError(
                f"{saved.source} does not fit this experiment ({str(error).rstrip('.')}): "
                "start again with --overwrite."
            ) from error
        self.place, self.records = saved.place, list(saved.records)
        self.known = np.array(self.states.assignment)
        for observer in self.observers:
            observer.resumed(self._moment(self.records))

    # -- between rounds -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """What the algorithm does between rounds, and how many of them follow."""
        self._look_at_all()
        self._admit()
        began, count = time.perf_counter(), Count()
        before, done = self.known, self.place.done
        each = [self.algorithm.pause(self.server, state, done) for state in self._each()]
        key = jax.random.fold_in(keys.purpose(self.seed, "pauses"), done)
        paused = in_step(self.federation, each, key, count)
        # all starts have as many rounds as one another, since they share them
        _, rounds, note, alone = paused[0]
        now = done if alone is None else done + alone.losses.shape[1]
        last, contest = now + rounds, self.algorithm.contest
        if len(self.going) > 1 and now < contest < last:
            last = contest
        self.place = Place(now, now, last, ended=rounds == 0)
        self._drawn, self._fits = None, False
        if note is None and alone is None:
            if not count.asks:
                return
            note = Note("look", "Clients were asked, and nothing changed.")
        self.states = self.federation.place(stacked.stack([one.state for one in paused]))
        self.known = np.array(self.states.assignment)
        new: list[Record] = [] if note is None else [self._event(note, before, self.known, count, began)]
        if alone is not None:
            seconds = time.perf_counter() - began
            logs = logs_alone(done, alone, before, self.known, count, seconds, self.federation.ids)
            new += [among_all(one, self.going, self.algorithm.starts) for one in logs]
        self._tell(new)

    def _each(self) -> list[State]:
        """The state of each start that goes on."""
        return [of_one_start(self.states, place) for place in range(len(self.going))]

    def _results(self, count: Count) -> tuple[list[Result], int]:
        """What each start that goes on comes to, and the place of the best of them."""
        each = [self.algorithm.finish(self.server, state) for state in self._each()]
        key = keys.purpose(self.seed, "asks of finish")
        results: list[Result] = in_step(self.federation, each, key, count)
        return results, int(np.argmin([result.objective for result in results]))

    def in_contest(self) -> bool:
        """Whether only the best start is to go on from here."""
        return len(self.going) > 1 and 0 < self.place.done == self.algorithm.contest

    def keep_best(self) -> None:
        """End all starts but the best one."""
        began, count, before = time.perf_counter(), Count(), self.known
        results, best = self._results(count)
        start, starts = self.going[best], len(self.going)
        losses = [float(r.objective) if np.isfinite(r.objective) else None for r in results]
        note = Note(
            CONTEST,
            f"of {starts} starts, start {start + 1} has the lowest training loss, and goes on alone.",
            {"start": start, "losses": losses},
        )
        told = self._event(note, before, before, count, began)
        self.going = [start]
        self.states = self.federation.place(stacked.stack([of_one_start(self.states, best)]))
        self.known = before[best : best + 1]
        self._tell([told])

    def _admit(self) -> None:
        """Let in clients that have joined."""
        if not self.federation.traceable:
            self.federation.admit()
            if self.federation.clients > self.states.assignment.shape[1]:
                self.states = with_room_for(self.states, self.federation.clients)
                each = [self.algorithm.joined(self.server, state) for state in self._each()]
                self.states = stacked.stack(each)
                self.known = np.array(self.states.assignment)

    # -- rounds -------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One round: a compiled program where the federation allows it, asked from the host elsewhere.

        Compiled rounds are begun before the last ones are looked at, so that the device need not wait; but an
        observer that wants the states gets those of the round that it is told of.
        """
        self._admit()
        number = self.place.done
        if not self._ahead:
            self._looked = time.perf_counter()
        self.states, outcome = self._carried_out(self._step(number))
        self.place = self.place._replace(done=number + 1)
        self._ahead.append((number, outcome))
        if not self.federation.traceable or any(observer.wants_states() for observer in self.observers):
            self._look_at_all()
        elif len(self._ahead) > AHEAD:
            self._look_at_next()

    def _carried_out(self, step: Step) -> tuple[State, Outcome]:
        """The states after a round, and what it tells."""

        def once(states: State) -> tuple[State, Outcome]:
            carry_out: Any = compiled_round if self.federation.traceable else one_round
            after, outcome = carry_out(self.algorithm, self.federation, self.learner, states, step)
            return after, outcome

        if self._fits or not self.federation.traceable or not batches.may_run_out():
            return once(self.states)
        # a program consumes the states that it is given, and this one may not fit in the device's memory
        simulation = cast("Simulation", self.federation)  # nothing else compiles
        found = batches.until_it_fits(
            lambda: once(jax.tree.map(jnp.copy, self.states)), simulation.halve_batch
        )
        self._fits = True
        return found

    def _look_at_all(self) -> None:
        """Wait for all rounds that have not been looked at; none of them is known to have taken longer."""
        if self._ahead:
            jax.block_until_ready(self._ahead[-1][1])
            each = (time.perf_counter() - self._looked) / len(self._ahead)
            while self._ahead:
                self._look_at_next(each)

    def _look_at_next(self, seconds: float | None = None) -> None:
        """Wait for the first of the rounds that have not been looked at, and tell of it."""
        number, outcome = self._ahead.popleft()
        outcome = jax.device_get(outcome)
        before, self.known = self.known, outcome.assignment
        began, self._looked = self._looked, time.perf_counter()
        seconds = self._looked - began if seconds is None else seconds
        record = log(number, outcome, before, seconds, self.federation.ids)
        record = among_all(record, self.going, self.algorithm.starts)
        self._tell([record], self.place._replace(done=number + 1))
        if record.answered and not np.isfinite(record.loss).any():
            raise diverged(f"in round {number}")

    def _step(self, number: int) -> Step:
        """A round's number, key and participants.

        Where rounds compile, those of all rounds up to the next pause are drawn together, so that they have
        one shape; a resumed run draws also those that it has behind it. Elsewhere those are drawn who are
        there now.
        """
        first, last = number, number + 1
        if self.federation.traceable:
            first, last = self.place.first, self.place.last
        if self._drawn is None or not self.federation.traceable:
            self._drawn = self._draw(range(first, last))
        clients, more = stacked.take(self._drawn, number - first)
        return Step(np.int32(number), self._key, clients, more)

    def _draw(self, rounds: range) -> tuple[Any, Any]:
        """Who takes part in some rounds, and what else was drawn for them; stacked."""
        draw = self.algorithm.draw(self.server, of_one_start(self.states, 0), rounds)
        return (None, None) if draw is None else (self.federation.select(draw.clients), draw.more)

    # -- the end ------------------------------------------------------------------------------------------

    def finish(self) -> Clustering:
        """The result of the best start, and what it took to make it of the last state."""
        self._look_at_all()
        began, count = time.perf_counter(), Count()
        results, best = self._results(count)
        result = results[best]
        if not np.isfinite(result.objective):
            raise diverged("in the last round")
        records = self.records
        if count.asks:
            now = self.known.copy()
            now[best] = result.assignment
            note = Note(FINISH, "the clients were asked a last time.")
            records = [*records, self._event(note, self.known, now, count, began)]
        return Clustering(
            ids=self.federation.ids,
            assignment=result.assignment.astype(np.int32),
            models=result.models,
            learner=self.learner,
            spec=self.federation.spec,
            history=History(records, self.federation.clients, self.going[best]),
            losses=result.losses,
            shares=result.shares,
            personal=result.personal,
            confidence=result.confidence,
            algorithm=self.algorithm.settings(),
            seed=self.seed,
            provenance=self.federation.describe(),
            preparation=getattr(self.federation, "preparation", None),
        )

    # -- what is told -------------------------------------------------------------------------------------

    def _event(
        self,
        note: Note,
        before: Int[np.ndarray, "starts clients"],
        now: Int[np.ndarray, "starts clients"],
        count: Count,
        began: float,
    ) -> Event:
        seconds = time.perf_counter() - began
        told = event(self.place.done, note, before, now, clusters_of(self.states), count, seconds)
        return among_all(told, self.going, self.algorithm.starts)

    def _tell(self, new: Sequence[Record], place: Place | None = None) -> None:
        self.records += new
        for observer in self.observers:
            observer.after(self._moment(new, place))

    def _moment(self, new: Sequence[Record], place: Place | None = None) -> Moment:
        """The run as it was at a place: its states are known only of where it is now."""
        states = self.states if place in (None, self.place) else None
        return Moment(states, place or self.place, self.federation.ids, self.federation.spec, new)


def _restored(algorithm: Algorithm[Any], learner: Learner, saved: Saved, starts: int) -> State:
    """The states as they were kept, if they are such as this algorithm has with this learner."""
    models = [a for name, a in saved.arrays.items() if name.partition(".")[0] == "models" and a.ndim > 1]
    if not models:
        raise SettingError("it has no models")
    one = stacked.repeated(learner.shapes(saved.spec), models[0].shape[1])
    shapes = jax.eval_shape(lambda models: algorithm.state_of(models, len(saved.ids)), one)
    like = stacked.repeated(shapes, starts)
    states: State = stacked.from_named(saved.arrays, like, exact=False)
    # sizes of what else an algorithm keeps may depend on what has happened
    known, wanted = ({"models": own.models, "assignment": own.assignment} for own in (states, like))
    stacked.from_named(stacked.named(known), wanted)
    return states
