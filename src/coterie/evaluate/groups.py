"""Are there groups at all, and is it worth it: a test on examples that chose nothing.

Every client's examples are dealt out to two halves. Groups are found on one half, and models trained on it,
one for each group and, likewise, one for all; the other half judges them; then the same with the halves
exchanged. If all clients are alike, their halves are too, and it makes no difference whose second half goes
with whose first: what the halves of the same clients gave is one draw among those of all pairings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from coterie.algorithms import Discover, Global, Oracle
from coterie.algorithms.algorithm import Algorithm
from coterie.data.shards import Bucket, Shards
from coterie.errors import DataError, SettingError, whole_number
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.losses import CLASSIFYING, named
from coterie.learn.tasks import Evaluate, MeasureLosses
from coterie.models import stacked

LEVEL = 0.05  # p-values up to it are called evidence
BLOCK = 2**22  # losses that are added up at once


class Gain(NamedTuple):
    """What a client gains on average, with a 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, each: Float[np.ndarray, " clients"]) -> Gain:
        """The mean over clients, who are taken for a sample of those that there might be."""
        from scipy.stats import t  # slow to import

        reach = t.ppf(0.975, len(each) - 1) * each.std(ddof=1) / np.sqrt(len(each))
        return cls(float(each.mean()), float(each.mean() - reach), float(each.mean() + reach))

    def words(self, of: str, scale: float = 1, form: str = ".3g") -> str:
        mean, low, high = (f"{scale * value:{form}}" for value in self)
        return f"{mean} {of} (95 %: {low} to {high})"


@dataclass(frozen=True)
class Groups:
    """Whether there are groups, as `print` says in words.

    Attributes
    ----------
    p
        How probable it is that groups fit as well as they do, or better, if all clients are alike.
    loss
        By how much a client's loss is lower under its group's model than under one model for all.
    accuracy
        By how much its accuracy is higher; None for a regression.
    found
        How many groups were found on each half of the examples.
    """

    p: float
    loss: Gain
    accuracy: Gain | None
    found: tuple[int, int]

    @property
    def any(self) -> bool:
        """Whether clients are not all alike, and gain by models of their groups."""
        return self.p <= LEVEL and self.loss.low > 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"any": self.any, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Groups:
        """The inverse of `to_json`."""
        accuracy, (first, second) = content["accuracy"], content["found"]
        more = None if accuracy is None else Gain(*accuracy)
        return cls(content["p"], Gain(*content["loss"]), more, (first, second))

    def __str__(self) -> str:
        if self.found == (1, 1):
            return "No groups: on either half of the examples all clients were found to be one."
        first, second = self.found
        several = f"{first} on one half of the examples, {second} on the other"
        several = str(first) if first == second else several
        gains = f"a client gains {self.loss.words('of loss')}"
        if self.accuracy is not None:
            gains += f" and {self.accuracy.words('points of accuracy', 100, '.1f')}"
        p = f"p = {self.p:.2g}"
        if self.any:
            return f"There are groups ({several}): {p}, {gains}."
        if self.p <= LEVEL:
            return f"Clients are not all alike ({p}), but groups ({several}) are not worth it: {gains}."
        return f"No groups are seen (of {several}): {p}, {gains}."


class _Judged(NamedTuple):
    """What clients say of models that were trained on their other halves."""

    group: Int[np.ndarray, " clients"]
    losses: Float[np.ndarray, "clients k"]  # under the models of the groups
    gain: Float[np.ndarray, " clients"]
    accuracy: Float[np.ndarray, " clients"]


def groups(
    train: Shards,
    learner: Learner,
    *,
    rounds: int = 20,
    algorithm: Algorithm[Any] | None = None,
    seed: int = 0,
    permutations: int = 9999,
) -> Groups:
    """Test whether clients fall into groups, and what they gain by it.

    Parameters
    ----------
    train
        The clients; those with one example are left out.
    learner
        What they know how to do.
    rounds
        Of the training of the models that are compared, and of `Discover`'s last part.
    algorithm
        What finds groups; `Discover` when not given. Whatever it is, the p-value is what it says.
    seed
        Everything random.
    permutations
        How many pairings of halves are compared with that of the clients.
    """
    if not isinstance(train, Shards):
        raise SettingError(
            "groups deals out every client's examples to two halves, and needs Shards (such as data.train), "
            f"not {type(train).__name__}."
        )
    whole_number("rounds", rounds, 1)
    whole_number("permutations", permutations, 1)
    may = train.sizes >= 2
    if may.sum() < 2:
        raise DataError("fewer than two clients have two examples or more: there is nothing to compare.")
    halves = [_half(train if may.all() else train[may], number) for number in (0, 1)]
    finder = Discover(rounds=rounds) if algorithm is None else algorithm
    first, second = (_judged(halves[h], halves[1 - h], learner, finder, rounds, 2 * seed + h) for h in (0, 1))
    each = [(a + b) / 2 for a, b in zip(first[2:], second[2:], strict=True)]
    classifies = named(learner.loss) in CLASSIFYING
    return Groups(
        _p_value(first, second, halves[0].sizes, seed, permutations),
        Gain.of(each[0]),
        Gain.of(each[1]) if classifies else None,
        (len(np.unique(first.group)), len(np.unique(second.group))),
    )


def _half(shards: Shards, number: int) -> Shards:
    """Every other example of each client, from that one on; both halves have as many."""
    own = slice(number, None, 2)
    buckets = [
        Bucket(b.x[:, own][:, : b.capacity // 2], b.y[:, own][:, : b.capacity // 2], b.sizes // 2, b.clients)
        for b in shards.buckets
    ]
    return Shards(shards.ids, shards.spec, buckets)


def _judged(
    own: Shards, other: Shards, learner: Learner, finder: Algorithm[Any], rounds: int, seed: int
) -> _Judged:
    """Groups and models of one half of the examples, judged by the other."""
    found = finder.fit(own, learner, seed=seed)
    group = found.assignment
    if (group < 0).any():
        group = np.where(group < 0, found.assign(own), group)
    _, group = np.unique(group, return_inverse=True)
    k = int(group.max()) + 1
    # both are trained alike, however long the groups took to be found
    each = [how.fit(own, learner, seed=seed) for how in (Oracle(group, rounds=rounds), Global(rounds=rounds))]
    models = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *[one.models for one in each])
    clients = Simulation(other).with_learner(each[0].learner, trains=False)
    losses = np.asarray(clients.ask(MeasureLosses(models)).report.losses, float)
    of_group, of_all = (
        clients.ask(Evaluate(models), only=jnp.asarray(which, jnp.int32)).report
        for which in (group, np.full(len(group), stacked.count(models) - 1))
    )
    gain = losses[:, k] - losses[np.arange(len(group)), group]
    more = np.asarray(of_group.accuracy, float) - np.asarray(of_all.accuracy, float)
    return _Judged(group, losses[:, :k], gain, more)


def _p_value(
    first: _Judged, second: _Judged, sizes: Int[np.ndarray, " clients"], seed: int, permutations: int
) -> float:
    """The share of pairings of first with second halves under which groups fit as well as they do.

    Halves are exchanged among clients whose numbers of examples are within a factor of two.
    """
    if first.losses.shape[1] == second.losses.shape[1] == 1:
        return 1.0
    m, rng = len(sizes), np.random.default_rng(seed)
    like = np.floor(np.log2(sizes)).astype(int)

    def fit(other: Int[np.ndarray, "pairings clients"]) -> Float[np.ndarray, " pairings"]:
        """The sum of losses, if the second half of client other[i] goes with the first half of client i."""
        of_second = first.losses[other, first.group]
        of_first = second.losses[np.arange(m), second.group[other]]
        return np.asarray((of_second + of_first).sum(1))

    truth = fit(np.arange(m)[None])[0]
    as_good, left = 0, permutations
    while left:
        some = min(left, max(1, BLOCK // m))
        other = np.tile(np.arange(m), (some, 1))
        for size in np.unique(like):
            inside = np.flatnonzero(like == size)
            other[:, inside] = rng.permuted(np.tile(inside, (some, 1)), axis=1)
        as_good += int((fit(other) <= truth + 1e-9 * abs(truth)).sum())
        left -= some
    return (1 + as_good) / (1 + permutations)
