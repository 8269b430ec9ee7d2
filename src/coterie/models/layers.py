"""What the models share: layers as parameters, and an output whose size comes from the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PyTree

from coterie.data.shards import Spec
from coterie.settings import Settings


@runtime_checkable
class Model(Protocol):
    """Anything that can make parameters and apply them: our models, Flax modules, your own.

    `init(key, x)` makes parameters (a pytree of arrays) for a batch `x`; `apply(params, x)` gives one output
    per example of a batch.
    """

    def init(self, key: Any, x: Any, /) -> Any: ...

    def apply(self, params: Any, x: Any, /) -> Any: ...


class Layers(eqx.Module):
    """The parameters of a network: Equinox layers in order."""

    layers: tuple[PyTree, ...]


@dataclass(frozen=True)
class Sized(Settings):
    """A model whose outputs may be left open until the data is known.

    `outputs` is the shape of one output: a number, a tuple, or None for "as the data needs": one number per
    class for labels, the shape of a target otherwise.
    """

    outputs: int | tuple[int, ...] | None = field(default=None, kw_only=True)

    def for_data(self, spec: Spec) -> Self:
        """The model with its outputs decided, given the shape of the data."""
        if self.outputs is not None:
            return self
        return replace(self, outputs=spec.y_shape if spec.classes is None else (*spec.y_shape, spec.classes))

    @property
    def output_shape(self) -> tuple[int, ...]:
        return (self.outputs,) if isinstance(self.outputs, int) else self.outputs or ()


class DenseFirst(ABC):
    """A model whose first layer is dense, on flattened features.

    It need not see the examples to give its outputs: what that layer makes of them is enough. So local
    updates can be computed in the span of a client's examples (`coterie.learn.sample_space`).
    """

    @abstractmethod
    def first(self, params: Any) -> eqx.nn.Linear:
        """The first layer."""

    @abstractmethod
    def with_first(self, params: Any, layer: Any) -> Any:
        """The parameters with another first layer."""

    @abstractmethod
    def after_first(self, params: Any, z: Float[Array, "examples width"]) -> Array:
        """The outputs, given what the first layer makes of the examples."""

    def apply(self, params: Any, x: Array) -> Array:
        return self.after_first(params, dense(self.first(params), x.reshape(len(x), -1)))


@dataclass(frozen=True)
class DenseLayers(Sized, DenseFirst):
    """Models of dense layers only, with ReLU between them."""

    def first(self, params: Layers) -> eqx.nn.Linear:
        layer: eqx.nn.Linear = params.layers[0]
        return layer

    def with_first(self, params: Layers, layer: Any) -> Layers:
        return Layers((layer, *params.layers[1:]))

    def after_first(self, params: Layers, z: Float[Array, "examples width"]) -> Array:
        for layer in params.layers[1:]:
            z = dense(layer, jax.nn.relu(z))
        return z.reshape(len(z), *self.output_shape)


def dense_stack(widths: list[int], bias: bool, key: Key[Array, ""]) -> Layers:
    """Dense layers between consecutive widths, initialised uniformly in +-1/sqrt(fan in)."""
    keys = jax.random.split(key, len(widths) - 1)
    pairs = zip(widths[:-1], widths[1:], keys, strict=True)
    return Layers(tuple(eqx.nn.Linear(a, b, use_bias=bias, key=k) for a, b, k in pairs))


def dense(layer: eqx.nn.Linear, x: Array) -> Array:
    """A dense layer applied to a batch."""
    y = x @ layer.weight.T
    return y if layer.bias is None else y + layer.bias


def width(shape: tuple[int, ...]) -> int:
    """Number of values in a shape."""
    return math.prod(shape)
