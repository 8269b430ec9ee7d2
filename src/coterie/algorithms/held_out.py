"""MERGE on held-out examples: clusters become one unless the clients of either of them lose by it.

Where no distance parts near from far clients, no threshold of distances is any good. Two models are trained
for each cluster, one on each half of its clients' examples, and a client is judged by the one that has not
seen the example. Clusters that are each other's nearest are merged on trial: their models train together,
and if either side's loss rises, beyond what chance explains, both are as before.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from coterie.aggregate import Mean
from coterie.algorithms.parts.averaging import Averaging
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.learn.compare import CompareHalves
from coterie.learn.halves import TrainHalves, statistic
from coterie.models import stacked

ERROR = 0.01  # how probable an objection may be where all clients are alike, if statistics were normal
OBJECTION = 2.0  # standard errors, where both sides together lose, until the last merges
MARGIN = 1.0  # by which another cluster must fit a client better for it to move there
SWEEP = 5  # rounds of training after each merge
MOVES, MOST = 10, 30  # sweeps in which clients move, and of all


class Merged(NamedTuple):
    """What became of clusters.

    Attributes
    ----------
    group
        The cluster of each client; -1 for one that was in none.
    worse
        The sum of a client's losses under each cluster's models, above that under its own cluster's.
    tried, undone
        How many merges.
    """

    group: Int[np.ndarray, " clients"]
    worse: Float[np.ndarray, "clients k"]
    tried: int
    undone: int


class _Told(NamedTuple):
    """Sums over a client's examples; nothing of one that did not answer."""

    sum: Float[np.ndarray, "clients k"]
    squares: Float[np.ndarray, "clients k"]

    def of(self, some: Bool[np.ndarray, " clients"], k: int) -> float:
        """The statistic of some clients under the models of one cluster."""
        return float(statistic(self.sum[some, k].sum(), self.squares[some, k].sum()))


def merged_held_out(
    server: Server, w0: PyTree, group: Int[np.ndarray, " clients"], rounds: int, by_examples: bool
) -> Exchange[Merged]:
    """Merge clusters as long as nobody loses by it; before that, their models train from w_0 for `rounds`."""
    from scipy.stats import norm  # slow to import

    bound = float(norm.isf(ERROR / (2 * server.clients)))
    group = _numbered(group)
    pairs = jax.tree.map(lambda a: jnp.broadcast_to(a, (_room(_number_of(group)), 2, *a.shape)), w0)
    pairs = yield from _trained(pairs, group, range(rounds), by_examples)
    told = yield from _judged(pairs, group, np.arange(_number_of(group)))
    refused: set[frozenset[frozenset[int]]] = set()
    tried = undone = 0
    last = False  # whether all that is left is to try again what was refused, and to judge it more strictly
    for sweep in range(MOST):
        if _number_of(group) == 1:
            break
        moved = group if last or sweep >= MOVES else _moved(told, group)
        moves = bool((moved != group).any())
        if moves:  # a cluster that nobody is left in is gone
            pairs, group = _taken(pairs, np.unique(moved[moved >= 0])), _numbered(moved)
            told = yield from _judged(pairs, group, np.arange(_number_of(group)))
        home = _homes(told, group, np.inf if last else bound, refused)
        k, merges = len(home), int((home != np.arange(len(home))).sum())
        if not merges and not moves:
            if last:
                break
            # clients went where their examples fit, and clusters look better on these than they are
            last, refused = True, set()
            continue
        after = range(rounds + SWEEP * sweep, rounds + SWEEP * (sweep + 1))
        mean = stacked.weighted(pairs, _shares(group, home, stacked.count(pairs)))
        mean = yield from _trained(mean, _numbered(home[group], group), after, by_examples)
        # those of before as well: nobody shall seem to gain by a merge who only trained for longer
        pairs = yield from _trained(pairs, group, after, by_examples)
        beside = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), pairs, mean)
        columns = np.concatenate([np.arange(k), stacked.count(pairs) + np.arange(k - merges)])
        told = yield from _judged(beside, group, columns)
        back = _objected(told, group, home, bound, bound if last else OBJECTION)
        refused |= {_who(group, home, new) for new in back}
        # the models of before of those that are as before, the merged ones of all others
        places = np.where(np.isin(home, back), np.arange(k), k + _numbered(home))
        pairs, group = _taken(beside, columns[np.unique(places)]), _numbered(places[group], group)
        told = yield from _judged(pairs, group, np.arange(_number_of(group)))
        tried, undone = tried + merges, undone + len(back)
        if last and len(back) == merges:
            break
    return Merged(group, told.sum, tried, undone)


def _moved(told: _Told, group: Int[np.ndarray, " clients"]) -> Int[np.ndarray, " clients"]:
    """Where clients go: to a cluster that fits them better, clearly."""
    everybody, nearest = np.arange(len(group)), told.sum.argmin(1)
    leaves = statistic(*(values[everybody, nearest] for values in told)) < -MARGIN
    return np.where((group >= 0) & leaves, nearest, group)


def _homes(
    told: _Told,
    group: Int[np.ndarray, " clients"],
    bound: float,
    refused: set[frozenset[frozenset[int]]],
) -> Int[np.ndarray, " k"]:
    """The cluster that each is merged to on trial: those that are each other's nearest, to the first of them.

    Only where one of them serves the other's clients about as well as their own does, and not if it was
    refused.
    """
    k = _number_of(group)
    member = (group[:, None] == np.arange(k)).astype(float)
    away, squares = (member.T @ values for values in told)
    each, both = statistic(away, squares), statistic(away + away.T, squares + squares.T)
    near = np.where(np.minimum(each, each.T) < bound, both, np.inf)
    np.fill_diagonal(near, np.inf)
    for a, b in np.argwhere(np.isfinite(np.triu(near, 1)) & np.triu(np.ones((k, k), bool), 1)):
        if frozenset(frozenset(np.flatnonzero(group == g).tolist()) for g in (a, b)) in refused:
            near[a, b] = near[b, a] = np.inf
    nearest, own = near.argmin(1), np.arange(k)
    mutual = (nearest[nearest] == own) & np.isfinite(near[own, nearest])
    return np.where(mutual, np.minimum(own, nearest), own)


def _objected(
    told: _Told,
    group: Int[np.ndarray, " clients"],
    home: Int[np.ndarray, " k"],
    bound: float,
    together_worse: float,
) -> Int[np.ndarray, " back"]:
    """The merged clusters of which a side has lost by it; their models come behind the k of before.

    There is another bound where both sides together lose.
    """
    back = []
    for number, new in enumerate(np.unique(home)):
        sides = [group == g for g in np.flatnonzero(home == new)]
        if len(sides) > 1:
            lost = [told.of(side, len(home) + number) for side in sides]
            together = told.sum[np.any(sides, 0), len(home) + number].sum()
            if max(lost) >= (together_worse if together > 0 else bound):
                back.append(new)
    return np.array(back, int)


def _who(
    group: Int[np.ndarray, " clients"], home: Int[np.ndarray, " k"], new: int
) -> frozenset[frozenset[int]]:
    """The clients of the sides of a merge."""
    return frozenset(frozenset(np.flatnonzero(group == g).tolist()) for g in np.flatnonzero(home == new))


def _trained(
    pairs: PyTree, group: Int[np.ndarray, " clients"], rounds: range, by_examples: bool
) -> Exchange[PyTree]:
    """The pairs of models after some rounds of federated averaging."""
    averaging, known = Averaging("examples" if by_examples else "clients"), _known(group)
    for number in rounds:
        answers = yield Ask(
            TrainHalves(pairs, jnp.asarray(number), by_examples=by_examples),
            jnp.asarray(group if known is None else group[known], jnp.int32),
            clients=known,
            reduce=Mean().reduction(stacked.count(pairs)),
        )
        pairs, _ = averaging.update(pairs, None, answers, None, clients=len(group))
    return pairs


def _judged(
    pairs: PyTree, group: Int[np.ndarray, " clients"], columns: Int[np.ndarray, " k"]
) -> Exchange[_Told]:
    """What clients say of these of the pairs, beside that of their own cluster."""
    known = _known(group)
    own = jnp.asarray(group if known is None else group[known], jnp.int32)
    answers = yield Ask(CompareHalves(pairs, own), clients=known)
    sums, squares = (
        np.asarray(values, float)[:, columns] for values in (answers.report.sum, answers.report.squares)
    )
    heard = np.asarray(answers.answered)[:, None] & np.isfinite(sums) & np.isfinite(squares)
    whole = np.zeros((2, len(group), len(columns)))
    whole[:, slice(None) if known is None else known] = np.where(heard, (sums, squares), 0)
    return _Told(*whole)


def _known(group: Int[np.ndarray, " clients"]) -> Int[np.ndarray, " known"] | None:
    """The clients that are in a cluster; None where all are."""
    return None if (group >= 0).all() else np.flatnonzero(group >= 0)


def _room(k: int) -> int:
    """Of pairs there are 1, 2, 4, 8, ...: each other number would be a program of its own. Those in excess
    repeat the last one."""
    return 1 << (k - 1).bit_length()


def _taken(pairs: PyTree, index: Int[np.ndarray, " k"]) -> PyTree:
    return stacked.take(pairs, index[np.minimum(np.arange(_room(len(index))), len(index) - 1)])


def _shares(
    group: Int[np.ndarray, " clients"], home: Int[np.ndarray, " k"], room: int
) -> Float[np.ndarray, "pairs merged"]:
    """How much each cluster's model counts in that of each merged one: by its clients."""
    names, sizes = np.unique(home), np.bincount(group[group >= 0], minlength=len(home))
    shares = np.zeros((room, _room(len(names))), np.float32)
    shares[: len(home), : len(names)] = (home[:, None] == names) * sizes[:, None]
    shares[:, len(names) :] = shares[:, len(names) - 1 : len(names)]
    return np.asarray(shares / shares.sum(0))


def _number_of(group: Int[np.ndarray, " clients"]) -> int:
    return int(group.max()) + 1


def _numbered(
    names: Int[np.ndarray, " n"], group: Int[np.ndarray, " n"] | None = None
) -> Int[np.ndarray, " n"]:
    """The same groups numbered from 0 in the order of their names; -1 where `group`, or the name, is."""
    there = (names if group is None else group) >= 0
    new = np.full(len(names), -1, np.int32)
    new[there] = np.unique(names[there], return_inverse=True)[1]
    return new
