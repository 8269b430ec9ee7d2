"""Least squares that never leave the chip of a GPU.

A step of gradient descent on a client's examples needs them twice: for what the model gives, and for the
gradient. Written with JAX every step reads them twice from memory, and there the time goes. A client of a
regression is small: this kernel, one program for each client, reads its examples once and takes all steps.

COTERIE_KERNELS=off does without it. What it gives is the same up to rounding.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from coterie.learn import losses
from coterie.learn.local import SGD
from coterie.learn.shard import Shard
from coterie.models.linear import Linear

if TYPE_CHECKING:
    from coterie.learn.learner import Learner

ROOM = (
    2**13
)  # numbers of one client that a program keeps at hand, with examples and features as powers of two


def possible(learner: Learner, examples: int, features: int) -> bool:
    """Whether local updates of clients with so many examples are computed here."""
    local, model = learner.local, learner.model
    return (
        learner.augment is None
        and isinstance(model, Linear)
        and not model.bias
        and model.output_shape == ()
        and losses.named(learner.loss) in losses.CURVATURE
        and isinstance(local, SGD)
        and local.linear_steps() is not None
        and not (local.momentum or local.weight_decay or local.proximal)
        and _power(examples) * _power(features) <= ROOM
        and _there_is_a_chip()
    )


@cache
def _there_is_a_chip() -> bool:
    device = jax.devices()[0]
    nvidia = device.platform == "gpu" and "cuda" in device.client.platform_version.lower()
    return nvidia and os.environ.get("COTERIE_KERNELS", "on") != "off"


def train(
    learner: Learner, start: PyTree, shard: Shard, round_: Int[Array, ""], label: Any, interpret: bool = False
) -> PyTree:
    """What `learner.train` gives, up to rounding."""
    local: Any = learner.local
    first = cast(Linear, learner.model).first
    layer = first(start)
    rate = label * local.lr * jnp.power(jnp.asarray(local.decay, jnp.float32), round_)
    rate = rate * losses.CURVATURE[losses.named(learner.loss)] / jnp.maximum(shard.size, 1)
    weight = _steps(
        shard.x.reshape(len(shard.x), -1).astype(jnp.float32),
        shard.y.astype(jnp.float32),
        layer.weight.reshape(-1),
        jnp.where(shard.mask, rate, 0),
        local.steps,
        interpret,
    )
    return eqx.tree_at(lambda params: first(params).weight, start, weight.reshape(layer.weight.shape))


def _steps(
    x: Float[Array, "examples features"],
    y: Float[Array, " examples"],
    weight: Float[Array, " features"],
    scale: Float[Array, " examples"],
    steps: int,
    interpret: bool,
) -> Float[Array, " features"]:
    """The weights after so many steps w - sum_i scale_i (x_i w - y_i) x_i."""
    from jax.experimental import pallas as pl  # slow to import, and only GPUs need it
    from jax.experimental.pallas import triton

    most, wide = _power(len(y)), _power(len(weight))
    rows, columns = pl.ds(0, most), pl.ds(0, wide)

    def of_client(x: Any, y: Any, weight: Any, scale: Any, new: Any) -> None:
        there = jnp.arange(most) < x.shape[0]
        real = jnp.arange(wide) < x.shape[1]

        def load(ref: Any, mask: Any) -> Any:
            return triton.load(ref, mask=mask, other=0)

        features = load(x.at[rows, columns], there[:, None] & real[None, :])
        targets, counts = load(y.at[rows], there), load(scale.at[rows], there)

        def step(_: Any, w: Any) -> Any:
            away = (jnp.sum(features * w[None, :], axis=1) - targets) * counts
            return w - jnp.sum(features * away[:, None], axis=0)

        moved = jax.lax.fori_loop(0, steps, step, load(weight.at[columns], real))
        triton.store(new.at[columns], moved, mask=real)

    call = pl.pallas_call(
        of_client,
        out_shape=jax.ShapeDtypeStruct(weight.shape, jnp.float32),
        grid=(1,),
        # of one warp: more of them were slower for clients of 2 to 100 examples, of 64 features each
        compiler_params=triton.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="steps_of_least_squares",
    )
    new: Array = call(x, y, weight, scale)
    return new


def _power(count: int) -> int:
    """The next power of two, from 2 up."""
    return max(2, 1 << (count - 1).bit_length())
