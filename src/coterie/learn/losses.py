"""Losses of single examples."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coterie.errors import SettingError

Loss = Callable[[Array, Array], Float[Array, " examples"]]
SMOOTHING = 0.1


def cross_entropy(outputs: Array, y: Array) -> Float[Array, " examples"]:
    """-log softmax(outputs)[y], averaged over the positions of a sequence where y has any."""
    # the largest output is subtracted first: the loss of large ones would be lost in rounding
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), y[..., None].astype(jnp.int32), axis=-1)
    return _per_example(-chosen[..., 0])


def smoothed_cross_entropy(outputs: Array, y: Array) -> Float[Array, " examples"]:
    """Cross-entropy where nine tenths of a label are y's class, and one is any class (label smoothing)."""
    of_any = _per_example(-jax.nn.log_softmax(outputs).mean(-1))
    return (1 - SMOOTHING) * cross_entropy(outputs, y) + SMOOTHING * of_any


def squared(outputs: Array, y: Array) -> Float[Array, " examples"]:
    """(y - f)^2, as in the IFCA paper; summed over the coordinates of y where it has any."""
    return jnp.sum(jnp.square(y - outputs).reshape(len(y), -1), axis=1)


def half_squared(outputs: Array, y: Array) -> Float[Array, " examples"]:
    """(y - f)^2 / 2, as in the mixed-regression papers."""
    return squared(outputs, y) / 2


NAMED: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "smoothed_cross_entropy": smoothed_cross_entropy,
    "squared": squared,
    "half_squared": half_squared,
}

# the losses of class labels
CLASSIFYING: tuple[Loss, ...] = (cross_entropy, smoothed_cross_entropy)

# the losses that are c/2 * |f - y|^2, and their c
CURVATURE: dict[Loss, float] = {squared: 2.0, half_squared: 1.0}


def named(loss: str | Loss) -> Loss:
    """The loss of that name; a function (outputs, y) -> one number per example is returned as it is."""
    if not isinstance(loss, str):
        return loss
    if loss not in NAMED:
        raise SettingError(f"unknown loss {loss!r}: choose one of {', '.join(NAMED)} or give a function.")
    return NAMED[loss]


def correct(outputs: Array, y: Array) -> Float[Array, " examples"]:
    """1 where the largest output is the label's (a fraction where y is a sequence)."""
    return _per_example((jnp.argmax(outputs, axis=-1) == y).astype(jnp.float32))


def _per_example(values: Array) -> Array:
    return jax.vmap(jnp.mean)(values)
