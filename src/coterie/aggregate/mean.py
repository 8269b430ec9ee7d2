"""The weighted mean of the replies of each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from coterie.learn.tasks import Reply
from coterie.models import stacked

Normalise = Literal["cluster", "all"]


class Sums(eqx.Module):
    """Sums by cluster, and the weight that went into each.

    They are normalised by the weight of the cluster's own clients, or of all clients together: then a small
    cluster moves by a small step. A cluster that nobody contributed to stays as it is either way.
    """

    total: PyTree  # leading axis k: the sum of w * value
    count: Float[Array, " k"]  # the sum of w of those that sent a value for the cluster
    weight: Float[Array, " k"]  # the sum of w as far as they belong to it: the same, unless labels are soft

    def mean(self, old: PyTree, normalise: Normalise = "cluster") -> PyTree:
        """old + sum of w (value - old) / W: the mean of the values, where W is the cluster's weight."""
        by = self._whole(normalise)
        stay = jnp.where(self.count == by, 0, 1 - self.count / by)

        def moved(total: Array, before: Array) -> Array:
            # what stays is left out where it is nothing: nothing times infinity is no number
            stays = jnp.where(stacked.expand(stay == 0, total), 0, stacked.expand(stay, total) * before)
            new = total / stacked.expand(by, total) + stays
            return jnp.where(stacked.expand(self.weight > 0, total), new.astype(before.dtype), before)

        return jax.tree.map(moved, self.total, old)

    def descent(self, old: PyTree, rate: Any, normalise: Normalise = "all") -> PyTree:
        """old - rate * sum of w value / W, where the values are gradients."""
        by = self._whole(normalise)
        return jax.tree.map(
            lambda total, before: before - (rate * total / stacked.expand(by, total)).astype(before.dtype),
            self.total,
            old,
        )

    def pooled(self) -> Sums:
        """Every cluster's sums replaced by those of all clusters together."""
        pooled: Sums = jax.tree.map(lambda a: jnp.broadcast_to(a.sum(0), a.shape), self)
        return pooled

    def _whole(self, normalise: Normalise) -> Float[Array, " k"]:
        whole = self.weight if normalise == "cluster" else jnp.full_like(self.weight, self.weight.sum())
        return jnp.where(whole > 0, whole, 1)


@dataclass(frozen=True)
class Mean:
    """Sums replies by cluster as they come, so that memory is one batch of replies plus k models."""

    k: int

    def start(self, value: Any) -> Sums:
        """Empty sums, given the shapes of one reply's value."""
        total = jax.tree.map(lambda leaf: jnp.zeros((self.k, *leaf.shape), jnp.float32), value)
        return Sums(total, jnp.zeros(self.k), jnp.zeros(self.k))

    def add(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """Sums with a batch of stacked replies added; those that did not answer count nothing."""
        # a product with the membership matrix: deterministic on every device, unlike a scatter-add
        member = jax.nn.one_hot(replies.cluster, self.k) * _weights(replies, answered)[:, None]
        total = jax.tree.map(
            lambda t, v: t + _product("ck,c...->k...", member, v, answered), sums.total, replies.value
        )
        return Sums(total, sums.count + member.sum(0), sums.weight + member.sum(0))


@dataclass(frozen=True)
class SoftMean:
    """Sums replies of clients that belong to every cluster to some degree.

    A reply's value has a leading axis k, and `report["labels"]` tells to which degree.
    """

    k: int

    def start(self, value: Any) -> Sums:
        """Empty sums, given the shapes of one reply's value."""
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), value)
        return Sums(total, jnp.zeros(self.k), jnp.zeros(self.k))

    def add(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """Sums with a batch of stacked replies added; those that did not answer count nothing."""
        weights = _weights(replies, answered)
        # a label is a share of one, whatever a client says
        labels = jnp.clip(replies.report["labels"], 0, 1)
        total = jax.tree.map(
            lambda t, v: t + _product("c,c...->...", weights, v, answered), sums.total, replies.value
        )
        return Sums(
            total,
            sums.count + weights.sum(),
            sums.weight + _product("c,ck->k", weights, labels, answered),
        )


def _weights(replies: Reply, answered: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    return jnp.where(answered, replies.weight, 0)


def _product(how: str, weights: Array, values: Array, answered: Bool[Array, " clients"]) -> Array:
    """A weighted sum, exact to float32 whatever precision the clients' own products have."""
    # a client that failed may hold NaN, which no weight of zero would silence
    safe = jnp.where(stacked.expand(answered, values), values, 0)
    return jnp.einsum(how, weights, safe, precision=jax.lax.Precision.HIGHEST)
