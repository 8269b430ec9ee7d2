"""The groups of `Discover`, and what becomes of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie.algorithms import known_clusters
from coterie.algorithms.algorithm import client_rows
from coterie.algorithms.evidence import Told, chance, prefers
from coterie.clustering.confidence import Confidence
from coterie.learn.halves import statistic
from coterie.models import stacked

# what the rounds before a pause were: the first ones, those in which clients settle (1 to 3), after merges
BEGIN, SETTLED, MERGE, PRUNE = 0, 3, 4, 5


class State(known_clusters.State):
    """The groups with their models, and how far their search is."""

    halves: PyTree = None  # (k, 2, ...); none in FINAL, where `models` train on all examples
    first: PyTree = None  # w_0, (1, ...)
    stage: Int[Array, ""] | None = None
    before: Int[Array, ""] | None = None  # how many groups there were before they were last split
    differ: Float[Array, ""] | None = None  # whether clients do at all: see `evidence.alike`; NaN: not known
    began: Int[Array, ""] | None = None  # the round before which FINAL began
    # what came of the last JUDGE: of each client the second best group, and the margin and chance of that and
    # of being alone; of each pair of groups what merging them costs, and how sure that is
    judged: Float[Array, "clients 6"] | None = client_rows(fill=jnp.nan, default=None)
    merging: Float[Array, "2 k k"] | None = None


def stage_of(state: State) -> int:
    return int(np.asarray(state.stage))


def at_stage(state: State, stage: int) -> State:
    return dataclasses.replace(state, stage=jnp.asarray(stage, jnp.int32))


def in_final(state: State) -> bool:
    return stacked.count(state.halves) == 0


def means(pairs: PyTree) -> PyTree:
    return jax.tree.map(lambda a: a.mean(1), pairs)


def number_of(group: Any) -> int:
    """How many groups there are, given that of each client; of `halves` there may be more."""
    return int(np.asarray(group).max(initial=-1)) + 1


def with_groups(state: State, pairs: PyTree, group: Int[np.ndarray, " clients"]) -> State:
    """The state with these groups.

    Of pairs there are 1, 2, 3, 4, 6, 8, 12, 16, ...: every other number would be a program of its own. Those
    in excess repeat the last one, and nobody may choose them.
    """
    k = stacked.count(pairs)
    power = 2 ** math.floor(math.log2(max(k, 1)))
    room = next(size for size in (power, power * 3 // 2, 2 * power) if size >= k)
    pairs = stacked.take(pairs, np.minimum(np.arange(room), k - 1))
    return dataclasses.replace(
        state, models=means(pairs), halves=pairs, assignment=jnp.asarray(group, jnp.int32)
    )


def moved_to(state: State, told: Told) -> tuple[State, Told, int]:
    """The groups after clients went where they fit best, and how many did; what nobody is left in is gone."""
    moved = int((told.group != np.asarray(state.assignment)).sum())
    names, new = np.unique(told.group[told.group >= 0], return_inverse=True)
    group = np.full(len(told.group), -1, np.int32)
    group[told.group >= 0] = new
    if len(names) == number_of(state.assignment):
        return dataclasses.replace(state, assignment=jnp.asarray(group)), told.only(group, names), moved
    return with_groups(state, stacked.take(state.halves, names), group), told.only(group, names), moved


def split(state: State, parts: dict[int, Int[np.ndarray, " some"]]) -> State:
    """The groups without the clients that are a part of theirs, which are groups of their own."""
    group, k = np.array(state.assignment), number_of(state.assignment)
    for number, part in enumerate(parts.values()):
        group[part] = k + number
    both = stacked.take(state.halves, np.array([*range(k), *parts]))
    return dataclasses.replace(with_groups(state, both, group), before=jnp.asarray(k, jnp.int32))


def alone_now(state: State, leavers: Int[np.ndarray, " some"], pairs: PyTree) -> State:
    """The groups without clients that are groups of their own from now on, with these pairs of models."""
    group = np.array(state.assignment)
    group[leavers] = stacked.count(state.halves) + np.arange(len(leavers))
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.halves, pairs)
    names, new = np.unique(group[group >= 0], return_inverse=True)
    group[group >= 0] = new
    return with_groups(state, stacked.take(both, names), group)


def merged(state: State, pairs: list[tuple[int, int]]) -> State:
    """The groups with pairs of them as one, whose models begin as the mean of both sides'."""
    group, k = np.asarray(state.assignment), number_of(state.assignment)
    home = np.arange(k)
    for a, b in pairs:
        home[b] = a
    names, new = np.unique(home, return_inverse=True)
    sizes = np.bincount(group[group >= 0], minlength=k).astype(np.float32)
    member = np.zeros((stacked.count(state.halves), len(names)), np.float32)
    member[:k] = (home[:, None] == names) * sizes[:, None]
    both = stacked.weighted(state.halves, member / member.sum(0))
    return with_groups(state, both, np.where(group >= 0, new[group], -1))


def for_final(state: State, told: Told, done: int) -> State:
    """Each group's model, from the mean of its pair; of the pairs nothing is left."""
    judged, merging = _judged(told)
    return dataclasses.replace(
        state,
        models=means(stacked.take(state.halves, slice(number_of(state.assignment)))),
        halves=jax.tree.map(lambda a: a[:0], state.halves),
        began=jnp.asarray(done, jnp.int32),
        judged=jnp.asarray(judged, jnp.float32),
        merging=jnp.asarray(merging, jnp.float32),
    )


def _judged(told: Told) -> tuple[Float[np.ndarray, "clients 6"], Float[np.ndarray, "2 k k"]]:
    k, rows = told.loss.shape[1], np.arange(len(told.group))
    known = told.heard & (told.group >= 0) & (told.examples > 0)
    n = np.maximum(told.examples, 1)
    own = (told.group[:, None] == np.arange(k)) | ~known[:, None]
    second = np.where(own, np.inf, told.loss).argmin(1) if k > 1 else np.full(len(rows), -1)
    columns = [told.group, second]
    for (lost, squares), there in ((told.others[rows, :, second].T, k > 1), (told.alone.T, True)):
        values = (lost / n, chance(-statistic(lost, squares), n))
        columns += [np.where(known & there, value, np.nan) for value in values]
    member = told.members()
    total = np.maximum(member @ told.examples, 1)
    costs = member @ told.others[:, 0] / total[:, None]
    return np.stack(columns, 1).astype(float), np.stack([costs, prefers(told)[0]])


def confidence(state: State, group: Int[np.ndarray, " clients"]) -> Confidence:
    """How sure it is of the groups that clients are in; of those that went elsewhere in FINAL, no more."""
    before, second, margin, p, alone, alone_p = np.asarray(state.judged, float).T
    there = (before == group) & (group >= 0)
    back = (second == group) & (group >= 0)  # where it is now was second best

    def of(values: np.ndarray, turned: np.ndarray | float = np.nan) -> np.ndarray:
        return np.where(there, values, np.where(back, turned, np.nan))

    other = np.nan_to_num(of(second, before), nan=-1).astype(np.int32)
    merging, apart = np.asarray(state.merging, float)
    return Confidence(other, of(margin, -margin), of(p, 1 - p), of(alone), of(alone_p), merging, apart)
