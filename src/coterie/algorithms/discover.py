"""Discover: groups without being told how many, or how far apart; and none where there are none.

An algorithm of ours. Too many groups can be mended by merging them, too few cannot be mended: it begins with
every client alone. What a merge costs is seen on held-out examples, so that no distance has to be given: two
models are kept for each group, trained on one half of each client's examples each, and a client is judged by
the model that has not seen the example (`coterie.learn.halves`).

A *sweep* is JUDGE and MERGE: clients whose examples another group's models fit clearly better move there;
pairs of groups of which one serves the other's clients about as well as their own are merged, and train
together for a few rounds. Then each side of a merge is asked whether it lost: if it did, beyond what chance
explains, both sides are as before. When nothing changes any more, merges are tried again with the stricter
bound alone, and nobody moves (PRUNE): groups were chosen by the very examples on which they are judged, which
makes what they are look better than it is. Then clients that would be better off alone leave (LEAVE), and one
model of each group is trained on all examples (FINAL).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from coterie.aggregate import Mean
from coterie.algorithms.algorithm import Note, Pause, Round, unknown
from coterie.algorithms.discovered import (
    AGAIN,
    PRUNE,
    SWEEP,
    State,
    Told,
    at_stage,
    compact,
    for_final,
    in_final,
    marks_of,
    means,
    merged,
    moved_to,
    number_of,
    stage_of,
    undone,
    with_groups,
)
from coterie.algorithms.known_clusters import KnownClusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import SettingError, whole_number
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise.alone import trained_alone
from coterie.initialise.random import fresh_models
from coterie.learn.halves import JudgeAlone, JudgeHalves, JudgeHalvesAgain, TrainHalves, statistic
from coterie.learn.learner import Learner
from coterie.learn.tasks import MeasureLosses, lowest
from coterie.models import stacked
from coterie.words import count

MOST = 40  # sweeps
NEARER = 0.1  # in proportion: so much nearer than one that was refused another group has to be


@dataclasses.dataclass(frozen=True, kw_only=True)
class Discover(KnownClusters[State]):
    """Finds the groups, and their number, from what merging them costs on held-out examples.

    Parameters
    ----------
    rounds
        Of FINAL, in which every group's model trains on all examples.
    alone
        For how many local updates clients train alone at the beginning; as many as `rounds` when not given.
    sweep
        Rounds of training after every sweep.
    seeds
        How many clients, drawn at random, begin as groups of their own; the others join the one whose models
        fit them best. All clients where there are no more.
    error
        How probable it may be that any client of a population whose clients are all alike objects to a merge,
        if its statistic were normal: z is the normal quantile of error / (2 m) for m clients.
    objection
        z where a merge makes both sides together worse, but for PRUNE.
    margin
        By how many standard errors another group must fit a client better for it to move there in a sweep.
    weight
        How much a client counts in a group's mean: see `Averaging`.
    participation
        Of rounds; in sweeps all clients are asked.
    """

    alone: int | None = None
    sweep: int = 5
    seeds: int = 200
    error: float = 0.01
    objection: float = 2.0
    margin: float = 1.0
    weight: Weight = "clients"

    # -- the beginning: every client alone -----------------------------------------------------------------

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        return self.state_of(fresh_models(server, key, 1), server.clients)
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        pairs = jax.tree.map(lambda a: jnp.stack([a, a], 1), models)
        return State(
            models,
            unknown(clients),
            halves=pairs,
            first=jax.tree.map(lambda a: a[:1], models),
            tried=pairs,
            parent=unknown(clients),
            refused=jnp.zeros(0, jnp.uint32),
            limits=jnp.zeros(0),
            near=jnp.full(clients, jnp.nan),
            stage=jnp.asarray(SWEEP, jnp.int32),
            apart=jnp.zeros(clients, bool),
            began=jnp.asarray(0, jnp.int32),
        )

    def _begin(self, server: Server, state: State) -> Exchange[State]:
        lots = np.argsort(np.asarray(jax.random.bits(server.key("seeds"), (server.clients,))))
        here = lots[np.isin(lots, server.present)]
        chosen = np.sort(here[: self.seeds])
        pairs = yield from self._trained_alone(server, state, chosen, "alone")
        group = np.full(server.clients, -1, np.int32)
        group[chosen] = np.arange(len(chosen))
        return with_groups(state, pairs, group)

    def _trained_alone(
        self, server: Server, state: State, clients: Int[np.ndarray, " some"], purpose: str
    ) -> Exchange[PyTree]:
        """The pair of models of each of some clients, trained on its own halves."""
        w0, halves = stacked.take(state.first, 0), []
        for half in range(2):
            key = jax.random.fold_in(server.key(purpose), half)
            part = np.array([half, 2], np.int32)
            models, there, _ = yield from trained_alone(
                w0, self._rounds_alone, key, clients=clients, part=part
            )
            # one that did not answer, or diverged, begins where all began
            halves.append(
                jax.tree.map(
                    lambda a, b: jnp.where(stacked.expand(jnp.asarray(there), a), a, b),  # noqa: B023
                    models,
                    w0,
                )
            )
        pairs: PyTree = jax.tree.map(lambda a, b: jnp.stack([a, b], 1), *halves)
        return pairs

    @property
    def _rounds_alone(self) -> int:
        return self.alone or self.rounds

    # -- rounds ----------------------------------------------------------------------------------------------

    def ask(self, state: State, round: Round) -> Ask:
        assert state.began is not None
        number = round.number - state.began
        if in_final(state):
            return self.averaging.ask(state.models, number, only=state.assignment)
        task = TrainHalves(state.halves, number, by_examples=self.weight == "examples")
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
            state = yield from self._begin(server, state)
        words: list[str] = []
        while True:
            told = yield from self._judged(state, first=done == 0 and not words)
            refused = self._refused(state, told)
            if refused:
                state = undone(server, state, refused)
                told = yield from self._judged(state, first=False)
            moved = int((told.group != np.asarray(state.assignment)).sum())
            state, told = moved_to(state, told)
            pairs = self._mergers(server, state, told) if done < MOST * self.sweep else []
            words.append(_sweep_text(state, moved, pairs, refused))
            if pairs or moved:
                state = merged(state, told, pairs, done)
                return Pause(state, self.sweep, Note("sweep", " ".join(words)))
            if stage_of(state) == SWEEP:
                state = at_stage(state, PRUNE)
                words.append("PRUNE:")
                continue
            if stage_of(state) == AGAIN:
                break
            state, gone = yield from self._without_leavers(server, state, told)
            words.append(f"{count(gone, 'client') if gone else 'Nobody'} left to be alone.")
            if not gone:
                break
        words.append(f"FINAL: {count(number_of(state.assignment), 'group')}.")
        return Pause(for_final(state, done), self._stretch(0), Note("final", " ".join(words), told.details()))

    def _judged(self, state: State, first: bool) -> Exchange[Told]:
        """JUDGE: what all clients say of all groups, and where they go."""
        stay = jnp.asarray(np.inf, jnp.float32)
        alone = Ask(JudgeAlone(stacked.take(state.first, 0), self._rounds_alone))
        assert state.parent is not None
        before, now = (jnp.asarray(number_of(group)) for group in (state.parent, state.assignment))
        ask = Ask(JudgeHalves(state.tried, before, stay, state.parent), remind=alone)
        if not first:
            margin = stay if stage_of(state) == PRUNE else jnp.asarray(self.margin, jnp.float32)
            ask = Ask(JudgeHalvesAgain(state.halves, now, margin, state.assignment), remind=ask)
        answers = yield ask
        return Told.of(answers, np.asarray(state.assignment), np.asarray(state.apart))

    def _refused(self, state: State, told: Told) -> list[int]:
        """The groups that were merged and of which a side has lost by it."""
        group, parent = np.asarray(state.assignment), np.asarray(state.parent)
        refused = []
        for g in range(number_of(state.assignment)):
            inside = (group == g) & told.heard & (parent >= 0)
            sides = [inside & (parent == p) for p in np.unique(parent[inside])]
            if len(sides) < 2:
                continue
            lost = [statistic(*(values[side].sum() for values in told.change)) for side in sides]
            worse = told.change.sum[inside].sum() > 0 and stage_of(state) != PRUNE
            bound = self.objection if worse else self._bound(len(group))
            if max(lost) >= bound:
                refused.append(g)
        return refused

    def _bound(self, clients: int) -> float:
        from scipy.stats import norm  # slow to import

        return float(norm.isf(self.error / (2 * clients)))

    def _mergers(self, server: Server, state: State, told: Told) -> list[tuple[int, int, float]]:
        """Pairs of groups that are each other's nearest, and of which one serves the other's clients too."""
        away, squares = told.between()
        k = len(away)
        if k < 2:
            return []
        other = statistic(away, squares)
        together = statistic(away + away.T, squares + squares.T)
        may = np.minimum(other, other.T) < self._bound(server.clients)
        np.fill_diagonal(may, False)
        group = np.asarray(state.assignment)
        alone = group[np.asarray(state.apart) & (group >= 0)]
        may[alone] = may[:, alone] = False
        # what is farther away than one that was refused is not tried
        marks, limits = marks_of(server, group, k), np.full(k, np.inf)
        for mark, limit in zip(np.asarray(state.refused), np.asarray(state.limits), strict=True):
            limits[marks == mark] = np.minimum(limits[marks == mark], limit - NEARER * abs(limit))
        may &= together < np.minimum(limits[:, None], limits[None, :])
        near = np.where(may, together, np.inf)
        nearest = near.argmin(1)
        return [
            (a, int(b), float(near[a, b]))
            for a, b in enumerate(nearest)
            if a < b and nearest[b] == a and np.isfinite(near[a, b])
        ]

    def _without_leavers(self, server: Server, state: State, told: Told) -> Exchange[tuple[State, int]]:
        """LEAVE: clients, and groups, that lose less by being alone go alone."""
        group, bound = told.group, self._bound(server.clients)
        together = (group >= 0) & (np.bincount(group + 1)[group + 1] > 1)
        go = together & (statistic(*told.alone) < -bound)
        dissolved = np.zeros(len(group), bool)
        for g in np.unique(group[together]):
            inside = group == g
            if statistic(*(values[inside].sum() for values in told.alone)) < -bound:
                dissolved |= inside
        leavers = np.flatnonzero(go | dissolved)
        apart = jnp.asarray(np.asarray(state.apart) | dissolved)
        state = dataclasses.replace(at_stage(state, AGAIN), apart=apart)
        if not len(leavers):
            return state, 0
        pairs = yield from self._trained_alone(server, state, leavers, "left alone")
        after = group.copy()
        after[leavers] = stacked.count(state.halves) + np.arange(len(leavers))
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.halves, pairs)
        state = dataclasses.replace(state, halves=both, assignment=jnp.asarray(after))
        return compact(state), len(leavers)

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
        """Rounds until clients may move again."""
        return min(self.sweep, self.rounds - done)

    @property
    def expected_rounds(self) -> int:
        return self.rounds + 10 * self.sweep

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        for name, least in (("sweep", 1), ("seeds", 2)):
            whole_number(name, getattr(self, name), least)
        if self.alone is not None:
            whole_number("alone", self.alone, 1)
        if not 0 < self.error < 1:
            raise SettingError(f"error must be a probability above 0 and below 1, not {self.error}.")
        for name in ("objection", "margin"):
            if not getattr(self, name) >= 0:
                raise SettingError(f"{name} must not be negative, not {getattr(self, name)}.")


def _sweep_text(state: State, moved: int, pairs: list[tuple[int, int, float]], refused: list[int]) -> str:
    text = f"{count(number_of(state.assignment), 'group')}"
    if refused:
        text += f", {count(len(refused), 'merge')} undone since a side of it lost by it"
    if moved:
        text += f", {count(moved, 'client')} moved"
    text += f", {count(len(pairs), 'pair')} to be merged." if pairs else ", no pair to be merged."
    return text
