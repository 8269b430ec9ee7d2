"""One client's examples, as a task sees them."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Shard(eqx.Module):
    """A client's examples: `size` real ones, then padding that every use must mask.

    Of a slice of a shard, only the examples `among` are real.
    """

    x: Array  # (capacity, ...)
    y: Array  # (capacity, ...)
    size: Int[Array, ""]
    among: Bool[Array, " capacity"] | None = None

    @property
    def mask(self) -> Bool[Array, " capacity"]:
        return jnp.arange(self.x.shape[0]) < self.size if self.among is None else self.among

    def slice(self, number: Int[Array, ""], of: Int[Array, ""]) -> Shard:
        """Slice `number` when the examples are dealt out in turn to `of` slices, which are disjoint."""
        among = self.mask & (jnp.arange(self.x.shape[0]) % of == number)
        return Shard(self.x, self.y, among.sum(), among)

    def mean(self, values: Float[Array, " capacity"]) -> Float[Array, ""]:
        """The mean of one number per example over the real examples."""
        return masked_mean(values, self.mask)


def masked_mean(values: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean over the entries where the mask holds, 0 where there are none."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)
