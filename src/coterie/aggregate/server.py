"""Servers that take the mean update of a round for a gradient, and step along it with an optimiser.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021; Hsu, Qi and Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", 2019 (FedAvgM).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from coterie.aggregate.mean import Mean
from coterie.aggregate.protocol import Aggregator
from coterie.aggregate.sums import Sums
from coterie.errors import SettingError
from coterie.federation.protocol import Reduction
from coterie.learn.task import Reply
from coterie.models import stacked


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(Aggregator):
    """An optimiser for every cluster's model, whose gradient is the way back from what clients reached.

    Parameters
    ----------
    lr
        Step size of the server. With FedAvgM's momentum of 0 and a step size of 1 it is plain averaging.
    aggregate
        How replies become one: `Mean()`, `TrimmedMean(beta)` or `Median()`.
    """

    lr: float = 1.0
    aggregate: Aggregator = field(default_factory=Mean, metadata={"part": "aggregate"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lr < float("inf"):
            raise SettingError(f"the server's lr must be a positive number, not {self.lr}.")
        if isinstance(self.aggregate, ServerOptimiser):
            raise SettingError("one server optimiser cannot be inside another: give aggregate=Mean().")

    @abstractmethod
    def optimiser(self) -> optax.GradientTransformation:
        """The Optax optimiser of one model."""

    def reduction(self, k: int) -> Reduction | None:
        return self.aggregate.reduction(k)

    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        return self.aggregate.sums(replies, answered, k)

    def start(self, models: PyTree) -> Any:
        return jax.vmap(self.optimiser().init)(models)

    def step(
        self, kept: Any, models: PyTree, target: PyTree, active: Bool[Array, " k"]
    ) -> tuple[Any, PyTree]:
        back = jax.tree.map(jnp.subtract, models, target)
        updates, after = jax.vmap(self.optimiser().update)(back, kept, models)
        moved = jax.tree.map(jnp.add, models, updates)
        return stacked.where(active, after, kept), stacked.where(active, moved, models)


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimiser):
    """Averaging with momentum on the server."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _below_one("momentum", self.momentum)

    def optimiser(self) -> optax.GradientTransformation:
        return optax.sgd(self.lr, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True)
class FedAdam(ServerOptimiser):
    """Adam on the server, as Algorithm 2 of Reddi et al. has it, with tau as `eps`.

    There is no correction for moments that are short of history; instead v begins at tau^2.
    """

    lr: float = 0.01
    b1: float = 0.9
    b2: float = 0.99
    eps: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _below_one("b1", self.b1)
        _below_one("b2", self.b2)
        if not 0 < self.eps < float("inf"):
            raise SettingError(f"eps must be a positive number, not {self.eps}.")

    def optimiser(self) -> optax.GradientTransformation:
        def init(model: PyTree) -> Moments:
            return Moments(
                jax.tree.map(jnp.zeros_like, model),
                jax.tree.map(lambda w: jnp.full_like(w, self.eps**2), model),
            )

        def update(gradient: PyTree, kept: Any, _: PyTree = None) -> tuple[PyTree, Moments]:
            m = jax.tree.map(lambda m, g: self.b1 * m + (1 - self.b1) * g, kept.m, gradient)
            v = jax.tree.map(lambda v, g: self.b2 * v + (1 - self.b2) * g**2, kept.v, gradient)
            step = jax.tree.map(lambda m, v: -self.lr * m / (jnp.sqrt(v) + self.eps), m, v)
            return step, Moments(m, v)

        return optax.GradientTransformation(init, update)


class Moments(NamedTuple):
    """What Adam keeps: running means of the gradient, and of its square."""

    m: PyTree
    v: PyTree


def _below_one(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise SettingError(f"{name} must be at least 0 and below 1, not {value}.")
