"""Linear and logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array

from coterie.models.layers import DenseLayers, Layers, dense_stack, width


@dataclass(frozen=True)
class Linear(DenseLayers):
    """A linear model of the flattened features; with the loss "cross_entropy" that is logistic regression.

    Without a bias (the default, as in the theory of mixed regressions) its parameters are exactly theta.
    """

    bias: bool = False
    linear_in_parameters: ClassVar[bool] = True

    def init(self, key: Any, x: Array) -> Layers:
        return dense_stack([width(x.shape[1:]), width(self.output_shape)], self.bias, key)
