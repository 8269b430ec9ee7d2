"""Weight sharing: arrays of a model that all clusters have in common (IFCA paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from coterie.aggregate import Aggregator, Sums
from coterie.errors import SettingError
from coterie.learn.task import Reply
from coterie.models import stacked

ALL_BUT_LAST = "all but last"
Share = str | tuple[str, ...] | Callable[[str], bool]


@dataclass(frozen=True)
class Sharing:
    """Which arrays of a model all clusters have in common.

    Parameters
    ----------
    share
        `"all but last"` layer, names of layers such as `("layers.0",)`, or a function of an array's name;
        None for no array.
    frozen
        Whether what is shared stays as it starts: it is neither trained nor sent back.
    """

    share: Share | None = None
    frozen: bool = False

    def check_model(self, model: PyTree) -> None:
        """Refuse names that this model's arrays do not have."""
        shared_names(self.share, model)

    def parted(self, models: PyTree) -> tuple[PyTree, dict[str, Array] | None]:
        """What is sent of stacked models: k copies of what is a cluster's own, and one of what is shared."""
        if self.share is None:
            return models, None
        names = shared_names(self.share, models)
        return self.own_of(models), {name: leaf[0] for name, leaf in stacked.part(models, names).items()}

    def own_of(self, models: PyTree) -> dict[str, Array]:
        """The arrays that are a cluster's own, by name."""
        return stacked.part(models, stacked.named(models).keys() - shared_names(self.share, models))

    def of_first(self, models: PyTree) -> PyTree:
        """Models that all have the shared arrays of the first."""
        if self.share is None:
            return models
        shared = stacked.part(models, shared_names(self.share, models))
        first = {name: jnp.broadcast_to(a[:1], a.shape) for name, a in shared.items()}
        return stacked.with_part(models, first)

    def with_shared(self, models: PyTree, others: PyTree) -> PyTree:
        """The models with the shared arrays of others."""
        return stacked.with_part(models, stacked.part(others, shared_names(self.share, models)))

    def pooled(
        self, aggregate: Aggregator, sums: Sums, summed: bool, replies: Reply, answered: Bool[Array, " asked"]
    ) -> Sums:
        """What replies come to if all clients are one cluster, for each of k models alike.

        Sums by cluster add up to it. What is no sum, such as a median, is taken anew of all replies.
        """
        k = len(sums.weight)
        if summed:
            everybody: Sums = jax.tree.map(lambda a: jnp.broadcast_to(a.sum(0), a.shape), sums)
            return everybody
        one = Reply(value=replies.value, cluster=jnp.zeros_like(replies.cluster), weight=replies.weight)
        together = aggregate.sums(one, answered, 1)
        repeated: Sums = jax.tree.map(lambda a: jnp.broadcast_to(a, (k, *a.shape[1:])), together)
        return repeated


def shared_names(share: Share | None, model: PyTree) -> frozenset[str]:
    """The names of the arrays that are shared, such as `layers.0.weight`."""
    if share is None:
        return frozenset()
    names = list(stacked.named(model))
    chosen = {name for name in names if _predicate(share, names)(name)}
    if not chosen or len(chosen) == len(names):
        raise SettingError(
            f"share must leave some arrays to be shared and some to be clustered, but {share!r} takes "
            f"{'none' if not chosen else 'all'} of {', '.join(names)}."
        )
    return frozenset(chosen)


def check_share(share: Any) -> None:
    """Refuse what does not say which arrays are shared."""
    names = isinstance(share, tuple) and share and all(isinstance(name, str) for name in share)
    if not (share is None or share == ALL_BUT_LAST or names or callable(share)):
        raise SettingError(
            f"share must be {ALL_BUT_LAST!r}, names of layers such as ['layers.0'], or a function of an "
            f"array's name, not {share!r}."
        )


def _predicate(share: Share, names: list[str]) -> Callable[[str], bool]:
    if callable(share):
        return share
    if share == ALL_BUT_LAST:
        last = _layer(names[-1])
        return lambda name: _layer(name) != last
    return lambda name: stacked.among(name, share)


def _layer(name: str) -> str:
    """`layers.1` of `layers.1.weight`."""
    return name.rpartition(".")[0] or name
