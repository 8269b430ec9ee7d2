"""One client's examples, as a task sees them."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# which part of a shard, and of how many; None for all of it
Part = Int[Array, "2"] | Int[np.ndarray, "2"] | None


class Shard(eqx.Module):
    """A client's examples: `size` real ones, then padding that every use must mask."""

    x: Array  # (capacity, ...)
    y: Array  # (capacity, ...)
    size: Int[Array, ""]
    gram: Float[Array, "capacity capacity"] | None = None  # products between examples, where they are of use

    @property
    def mask(self) -> Bool[Array, " capacity"]:
        return jnp.arange(self.x.shape[0]) < self.size

    def part(self, number: Int[Array, ""], of: Int[Array, ""]) -> Shard:
        """Part `number` when the examples are dealt out in turn to `of` parts, all of one size."""
        capacity = self.x.shape[0]
        rows = (number + of * jnp.arange(capacity)) % capacity
        gram = None if self.gram is None else self.gram[rows][:, rows]
        return Shard(self.x[rows], self.y[rows], self.size // of, gram)

    def without(self, number: Int[Array, ""], of: Int[Array, ""]) -> Shard:
        """All real examples but those at every `of`-th place from place `number`; they keep their order."""
        place = jnp.arange(self.x.shape[0])
        kept = self.mask & (place % of != number)
        rows = jnp.argsort(~kept, stable=True)
        gram = None if self.gram is None else self.gram[rows][:, rows]
        return Shard(self.x[rows], self.y[rows], kept.sum(), gram)

    def only(self, part: Part) -> Shard:
        """A part, given as its number and how many there are; all of the examples when None."""
        return self if part is None else self.part(*jnp.asarray(part))

    def mean(self, values: Float[Array, " capacity"]) -> Float[Array, ""]:
        """The mean of one number per example over the real examples."""
        return masked_mean(values, self.mask)


def masked_mean(values: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean over the entries where the mask holds, 0 where there are none."""
    return jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(jnp.sum(mask), 1)
