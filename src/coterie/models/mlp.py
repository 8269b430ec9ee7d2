"""Fully connected networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array

from coterie.errors import SettingError
from coterie.models.layers import DenseLayers, Layers, dense_stack, width


@dataclass(frozen=True)
class MLP(DenseLayers):
    """Dense layers with ReLU between them, on the flattened features.

    `hidden` holds the widths of the hidden layers: `MLP(hidden=(200,))` on MNIST is 784-200-10.
    """

    hidden: tuple[int, ...] = (64,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(width < 1 for width in self.hidden):
            raise SettingError(f"hidden must hold widths from 1 up, not {self.hidden}.")

    def init(self, key: Any, x: Array) -> Layers:
        return dense_stack([width(x.shape[1:]), *self.hidden, width(self.output_shape)], True, key)
