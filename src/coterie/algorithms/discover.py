"""Discover: groups without being told how many, or how far apart; and none where there are none.

An algorithm of ours. It begins with one group of all clients and splits it, and what it is split into, until
that is of no use. Whether it is of use is seen on held-out examples, so that no distance has to be given: two
models are kept for each group, trained on one half of each client's examples each, and a client is judged by
the model that has not seen the example (`coterie.learn.halves`).

SPLIT: clients say where their halves would pull their group's models, and those that pull to different sides
part. Then they settle: groups train for a few rounds, and clients go where their examples fit best. MERGE:
groups of which one side does not prefer its own models by more than chance become one again. This goes on as
long as there are more groups than before. Too many of them can be mended: PRUNE merges what is not surely
apart. Then clients and groups that would be better off alone leave (LEAVE), and one model of each group is
trained on all examples (FINAL).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.aggregate import Mean
from coterie.algorithms import evidence
from coterie.algorithms.algorithm import Note, Pause, Result, Round, unknown
from coterie.algorithms.discovered import (
    BEGIN,
    MERGE,
    PRUNE,
    SETTLED,
    State,
    alone_now,
    at_stage,
    confidence,
    for_final,
    in_final,
    means,
    merged,
    moved_to,
    number_of,
    split,
    stage_of,
)
from coterie.algorithms.evidence import Told
from coterie.algorithms.known_clusters import KnownClusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import SettingError, whole_number
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise.alone import trained_alone
from coterie.initialise.random import fresh_models
from coterie.learn.halves import JudgeAlone, JudgeHalves, PullHalves, TrainHalves
from coterie.learn.learner import Learner
from coterie.learn.tasks import MeasureLosses, lowest
from coterie.models import stacked
from coterie.words import count

SHORT = 2  # rounds, after which clients may move
SMALLEST = 4  # clients, that are ever split
MANY = 1.5  # times as many groups as before
LONGEST = 2  # times as many rounds as clients train alone, after which nothing is split any more


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discover(KnownClusters[State]):
    """Finds the groups, and their number, from what they are worth on held-out examples.

    Parameters
    ----------
    rounds
        Of FINAL, in which every group's model trains on all examples.
    alone
        For how many local updates a client trains alone, to know whether it is better off so; and for how
        many rounds, at least, groups are looked for. As many as `rounds` when not given.
    sweep
        Rounds of training at the beginning and after each PRUNE, and in FINAL until clients may move.
    error
        How probable it may be that clients who are all alike are told apart: see the card.
    weight
        How much a client counts in a group's mean: see `Averaging`.
    participation
        Of rounds; between them all clients are asked.
    """

    alone: int | None = None
    sweep: int = 5
    error: float = 0.01
    weight: Weight = "clients"

    # -- the beginning: one group --------------------------------------------------------------------------

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        state = self.state_of(fresh_models(server, key, 1), server.clients)
        return dataclasses.replace(state, assignment=jnp.zeros(server.clients, jnp.int32))
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(
            models,
            unknown(clients),
            halves=jax.tree.map(lambda a: jnp.stack([a, a], 1), models),
            first=jax.tree.map(lambda a: a[:1], models),
            stage=jnp.asarray(BEGIN, jnp.int32),
            before=jnp.asarray(0, jnp.int32),
            differ=jnp.asarray(jnp.nan),
            began=jnp.asarray(0, jnp.int32),
            judged=jnp.full((clients, 6), jnp.nan),
            merging=jnp.zeros((2, 0, 0)),
        )

    @property
    def _rounds_alone(self) -> int:
        return self.alone or self.rounds

    # -- rounds ----------------------------------------------------------------------------------------------

    def ask(self, state: State, round: Round) -> Ask:
        assert state.began is not None
        if in_final(state):
            return self.averaging.ask(state.models, round.number - state.began, only=state.assignment)
        task = TrainHalves(state.halves, round.number, by_examples=self.weight == "examples")
        return Ask(task, state.assignment, reduce=Mean().reduction(stacked.count(state.halves)))

    def update(self, state: State, answers: Answers, round: Round) -> State:
        if in_final(state):
            return super().update(state, answers, round)
        pairs, _ = self.averaging.update(
            state.halves, None, answers, round.rate, clients=len(state.assignment)
        )
        return dataclasses.replace(state, halves=pairs, models=means(pairs))

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        known = np.asarray(state.assignment) >= 0
        return None if known.all() else known

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight)

    # -- between them ----------------------------------------------------------------------------------------

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        if in_final(state):
            after = yield from self._settled(state, done)
            return after
        if done == 0:
            _, pulls, heard = yield from self._pulls(state)
            away = evidence.drift(pulls[heard])
            text = f"1 group. Examples at even and at odd places do not differ: z = {away:.1f}."
            if away > evidence.quantile(self.error):
                text = (
                    f"1 group. Examples at even places differ from those at odd ones (z = {away:.1f}) "
                    "by which their models are judged: shuffle the examples of each client."
                )
            return Pause(state, self.sweep, Note("begin", text, {"drift": away}))
        if stage_of(state) == BEGIN:
            after = yield from self._split(server, state, "1 group.", done)
            return after
        state, told, moved = yield from self._judged(server, state)
        stage, text = stage_of(state), f"{count(number_of(state.assignment), 'group')}."
        if moved:
            text += f" {count(moved, 'client')} moved."
        if stage < SETTLED and moved:
            return Pause(at_stage(state, stage + 1), SHORT, Note("settle", text))
        verdict = evidence.lenient(told)
        if stage != PRUNE and verdict.pairs:
            state = at_stage(merged(state, verdict.pairs), MERGE)
            return Pause(state, SHORT, Note("merge", f"{text} {verdict.text}", verdict.details))
        if stage != PRUNE and self._goes_on(state, done):
            after = yield from self._split(server, state, text, done)
            return after
        if stage != PRUNE and moved:  # no model is judged by what clients that have gone made of it
            return Pause(at_stage(state, PRUNE), self.sweep, Note("settle", text))
        verdict = evidence.strict(told, self.error, float(np.asarray(state.differ)))
        text = f"{text} PRUNE: {verdict.text}"
        if verdict.pairs:
            state = at_stage(merged(state, verdict.pairs), PRUNE)
            return Pause(state, self.sweep, Note("prune", text, verdict.details))
        state, told, left = yield from self._without_leavers(server, state, told)
        text = f"{text} {left} FINAL: {count(number_of(state.assignment), 'group')}."
        state = for_final(state, told, done)
        return Pause(state, self._stretch(0), Note("final", text, verdict.details))

    def _goes_on(self, state: State, done: int) -> bool:
        """Whether groups are to be split once more: later on, only if that makes many more of them."""
        more = number_of(state.assignment) > MANY * int(np.asarray(state.before))
        more &= bool(np.asarray(state.differ) >= evidence.need(self.error))
        return done < (LONGEST if more else 1) * self._rounds_alone

    def _judged(
        self, server: Server, state: State, *, stay: bool = False
    ) -> Exchange[tuple[State, Told, int]]:
        """JUDGE: what all clients say of all groups, and where they go."""
        group = np.asarray(state.assignment)
        key = server.key("judged alone")  # the same whenever it has to be asked
        alone = Ask(JudgeAlone(stacked.take(state.first, 0), self._rounds_alone), key=key)
        margin = jnp.asarray(np.inf if stay else 0, jnp.float32)
        task = JudgeHalves(state.halves, jnp.asarray(number_of(group)), margin, state.assignment)
        answers = yield Ask(task, remind=alone)
        return moved_to(state, Told.of(answers, group))

    def _split(self, server: Server, state: State, text: str, done: int) -> Exchange[Pause]:
        """SPLIT: clients of a group part that pull its models to different sides."""
        group, pulls, heard = yield from self._pulls(state)
        parts = {}
        if np.isnan(np.asarray(state.differ)):
            differ = evidence.alike(pulls[heard])
            state = dataclasses.replace(state, differ=jnp.asarray(differ, jnp.float32))
            text += f" Clients' halves agree beyond chance by {differ:.1f} standard errors."
        for g in range(number_of(group)):
            inside = np.flatnonzero((group == g) & heard)
            as_all = float(np.asarray(state.differ)) * np.sqrt(len(inside) / max(1, heard.sum()))
            if len(inside) >= SMALLEST and evidence.may_differ(pulls[inside], as_all, self.error):
                part = inside[evidence.parted(pulls[inside], int(server.tokens[inside].argmin()))]
                if len(part):
                    parts[g] = part
        state = split(state, parts)
        if not parts:
            rounds = max(self.sweep, (self._rounds_alone - done) // 2)
            return Pause(at_stage(state, MERGE), rounds, Note("split", f"{text} No group can be split."))
        text = f"{text} {count(len(parts), 'group')} split in two, to see whether that is of use."
        return Pause(at_stage(state, 1), SHORT, Note("split", text))

    def _pulls(
        self, state: State
    ) -> Exchange[
        tuple[
            Int[np.ndarray, " clients"], Float[np.ndarray, "clients 2 numbers"], Bool[np.ndarray, " clients"]
        ]
    ]:
        """Who is in which group, where their halves pull its models, and who told."""
        answers = yield Ask(PullHalves(state.halves), state.assignment)
        group = np.asarray(state.assignment)
        return group, np.asarray(answers.report.halves, float), np.asarray(answers.answered) & (group >= 0)

    def _without_leavers(self, server: Server, state: State, told: Told) -> Exchange[tuple[State, Told, str]]:
        """LEAVE: clients, and groups, that lose less by being alone go alone."""
        leavers = np.flatnonzero(evidence.better_alone(told, self.error))
        if not len(leavers):
            return state, told, "Nobody leaves to be alone."
        pairs = yield from self._trained_alone(server, state, leavers)
        state, told, _ = yield from self._judged(server, alone_now(state, leavers, pairs), stay=True)
        return state, told, f"{count(len(leavers), 'client')} left, better off alone."

    def _trained_alone(
        self, server: Server, state: State, clients: Int[np.ndarray, " some"]
    ) -> Exchange[PyTree]:
        """The pair of models of each of some clients, trained on its own halves."""
        w0, halves = stacked.take(state.first, 0), []
        for half in range(2):
            key = jax.random.fold_in(server.key("alone"), half)
            part = np.array([half, 2], np.int32)
            models, there, _ = yield from trained_alone(
                w0, self._rounds_alone, key, clients=clients, part=part, least=0
            )
            # one that did not answer, or diverged, begins where all began
            begun = jax.tree.map(lambda w: jnp.broadcast_to(w, (len(clients), *w.shape)), w0)
            halves.append(stacked.where(jnp.asarray(there), models, begun))
        pairs: PyTree = jax.tree.map(lambda a, b: jnp.stack([a, b], 1), *halves)
        return pairs

    # -- FINAL -----------------------------------------------------------------------------------------------

    def _settled(self, state: State, done: int) -> Exchange[Pause]:
        """Clients take the model of lowest loss; one that is a group by itself stays it."""
        left = self.rounds - (done - int(np.asarray(state.began)))
        group = np.asarray(state.assignment)
        if left <= 0 or stacked.count(state.models) == 1:
            return Pause(state, left)
        answers = yield Ask(MeasureLosses(state.models))
        sizes = np.bincount(group[group >= 0], minlength=stacked.count(state.models))
        may = np.asarray(answers.answered) & ((group < 0) | (sizes[group] > 1))
        now = np.where(may, np.asarray(lowest(np.asarray(answers.report.losses))), group).astype(np.int32)
        moved = int((now != group).sum())
        note = Note("settle", f"{count(moved, 'client')} moved.") if moved else None
        return Pause(
            dataclasses.replace(state, assignment=jnp.asarray(now)), self._stretch(self.rounds - left), note
        )

    def _stretch(self, done: int) -> int:
        """Rounds until clients may move again: the later, the fewer of them do."""
        return min(max(self.sweep, done), self.rounds - done)

    def finish(self, server: Server, state: State) -> Exchange[Result]:
        result = yield from super().finish(server, state)
        return result._replace(confidence=confidence(state, result.assignment))

    @property
    def expected_rounds(self) -> int:
        return self.rounds + self._rounds_alone + 2 * self.sweep

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        whole_number("sweep", self.sweep, 1)
        if self.alone is not None:
            whole_number("alone", self.alone, 1)
        if not 0 < self.error < 1:
            raise SettingError(f"error must be a probability above 0 and below 1, not {self.error}.")
