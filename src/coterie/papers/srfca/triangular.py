"""The step sizes of the released code for CIFAR-10: up, and then down to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key, PyTree

from coterie.learn.local import SGD, Objective, register
from coterie.learn.shard import Shard


@register
@dataclass(frozen=True)
class Triangular(SGD):
    """SGD whose step size rises in a line up to `lr`, and falls in a line to 0, in so many steps in all.

    As many of them are behind a client as rounds are, whether or not it was drawn for those. Momentum starts
    afresh in every round, as clients keep nothing.

    Parameters
    ----------
    whole, rise
        Steps in all, and how many of them lead up.
    """

    whole: int = field(kw_only=True)
    rise: int = field(kw_only=True)
    before: Any = field(default=0, kw_only=True, compare=False)  # steps before those of this round

    def run(
        self, objective: Objective, start: PyTree, shard: Shard, key: Key[Array, ""], round_: Int[Array, ""]
    ) -> PyTree:
        now = replace(self, before=round_ * (self.steps or 1))
        return super(Triangular, now).run(objective, start, shard, key, round_)

    def optimiser(self) -> optax.GradientTransformation:
        def rate(step: Array) -> Array:
            done = self.before + step
            up, down = (done + 1) / (self.rise + 1), (self.whole - done) / max(1, self.whole - self.rise)
            return self.lr * jnp.clip(jnp.minimum(up, down), 0, 1)

        return optax.chain(
            optax.add_decayed_weights(self.weight_decay), optax.sgd(rate, momentum=self.momentum or None)
        )
