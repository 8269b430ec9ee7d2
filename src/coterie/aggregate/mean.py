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

    total: PyTree  # leading axis k
    weight: Float[Array, " k"]

    def mean(self, old: PyTree, normalise: Normalise = "cluster") -> PyTree:
        """old + sum of w (value - old) / W: the mean of the values, where W is the cluster's weight."""
        own, by = self._weights(normalise)

        def moved(total: Array, before: Array) -> Array:
            stays = stacked.expand(1 - own / by, total) * before
            new = total / stacked.expand(by, total) + (0 if normalise == "cluster" else stays)
            return jnp.where(stacked.expand(own > 0, total), new.astype(before.dtype), before)

        return jax.tree.map(moved, self.total, old)

    def descent(self, old: PyTree, rate: Any, normalise: Normalise = "all") -> PyTree:
        """old - rate * sum of w value / W, where the values are gradients."""
        _, by = self._weights(normalise)
        return jax.tree.map(
            lambda total, before: before - (rate * total / stacked.expand(by, total)).astype(before.dtype),
            self.total,
            old,
        )

    def _weights(self, normalise: Normalise) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        whole = self.weight if normalise == "cluster" else jnp.full_like(self.weight, self.weight.sum())
        return self.weight, jnp.where(whole > 0, whole, 1)


@dataclass(frozen=True)
class Mean:
    """Sums replies by cluster as they come, so that memory is one batch of replies plus k models."""

    k: int

    def start(self, value: Any) -> Sums:
        """Empty sums, given the shapes of one reply's value."""
        total = jax.tree.map(lambda leaf: jnp.zeros((self.k, *leaf.shape), jnp.float32), value)
        return Sums(total, jnp.zeros(self.k))

    def add(self, sums: Sums, replies: Reply, answered: Bool[Array, " clients"]) -> Sums:
        """Sums with a batch of stacked replies added; those that did not answer count nothing."""
        # a product with the membership matrix: deterministic on every device, unlike a scatter-add,
        # and exact to float32 whatever precision the clients' own products have
        member = jax.nn.one_hot(replies.cluster, self.k) * jnp.where(answered, replies.weight, 0)[:, None]

        def added(total: Array, value: Array) -> Array:
            # a client that failed may hold NaN, which no weight of zero would silence
            safe = jnp.where(stacked.expand(answered, value), value, 0)
            return total + jnp.einsum("ck,c...->k...", member, safe, precision=jax.lax.Precision.HIGHEST)

        return Sums(jax.tree.map(added, sums.total, replies.value), sums.weight + member.sum(0))
