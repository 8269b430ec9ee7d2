"""A network of LSTM layers over a sequence of tokens, which says what comes next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coterie.data.shards import Spec
from coterie.errors import LearnerError, whole_number
from coterie.models.layers import Layers, Sized, dense, width


@dataclass(frozen=True)
class LSTM(Sized):
    """An embedding, LSTM layers, and a dense layer on what the last of them makes of the last token.

    The defaults are the network for Shakespeare of the SR-FCA paper's code: 80 characters in, the next one
    out. Every sequence starts from a state of zeros. A layer has one bias, where PyTorch has two whose sum
    counts.

    Parameters
    ----------
    embedding
        Width of the embedding.
    hidden
        Width of a layer.
    depth
        How many layers.
    vocabulary
        How many tokens there are: features are whole numbers from 0 up to below it. As many as there are
        classes when not given. The outputs for a sequence with any other number are NaN.
    """

    embedding: int = 8
    hidden: int = 256
    depth: int = 2
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding", "hidden", "depth"):
            whole_number(name, getattr(self, name), 1)
        if self.vocabulary is not None:
            whole_number("vocabulary", self.vocabulary, 1)

    def for_data(self, spec: Spec) -> Self:
        sized = super().for_data(spec)
        return sized if self.vocabulary is not None else replace(sized, vocabulary=spec.classes)

    def init(self, key: Any, x: Array) -> Layers:
        _check(x)
        if self.vocabulary is None:
            raise LearnerError("LSTM needs a vocabulary: how many tokens there are.")
        first, last, *others = jax.random.split(key, self.depth + 2)
        inputs = [self.embedding, *[self.hidden] * (self.depth - 1)]
        cells = [eqx.nn.LSTMCell(a, self.hidden, key=k) for a, k in zip(inputs, others, strict=True)]
        head = eqx.nn.Linear(self.hidden, width(self.output_shape), key=last)
        return Layers((eqx.nn.Embedding(self.vocabulary, self.embedding, key=first), *cells, head))

    def apply(self, params: Layers, x: Array) -> Array:
        _check(x)
        embedding, *cells, head = params.layers
        h = embedding.weight.at[x.T.astype(jnp.uint32)].get(mode="fill", fill_value=jnp.nan)
        for cell in cells:
            h = _recurrence(h @ cell.weight_ih.T + cell.bias, cell.weight_hh)
        return dense(head, h[-1]).reshape(len(x), *self.output_shape)


def _check(x: Array) -> None:
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise LearnerError(
            "LSTM needs sequences of whole numbers, of shape (length,), not features of shape "
            f"{x.shape[1:]} and type {x.dtype}."
        )


def _states(
    z: Float[Array, "time examples gates"], weight: Float[Array, "gates hidden"]
) -> Float[Array, "time examples hidden"]:
    """What a layer makes of what its inputs give to the gates, and of its own outputs before."""

    def step(state: tuple[Array, Array], z: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        into, forget, cell, out = jnp.split(z + h @ weight.T, 4, axis=-1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(cell)
        h = jax.nn.sigmoid(out) * jnp.tanh(c)
        return (h, c), h

    blank = jnp.zeros((z.shape[1], weight.shape[1]), z.dtype)
    return jax.lax.scan(step, (blank, blank), z)[1]


def _forward(z: Array, weight: Array) -> tuple[Array, Any]:
    h, back = jax.vjp(lambda z: _states(z, weight), z)
    return h, (h, back)


def _backward(kept: Any, dh: Array) -> tuple[Array, Array]:
    h, back = kept
    (dz,) = back(dh)
    # of all time steps in one product, which the derivative of the loop would add up step by step
    return dz, jnp.einsum("tng,tnh->gh", dz[1:], h[:-1])


_recurrence = jax.custom_vjp(_states)
_recurrence.defvjp(_forward, _backward)
