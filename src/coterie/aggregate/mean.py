"""The weighted mean of the replies of each cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from coterie.learn.tasks import Reply
from coterie.models import stacked


class Sums(eqx.Module):
    """Sums by cluster, and the weight that went into each."""

    total: PyTree  # leading axis k
    weight: Float[Array, " k"]

    def mean(self, otherwise: PyTree) -> PyTree:
        """total / weight; a cluster that nobody contributed to takes its entry of `otherwise`."""
        some = self.weight > 0
        by = jnp.where(some, self.weight, 1)
        return jax.tree.map(
            lambda total, old: jnp.where(
                stacked.expand(some, total), (total / stacked.expand(by, total)).astype(old.dtype), old
            ),
            self.total,
            otherwise,
        )


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
