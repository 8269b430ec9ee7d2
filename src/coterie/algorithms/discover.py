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
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.aggregate import Mean
from coterie.algorithms import known_clusters
from coterie.algorithms.algorithm import Note, Pause, Round, client_rows, unknown
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
SWEEP, PRUNE, AGAIN = range(3)
NEARER = 0.1  # in proportion: so much nearer than one that was refused another group has to be


class State(known_clusters.State):
    """The groups with their models, and what they were before the merges that are being tried."""

    halves: PyTree = None  # (k, 2, ...); none in FINAL, where `models` train on all examples
    first: PyTree = None  # w_0, (1, ...)
    tried: PyTree = None  # the pairs of before the merges, (k', 2, ...)
    parent: Int[Array, " clients"] | None = client_rows(fill=-1, default=None)  # the group among these
    # of groups that were in a merge that was refused: who they are (see `_marks`), and how near the other was
    refused: Int[Array, " refused"] | None = None
    limits: Float[Array, " refused"] | None = None
    near: Float[Array, " clients"] | None = client_rows(
        fill=jnp.nan, default=None
    )  # of the merges being tried
    stage: Int[Array, ""] | None = None  # SWEEP, PRUNE or, after LEAVE, AGAIN
    apart: Bool[Array, " clients"] | None = client_rows(fill=False, default=None)  # of dissolved groups
    began: Int[Array, ""] | None = None  # the round before which the models began to train as they do now


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
        return _with(state, pairs, group)

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
        if _in_final(state):
            return self.averaging.ask(state.models, number, only=state.assignment)
        task = TrainHalves(state.halves, number, by_examples=self.weight == "examples")
        return Ask(task, state.assignment, reduce=Mean().reduction(stacked.count(state.halves)))

    def update(self, state: State, answers: Answers, round: Round) -> State:
        if _in_final(state):
            return super().update(state, answers, round)
        pairs, _ = self.averaging.update(
            state.halves, None, answers, round.rate, clients=len(state.assignment)
        )
        return dataclasses.replace(state, halves=pairs, models=_means(pairs))

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        known = np.asarray(state.assignment) >= 0
        return None if known.all() else known

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight)

    # -- between them ----------------------------------------------------------------------------------------

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        if _in_final(state):
            after = yield from self._settled(state, done)
            return after
        if done == 0:
            state = yield from self._begin(server, state)
        words: list[str] = []
        while True:
            told = yield from self._judged(state, first=done == 0 and not words)
            refused = self._refused(state, told)
            if refused:
                state = _undone(server, state, refused)
                told = yield from self._judged(state, first=False)
            moved = int((told.group != np.asarray(state.assignment)).sum())
            state, told = _moved(state, told)
            pairs = self._mergers(server, state, told) if done < MOST * self.sweep else []
            words.append(_sweep_text(state, moved, pairs, refused))
            if pairs or moved:
                state = _merged(state, told, pairs, done)
                return Pause(state, self.sweep, Note("sweep", " ".join(words)))
            if _stage(state) == SWEEP:
                state = _at(state, PRUNE)
                words.append("PRUNE:")
                continue
            if _stage(state) == AGAIN:
                break
            state, gone = yield from self._without_leavers(server, state, told)
            words.append(f"{count(gone, 'client') if gone else 'Nobody'} left to be alone.")
            if not gone:
                break
        words.append(f"FINAL: {count(_groups(state.assignment), 'group')}.")
        return Pause(_final(state, done), self._stretch(0), Note("final", " ".join(words), told.details()))

    def _judged(self, state: State, first: bool) -> Exchange[Told]:
        """JUDGE: what all clients say of all groups, and where they go."""
        stay = jnp.asarray(np.inf, jnp.float32)
        alone = Ask(JudgeAlone(stacked.take(state.first, 0), self._rounds_alone))
        assert state.parent is not None
        before, now = (jnp.asarray(_groups(group)) for group in (state.parent, state.assignment))
        ask = Ask(JudgeHalves(state.tried, before, stay, state.parent), remind=alone)
        if not first:
            margin = stay if _stage(state) == PRUNE else jnp.asarray(self.margin, jnp.float32)
            ask = Ask(JudgeHalvesAgain(state.halves, now, margin, state.assignment), remind=ask)
        answers = yield ask
        return Told.of(answers, np.asarray(state.assignment), np.asarray(state.apart))

    def _refused(self, state: State, told: Told) -> list[int]:
        """The groups that were merged and of which a side has lost by it."""
        group, parent = np.asarray(state.assignment), np.asarray(state.parent)
        refused = []
        for g in range(_groups(state.assignment)):
            inside = (group == g) & told.heard & (parent >= 0)
            sides = [inside & (parent == p) for p in np.unique(parent[inside])]
            if len(sides) < 2:
                continue
            lost = [statistic(*(values[side].sum() for values in told.change)) for side in sides]
            worse = told.change.sum[inside].sum() > 0 and _stage(state) != PRUNE
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
        marks, limits = _marks(server, group, k), np.full(k, np.inf)
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
        state = dataclasses.replace(_at(state, AGAIN), apart=apart)
        if not len(leavers):
            return state, 0
        pairs = yield from self._trained_alone(server, state, leavers, "left alone")
        after = group.copy()
        after[leavers] = stacked.count(state.halves) + np.arange(len(leavers))
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.halves, pairs)
        state = dataclasses.replace(state, halves=both, assignment=jnp.asarray(after))
        return _compact(state), len(leavers)

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


class Pairs(NamedTuple):
    """Paired differences of clients' losses: see `coterie.learn.halves.Judgement`."""

    sum: Float[np.ndarray, "clients *k"]
    squares: Float[np.ndarray, "clients *k"]


class Told(NamedTuple):
    """What clients said of the groups, and where they go; of those that did not answer, nothing."""

    heard: Bool[np.ndarray, " clients"]
    group: Int[np.ndarray, " clients"]
    loss: Float[np.ndarray, "clients k"]
    others: Pairs  # with a column for each group
    change: Pairs
    alone: Pairs

    @classmethod
    def of(
        cls, answers: Answers, group: Int[np.ndarray, " clients"], apart: Bool[np.ndarray, " clients"]
    ) -> Told:
        heard, report = np.asarray(answers.answered), answers.report

        def numbers(values: Any) -> np.ndarray:
            values = np.asarray(values, float)
            return np.where(heard.reshape(-1, *[1] * (values.ndim - 1)) & np.isfinite(values), values, 0.0)

        chosen = np.asarray(answers.cluster, np.int32)
        moves = heard & ~apart & ~np.isin(chosen, group[apart])  # who went alone is left alone
        told = report.others, report.change, report.alone
        pairs = (Pairs(*np.moveaxis(numbers(values), 1, 0)) for values in told)
        return cls(heard, np.where(moves, chosen, group), numbers(report.loss), *pairs)

    def only(self, group: Int[np.ndarray, " clients"], names: Int[np.ndarray, " some"]) -> Told:
        """The same of some of the groups, which have other numbers."""
        others = Pairs(*(values[:, names] for values in self.others))
        return self._replace(group=group, loss=self.loss[:, names], others=others)

    def between(self) -> Pairs:
        """What the clients of each group (row) lose by each group's models."""
        k, known = self.loss.shape[1], self.heard & (self.group >= 0)
        member = np.zeros((len(self.group), k))
        member[np.flatnonzero(known), self.group[known]] = 1
        return Pairs(*(member.T @ values for values in self.others))

    def details(self) -> dict[str, Any]:
        """How sure it is: of every pair of groups, what the clients of the one lose by the other's models."""
        return {"apart": np.round(statistic(*self.between()), 3).tolist()}


def _stage(state: State) -> int:
    return int(np.asarray(state.stage))


def _at(state: State, stage: int) -> State:
    """The state at another stage, at which what was refused may be tried again."""
    assert state.refused is not None and state.limits is not None
    return dataclasses.replace(
        state, stage=jnp.asarray(stage, jnp.int32), refused=state.refused[:0], limits=state.limits[:0]
    )


def _in_final(state: State) -> bool:
    return stacked.count(state.halves) == 0


def _means(pairs: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a.mean(1), pairs)


def _groups(group: Any) -> int:
    """How many groups there are, given that of each client; of `halves` there may be more."""
    return int(np.asarray(group).max(initial=-1)) + 1


def _with(state: State, pairs: PyTree, group: Int[np.ndarray, " clients"]) -> State:
    """The state with these groups, and no merge to be tried.

    Of pairs there are 1, 2, 3, 4, 6, 8, 12, 16, ...: every other number would be a program of its own. Those
    in excess repeat the last one, and nobody may choose them.
    """
    rows, k = jnp.asarray(group, jnp.int32), stacked.count(pairs)
    power = 2 ** math.floor(math.log2(max(k, 1)))
    room = next(size for size in (power, power * 3 // 2, 2 * power) if size >= k)
    pairs = stacked.take(pairs, np.minimum(np.arange(room), k - 1))
    return dataclasses.replace(
        state, models=_means(pairs), halves=pairs, assignment=rows, tried=pairs, parent=rows
    )


def _compact(state: State) -> State:
    """The groups that have clients, numbered anew."""
    group = np.asarray(state.assignment)
    names = np.unique(group[group >= 0])
    new = np.full(int(names.max(initial=-1)) + 2, -1, np.int32)
    new[names] = np.arange(len(names))
    return _with(state, stacked.take(state.halves, names), np.where(group >= 0, new[group], -1))


def _moved(state: State, told: Told) -> tuple[State, Told]:
    """The groups after clients went where they fit better; those that nobody is left in are gone."""
    now = dataclasses.replace(state, assignment=jnp.asarray(told.group))
    names = np.unique(told.group[told.group >= 0])
    after = _compact(now)
    return after, told.only(np.asarray(after.assignment), names)


def _merged(state: State, told: Told, pairs: list[tuple[int, int, float]], done: int) -> State:
    """The groups with pairs of them as one, whose models begin as the mean of both sides'."""
    group, k = np.asarray(state.assignment), _groups(state.assignment)
    home = np.arange(k)
    nearness = np.full(k, np.nan)
    for a, b, near in pairs:
        home[b] = a
        nearness[[a, b]] = near
    names, new = np.unique(home, return_inverse=True)
    sizes = np.bincount(group[group >= 0], minlength=k).astype(float)
    member = (home[:, None] == names) * sizes[:, None]
    both = stacked.weighted(stacked.take(state.halves, slice(k)), member / member.sum(0))
    after = np.where(group >= 0, new[group], -1)
    merged = _with(state, both, after)
    return dataclasses.replace(
        merged,
        tried=state.halves,
        parent=state.assignment,
        near=jnp.asarray(np.where(group >= 0, nearness[group], np.nan), jnp.float32),
        began=jnp.asarray(done, jnp.int32),
    )


def _undone(server: Server, state: State, refused: list[int]) -> State:
    """The groups without the merges that were refused, which are not to be tried again."""
    group, parent = np.array(state.assignment), np.asarray(state.parent)
    k, marks = stacked.count(state.halves), _marks(server, parent, stacked.count(state.tried))
    back = np.unique(parent[np.isin(group, refused) & (parent >= 0)])
    limits = [float(np.nanmin(np.asarray(state.near)[parent == p])) for p in back]
    for number, p in enumerate(back):
        group[(parent == p) & np.isin(group, refused)] = k + number
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b[back]]), state.halves, state.tried)
    return _compact(
        dataclasses.replace(
            state,
            halves=both,
            assignment=jnp.asarray(group),
            refused=jnp.concatenate([jnp.asarray(state.refused), jnp.asarray(marks[back])]),
            limits=jnp.concatenate([jnp.asarray(state.limits), jnp.asarray(limits, jnp.float32)]),
        )
    )


def _marks(server: Server, group: Int[np.ndarray, " clients"], k: int) -> np.ndarray:
    """A number for each group that tells who is in it: the sum of the tokens of its clients, modulo 2^32."""
    marks = np.zeros(k, np.uint64)
    known = group >= 0
    np.add.at(marks, group[known], server.tokens[known].astype(np.uint64) & np.uint64(0xFFFFFFFF))
    return (marks & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _final(state: State, done: int) -> State:
    """Each group's model, from the mean of its pair; of the pairs nothing is left."""
    nothing = jax.tree.map(lambda a: a[:0], state.halves)
    return dataclasses.replace(
        state,
        models=_means(stacked.take(state.halves, slice(_groups(state.assignment)))),
        halves=nothing,
        tried=nothing,
        parent=jnp.full_like(jnp.asarray(state.assignment), -1),
        began=jnp.asarray(done, jnp.int32),
    )


def _sweep_text(state: State, moved: int, pairs: list[tuple[int, int, float]], refused: list[int]) -> str:
    text = f"{count(_groups(state.assignment), 'group')}"
    if refused:
        text += f", {count(len(refused), 'merge')} undone since a side of it lost by it"
    if moved:
        text += f", {count(moved, 'client')} moved"
    text += f", {count(len(pairs), 'pair')} to be merged." if pairs else ", no pair to be merged."
    return text
