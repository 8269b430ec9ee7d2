"""The weighted mean of the replies of each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from coterie.aggregate.protocol import Aggregator
from coterie.aggregate.sums import Sums
from coterie.learn.task import Reply
from coterie.models import stacked


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean of the replies of each cluster.

    It is summed as the replies come, so that memory is one batch of them plus k models.
    """

    def reduction(self, k: int) -> Summing:
        """How replies are summed on the way."""
        return Summing(k)

    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        """The sums by cluster of stacked replies."""
        one = jax.tree.map(lambda a: a[0], replies.value)
        return Summing(k).add(Summing(k).start(one), replies, answered)


@dataclass(frozen=True)
class Summing:
    """Sums replies by cluster as they come."""

    k: int

    def start(self, value: Any) -> Sums:
        """Empty sums, given the shapes of one reply's value."""
        total = jax.tree.map(lambda leaf: jnp.zeros((self.k, *leaf.shape), jnp.float32), value)
        return Sums(total, jnp.zeros(self.k), jnp.zeros(self.k))

    def add(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """Sums with a batch of stacked replies added; those that did not answer count nothing."""
        # a product with the membership matrix: deterministic on every device, unlike a scatter-add
        member = self._membership(replies, answered)
        # a client whose value is no number spoils the sums of its own cluster, and not those of others, where
        # it would enter as nothing times no number
        sound = jnp.ones_like(answered)
        for leaf in jax.tree.leaves(replies.value):
            sound &= jnp.isfinite(leaf.reshape(len(leaf), -1)).all(axis=1)
        spoilt = jnp.where((member * (~sound)[:, None]).sum(0) > 0, jnp.nan, 0)

        def added(total: Array, value: Array) -> Array:
            whole = product("ck,c...->k...", member, _safe(value, answered & sound))
            return total + whole + stacked.expand(spoilt, whole)

        total = jax.tree.map(added, sums.total, replies.value)
        return Sums(total, sums.count + member.sum(0), sums.weight + member.sum(0))

    def _membership(self, replies: Reply, answered: Bool[Array, " clients"]) -> Float[Array, "clients k"]:
        """How much each client counts in each cluster."""
        member: Array = jax.nn.one_hot(replies.cluster, self.k) * weights_of(replies, answered)[:, None]
        return member

    def add_numbers(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """What `add` gives if all values are numbers, in one pass over them."""
        member = self._membership(replies, answered)
        total = jax.tree.map(
            lambda total, value: total + product("ck,c...->k...", member, value), sums.total, replies.value
        )
        return Sums(total, sums.count + member.sum(0), sums.weight + member.sum(0))


@dataclass(frozen=True)
class SoftSumming:
    """Sums replies of clients that belong to every cluster to some degree.

    A reply's value has a leading axis k, and `report.labels` tells to which degree.
    """

    k: int

    def start(self, value: Any) -> Sums:
        """Empty sums, given the shapes of one reply's value."""
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), value)
        return Sums(total, jnp.zeros(self.k), jnp.zeros(self.k))

    def add(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """Sums with a batch of stacked replies added; those that did not answer count nothing."""
        weights = weights_of(replies, answered)
        # a label is a share of one, whatever a client says
        labels = jnp.clip(replies.report.labels, 0, 1)
        total = jax.tree.map(
            lambda t, v: t + product("c,c...->...", weights, _safe(v, answered)), sums.total, replies.value
        )
        return Sums(
            total,
            sums.count + weights.sum(),
            sums.weight + product("c,ck->k", weights, _safe(labels, answered)),
        )


def weights_of(replies: Reply, answered: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """How much each of stacked replies counts: those that did not answer, nothing."""
    return jnp.where(answered, replies.weight, 0)


def product(how: str, weights: Array, values: Array) -> Array:
    """A weighted sum, exact to float32 whatever precision the clients' own products have."""
    return jnp.einsum(how, weights, values, precision=jax.lax.Precision.HIGHEST)


def _safe(values: Array, answered: Bool[Array, " clients"]) -> Array:
    """Without what clients that failed may hold: NaN, which no weight of zero would silence."""
    return jnp.where(stacked.expand(answered, values), values, 0)
