"""Means that a few wrong values cannot move far: the trimmed mean, and the median."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from coterie.aggregate.mean import product, weights_of
from coterie.aggregate.protocol import Aggregator
from coterie.aggregate.sums import Sums
from coterie.errors import SettingError
from coterie.learn.task import Reply
from coterie.models import stacked


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise trimmed mean of the replies of each cluster: Definition 3.2 of the SR-FCA paper.

    Of the J values that a coordinate has, the floor(beta * J) smallest and as many of the largest are left
    out, and the weighted mean of the others is taken. At least one value is always left: for J < 1 / beta
    nothing is left out, and it is the plain mean. (The paper divides by (1 - 2 beta) J, which is how many are
    left where beta * J is whole.) A value that is not a number counts among the largest.

    It needs all replies at once, and memory for all of them.

    Parameters
    ----------
    beta
        The fraction left out at each end: at least 0 and below 1/2.
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < 0.5:
            raise SettingError(f"the fraction to trim must be at least 0 and below 0.5, not {self.beta}.")

    def reduction(self, k: int) -> None:
        """None: all replies are needed at once."""

    def out_of(self, count: int) -> int:
        """How many of so many values are left out at each end."""
        # as it is written, not as 32 or 64 bits have it: 0.29 * 100 is 29
        return int(Fraction(str(self.beta)) * count)

    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        """The sums by cluster of what is left of stacked replies."""
        return _trimmed(replies, answered, k, [self.out_of(j) for j in range(len(answered) + 1)])


@dataclass(frozen=True)
class Median(Aggregator):
    """The coordinate-wise median of the replies of each cluster; of the middle two, where there are two.

    It needs all replies at once, and memory for all of them.
    """

    def reduction(self, k: int) -> None:
        """None: all replies are needed at once."""

    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        """The sums by cluster of the middle values of stacked replies."""
        return _trimmed(replies, answered, k, [max(0, (j - 1) // 2) for j in range(len(answered) + 1)])


def _trimmed(replies: Reply, answered: Bool[Array, " clients"], k: int, out: list[int]) -> Sums:
    """Sums by cluster without the `out[J]` smallest and largest of the J values of each coordinate."""
    cluster = jnp.where(answered, replies.cluster, k)
    weights = weights_of(replies, answered)
    sizes = jnp.zeros(k + 1, jnp.int32).at[cluster].add(1)
    left_out = jnp.asarray(out, jnp.int32)[sizes]
    first, last = left_out[cluster], jnp.where(cluster < k, (sizes - left_out)[cluster], 0)
    member = jax.nn.one_hot(cluster, k)
    whole = product("ck,c->k", member, weights)
    # of equal values the lighter counts as the smaller: which is left out is no matter of who comes first
    lighter = jnp.argsort(jnp.argsort(weights))

    def total(value: Array) -> Array:
        value = value.astype(jnp.float32)
        size = jnp.where(jnp.isnan(value), jnp.inf, value)

        # how many of its cluster are smaller, found by comparing with one client after another: a sort of so
        # short columns takes XLA ten times as long on a CPU
        def compared(j: Array, rank: Array) -> Array:
            other = size[j]
            smaller = (other < size) | ((other == size) & stacked.expand(lighter[j] < lighter, size))
            return rank + (smaller & stacked.expand(cluster[j] == cluster, size))

        rank = jax.lax.fori_loop(0, len(cluster), compared, jnp.zeros(value.shape, jnp.int32))
        kept = (rank >= stacked.expand(first, rank)) & (rank < stacked.expand(last, rank))
        own = jnp.where(kept, stacked.expand(weights, value), 0)
        weight = product("ck,c...->k...", member, own)
        # a value that is no number spoils its own cluster only: nothing times no number would spoil all
        sound = jnp.isfinite(value)
        summed = product("ck,c...->k...", member, jnp.where(kept & sound, value * own, 0))
        spoilt = product("ck,c...->k...", member, (kept & ~sound).astype(jnp.float32)) > 0
        mean = jnp.where(spoilt, jnp.nan, summed / jnp.where(weight > 0, weight, 1))
        # scaled so that divided by the cluster's weight it is the mean of the values that are left
        return jnp.asarray(mean * stacked.expand(whole, mean))

    return Sums(jax.tree.map(total, replies.value), whole, whole)
