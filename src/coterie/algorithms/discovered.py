"""The groups of `Discover`, what clients say of them, and what becomes of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from coterie.algorithms import known_clusters
from coterie.algorithms.algorithm import client_rows
from coterie.federation.exchange import Server
from coterie.federation.protocol import Answers
from coterie.learn.halves import statistic
from coterie.models import stacked

SWEEP, PRUNE, AGAIN = range(3)


class State(known_clusters.State):
    """The groups with their models, and what they were before the merges that are being tried."""

    halves: PyTree = None  # (k, 2, ...); none in FINAL, where `models` train on all examples
    first: PyTree = None  # w_0, (1, ...)
    tried: PyTree = None  # the pairs of before the merges, (k', 2, ...)
    parent: Int[Array, " clients"] | None = client_rows(fill=-1, default=None)  # the group among these
    # of groups whose merge was refused: who they are (see `marks_of`), and how near the other one was
    refused: Int[Array, " refused"] | None = None
    limits: Float[Array, " refused"] | None = None
    # how near the sides of the merges are that are being tried
    near: Float[Array, " clients"] | None = client_rows(fill=jnp.nan, default=None)
    stage: Int[Array, ""] | None = None  # SWEEP, PRUNE or, after LEAVE, AGAIN
    apart: Bool[Array, " clients"] | None = client_rows(fill=False, default=None)  # of dissolved groups
    began: Int[Array, ""] | None = None  # the round before which the models began to train as they do now


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


def stage_of(state: State) -> int:
    return int(np.asarray(state.stage))


def at_stage(state: State, stage: int) -> State:
    """The state at another stage, at which what was refused may be tried again."""
    assert state.refused is not None and state.limits is not None
    return dataclasses.replace(
        state, stage=jnp.asarray(stage, jnp.int32), refused=state.refused[:0], limits=state.limits[:0]
    )


def in_final(state: State) -> bool:
    return stacked.count(state.halves) == 0


def means(pairs: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a.mean(1), pairs)


def number_of(group: Any) -> int:
    """How many groups there are, given that of each client; of `halves` there may be more."""
    return int(np.asarray(group).max(initial=-1)) + 1


def with_groups(state: State, pairs: PyTree, group: Int[np.ndarray, " clients"]) -> State:
    """The state with these groups, and no merge to be tried.

    Of pairs there are 1, 2, 3, 4, 6, 8, 12, 16, ...: every other number would be a program of its own. Those
    in excess repeat the last one, and nobody may choose them.
    """
    rows, k = jnp.asarray(group, jnp.int32), stacked.count(pairs)
    power = 2 ** math.floor(math.log2(max(k, 1)))
    room = next(size for size in (power, power * 3 // 2, 2 * power) if size >= k)
    pairs = stacked.take(pairs, np.minimum(np.arange(room), k - 1))
    return dataclasses.replace(
        state, models=means(pairs), halves=pairs, assignment=rows, tried=pairs, parent=rows
    )


def compact(state: State) -> State:
    """The groups that have clients, numbered anew."""
    group = np.asarray(state.assignment)
    names = np.unique(group[group >= 0])
    new = np.full(int(names.max(initial=-1)) + 2, -1, np.int32)
    new[names] = np.arange(len(names))
    return with_groups(state, stacked.take(state.halves, names), np.where(group >= 0, new[group], -1))


def moved_to(state: State, told: Told) -> tuple[State, Told]:
    """The groups after clients went where they fit better; those that nobody is left in are gone."""
    now = dataclasses.replace(state, assignment=jnp.asarray(told.group))
    names = np.unique(told.group[told.group >= 0])
    after = compact(now)
    return after, told.only(np.asarray(after.assignment), names)


def merged(state: State, told: Told, pairs: list[tuple[int, int, float]], done: int) -> State:
    """The groups with pairs of them as one, whose models begin as the mean of both sides'."""
    group, k = np.asarray(state.assignment), number_of(state.assignment)
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
    merged = with_groups(state, both, after)
    return dataclasses.replace(
        merged,
        tried=state.halves,
        parent=state.assignment,
        near=jnp.asarray(np.where(group >= 0, nearness[group], np.nan), jnp.float32),
        began=jnp.asarray(done, jnp.int32),
    )


def undone(server: Server, state: State, refused: list[int]) -> State:
    """The groups without the merges that were refused, which are not to be tried again."""
    group, parent = np.array(state.assignment), np.asarray(state.parent)
    k, marks = stacked.count(state.halves), marks_of(server, parent, stacked.count(state.tried))
    back = np.unique(parent[np.isin(group, refused) & (parent >= 0)])
    limits = [float(np.nanmin(np.asarray(state.near)[parent == p])) for p in back]
    for number, p in enumerate(back):
        group[(parent == p) & np.isin(group, refused)] = k + number
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b[back]]), state.halves, state.tried)
    return compact(
        dataclasses.replace(
            state,
            halves=both,
            assignment=jnp.asarray(group),
            refused=jnp.concatenate([jnp.asarray(state.refused), jnp.asarray(marks[back])]),
            limits=jnp.concatenate([jnp.asarray(state.limits), jnp.asarray(limits, jnp.float32)]),
        )
    )


def marks_of(server: Server, group: Int[np.ndarray, " clients"], k: int) -> np.ndarray:
    """A number for each group that tells who is in it: the sum of the tokens of its clients, modulo 2^32."""
    marks = np.zeros(k, np.uint64)
    known = group >= 0
    np.add.at(marks, group[known], server.tokens[known].astype(np.uint64) & np.uint64(0xFFFFFFFF))
    return (marks & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def for_final(state: State, done: int) -> State:
    """Each group's model, from the mean of its pair; of the pairs nothing is left."""
    nothing = jax.tree.map(lambda a: a[:0], state.halves)
    return dataclasses.replace(
        state,
        models=means(stacked.take(state.halves, slice(number_of(state.assignment)))),
        halves=nothing,
        tried=nothing,
        parent=jnp.full_like(jnp.asarray(state.assignment), -1),
        began=jnp.asarray(done, jnp.int32),
    )
