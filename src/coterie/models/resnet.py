"""ResNet-9, the network of the SR-FCA paper for CIFAR-10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from coterie.errors import LearnerError, SettingError, whole_number
from coterie.models.convolution import Images, convolve, images, max_pool
from coterie.models.layers import Layers, Sized, dense, width

SMALLEST = 9  # of an image, in pixels: what the last convolution, without padding, has to see


@dataclass(frozen=True)
class ResNet9(Sized):
    """Eight convolutions, two of them twice around a residual, and a dense layer on the largest values.

    With a width of 64 its convolutions make 64, 128, (128, 128), 256, (256, 256) and 128 channels; those in
    brackets are added to what they start from. The second has a stride of 2, a pooling follows the fifth, and
    what comes out is multiplied by 0.2.

    Each convolution is followed by a normalisation over groups of channels of one image, in place of the
    paper's batch normalisation. The running statistics of that are no parameters that training makes small
    steps of: how clients' would have to be put together is not defined, their batches have padding, and a
    client's outputs would depend on what else is in the batch.

    Parameters
    ----------
    width
        Channels of the first convolution; all others grow with it.
    groups
        How many groups of channels are normalised together; must divide the width.
    """

    width: int = 64
    groups: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("width", self.width, 1)
        whole_number("groups", self.groups, 1)
        if self.width % self.groups:
            raise SettingError(f"groups must divide the width {self.width}, not be {self.groups}.")

    def init(self, key: Any, x: Array) -> Layers:
        _, height, columns, inputs = images(x, "ResNet9").shape
        if min(height, columns) < SMALLEST:
            raise LearnerError(
                f"ResNet9 needs images of at least {SMALLEST} x {SMALLEST}, not {height} x {columns}."
            )
        a, b, c = self.width, 2 * self.width, 4 * self.width
        channels = [inputs, a, b, b, b, c, c, c, b]
        keys = jax.random.split(key, len(channels))
        layers: list[Any] = []
        for i in range(len(channels) - 1):
            size, stride = (5, 2) if i == 1 else (3, 1)
            padding = 0 if i == 7 else size // 2
            layers += [
                eqx.nn.Conv2d(
                    channels[i], channels[i + 1], size, stride, padding, use_bias=False, key=keys[i]
                ),
                eqx.nn.GroupNorm(self.groups, channels[i + 1]),
            ]
        head = eqx.nn.Linear(b, width(self.output_shape), use_bias=False, key=keys[-1])
        return Layers((*layers, head))

    def apply(self, params: Layers, x: Array) -> Array:
        *layers, head = params.layers
        steps = list(zip(layers[::2], layers[1::2], strict=True))

        def through(x: Images, *which: int) -> Images:
            for i in which:
                convolution, norm = steps[i]
                x = jax.nn.relu(_normalised(norm, convolve(convolution, x)))
            return x

        x = through(images(x, "ResNet9"), 0, 1)
        x = x + through(x, 2, 3)
        x = max_pool(through(x, 4), 2)
        x = x + through(x, 5, 6)
        z = through(x, 7).max((1, 2))
        return 0.2 * dense(head, z).reshape(len(z), *self.output_shape)


def _normalised(norm: Any, x: Images) -> Images:
    """Mean 0, variance 1 over each group of channels of each image, then each channel's scale and shift."""
    grouped = x.reshape(*x.shape[:3], norm.groups, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(grouped - mean).mean((1, 2, 4), keepdims=True)
    normal = (grouped - mean) * jax.lax.rsqrt(variance + norm.eps)
    scaled: Images = normal.reshape(x.shape) * norm.weight + norm.bias
    return scaled
