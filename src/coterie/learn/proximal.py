"""The proximal update of FedProx, solved instead of approached by steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.errors import SettingError
from coterie.learn.local import LocalUpdate, Objective, register
from coterie.learn.shard import Shard

EXACT = 1e-7  # of a residual against the right-hand side: as exact as 32 bits are


@register
@dataclass(frozen=True)
class Proximal(LocalUpdate):
    """The minimiser of F_i(w) + |w - w0|^2 / (2 lr): FedProx as the mixed-regression paper states it.

    For a model that is linear in its parameters with a squared loss it is the solution of a system of linear
    equations, and exact up to rounding. For others it is sought with L-BFGS.

    Parameters
    ----------
    lr
        eta of the paper; FedProx's own mu is 1 / lr.
    steps
        At most so many steps of L-BFGS.
    tolerance
        A gradient of a norm below this, relative to the one at the start, is small enough to stop.
    """

    lr: float = 0.1
    steps: int = field(default=100, kw_only=True)
    tolerance: float = field(default=1e-5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.lr, int | float) and not 0 < self.lr < float("inf"):
            raise SettingError(f"lr must be a positive number, not {self.lr}.")
        if self.steps < 1 or int(self.steps) != self.steps:
            raise SettingError(f"steps must be a whole number from 1 up, not {self.steps}.")
        if not 0 < self.tolerance < 1:
            raise SettingError(f"tolerance must be above 0 and below 1, not {self.tolerance}.")

    def run(
        self, objective: Objective, start: PyTree, shard: Shard, key: Key[Array, ""], round_: Int[Array, ""]
    ) -> PyTree:
        flat, unravel = ravel_pytree(start)
        if objective.outputs is not None:
            return unravel(self._solved(objective, flat, unravel, shard))
        return unravel(self._sought(objective, flat, unravel, shard))

    def _solved(
        self, objective: Objective, start: Float[Array, " d"], unravel: Any, shard: Shard
    ) -> Float[Array, " d"]:
        """w - c (I + c J^T J)^-1 J^T (f(w) - y) with c = lr * weight * curvature / n: Lemma 1, FedProx.

        w is the start. Where there is a pull as well, both quadratic terms are one around a point between the
        start and the anchor: then w is that point, and 1 / lr the sum of both strengths.

        By conjugate gradients, which end after as many steps as there are examples or parameters, whichever
        are fewer, and mostly long before. A factorisation by LAPACK can hang where XLA runs several devices
        on one CPU: they wait for each other's threads.
        """
        assert objective.outputs is not None
        outputs = objective.outputs

        def away(model: Float[Array, " d"]) -> Float[Array, " rows"]:
            """The outputs less the targets; padding is never away."""
            residuals = (outputs(unravel(model), shard.x) - shard.y).reshape(len(shard.y), -1)
            return jnp.where(shard.mask[:, None], residuals, 0).ravel()

        lr: Any = self.lr
        if objective.pull is not None:
            anchor, share = ravel_pytree(objective.pull.anchor)[0], lr * objective.pull.strength
            start, lr = start + share / (1 + share) * (anchor - start), lr / (1 + share)
        c = lr * objective.weight * objective.curvature / jnp.maximum(shard.size, 1)
        residual, along = jax.linearize(away, start)
        back = jax.linear_transpose(along, start)

        def system(v: Float[Array, " d"]) -> Float[Array, " d"]:
            return jnp.asarray(v + c * back(along(v))[0])

        (slope,) = back(residual)
        most = min(residual.size, start.size) + 5  # rounding may take some more
        step, _ = jax.scipy.sparse.linalg.cg(system, slope, tol=EXACT, maxiter=most)
        return jnp.asarray(start - c * step)

    def _sought(
        self, objective: Objective, start: Float[Array, " d"], unravel: Any, shard: Shard
    ) -> Float[Array, " d"]:
        def value(model: Float[Array, " d"]) -> Float[Array, ""]:
            loss = objective.mean(unravel(model), shard.x, shard.y, shard.mask)
            return loss + jnp.sum(jnp.square(model - start)) / (2 * self.lr)

        solver = optax.lbfgs()
        both = optax.value_and_grad_from_state(value)
        small = self.tolerance * jnp.linalg.norm(jax.grad(value)(start))

        def step(carry: tuple[Array, Any, Array]) -> tuple[Array, Any, Array]:
            model, state, count = carry
            loss, gradient = both(model, state=state)
            updates, state = solver.update(gradient, state, model, value=loss, grad=gradient, value_fn=value)
            return jnp.asarray(optax.apply_updates(model, updates)), state, count + 1

        def unfinished(carry: tuple[Array, Any, Array]) -> Array:
            _, state, count = carry
            gradient = optax.tree.get(state, "grad")
            return jnp.asarray((count == 0) | ((count < self.steps) & (jnp.linalg.norm(gradient) > small)))

        found, _, _ = jax.lax.while_loop(unfinished, step, (start, solver.init(start), jnp.asarray(0)))
        return jnp.asarray(found)
