"""Models that compute in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from coterie.models.layers import DenseFirst, Model


def rounded(tree: PyTree, to: Any = jnp.bfloat16) -> PyTree:
    """Numbers as floating numbers of another width; whole numbers stay as they are."""
    return jax.tree.map(lambda a: a.astype(to) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


@dataclass(frozen=True)
class Half:
    """A model whose features, weights and activations are rounded to bfloat16 wherever it computes.

    Its parameters stay float32, and so do its outputs, and whatever is made of its gradients.
    """

    model: Any

    def init(self, key: Any, x: Any) -> Any:
        return self.model.init(key, x)

    def apply(self, params: Any, x: Any) -> Any:
        return rounded(self.model.apply(rounded(params), rounded(x)), jnp.float32)


class HalfDense(Half, DenseFirst):
    """The same of a model whose first layer is dense."""

    def first(self, params: Any) -> eqx.nn.Linear:
        layer: eqx.nn.Linear = self.model.first(params)
        return layer

    def with_first(self, params: Any, layer: Any) -> Any:
        return self.model.with_first(params, layer)

    def after_first(self, params: Any, z: Float[Array, "examples width"]) -> Array:
        outputs: Array = rounded(self.model.after_first(rounded(params), rounded(z)), jnp.float32)
        return outputs


def computed_in(model: Any) -> Any:
    """The kind of numbers that a model computes with."""
    return jnp.bfloat16 if isinstance(model, Half) else jnp.float32


def in_half(model: Model) -> Model:
    """The model, computing in bfloat16."""
    return HalfDense(model) if isinstance(model, DenseFirst) else Half(model)
