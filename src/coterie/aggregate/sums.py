"""Sums by cluster, and what becomes of models with them."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from coterie.models import stacked

Denominator = Literal["cluster", "participants", "clients"]


class Sums(eqx.Module):
    """Sums by cluster, and the weight that went into each.

    They are divided by the weight of the cluster's own participants, by that of all participants, or by the
    number of all clients there are, taking part or not: then a small cluster moves by a small step. A cluster
    that nobody contributed to stays as it is in any case.
    """

    total: PyTree  # leading axis k: the sum of w * value
    count: Float[Array, " k"]  # the sum of w of those that sent a value for the cluster
    weight: Float[Array, " k"]  # the sum of w as far as they belong to it: the same, unless labels are soft

    def mean(self, old: PyTree, divide_by: Denominator = "cluster", clients: int = 0) -> PyTree:
        """old + sum of w (value - old) / W: the mean of the values, where W is the cluster's weight."""
        by = self._whole(divide_by, clients)
        stay = jnp.where(self.count == by, 0, 1 - self.count / by)

        def moved(total: Array, before: Array) -> Array:
            # what stays is left out where it is nothing: nothing times infinity is no number
            stays = jnp.where(stacked.expand(stay == 0, total), 0, stacked.expand(stay, total) * before)
            new = total / stacked.expand(by, total) + stays
            return jnp.where(stacked.expand(self.weight > 0, total), new.astype(before.dtype), before)

        return jax.tree.map(moved, self.total, old)

    def descent(self, old: PyTree, rate: Any, divide_by: Denominator = "clients", clients: int = 0) -> PyTree:
        """old - rate * sum of w value / W, where the values are gradients."""
        by = self._whole(divide_by, clients)
        return jax.tree.map(
            lambda total, before: before - (rate * total / stacked.expand(by, total)).astype(before.dtype),
            self.total,
            old,
        )

    def _whole(self, divide_by: Denominator, clients: int) -> Float[Array, " k"]:
        """The denominator of each cluster."""
        if divide_by == "clients":
            return jnp.full_like(self.weight, clients)
        whole = self.weight if divide_by == "cluster" else jnp.full_like(self.weight, self.weight.sum())
        return jnp.where(whole > 0, whole, 1)
