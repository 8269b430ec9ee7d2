"""Networks of a few convolutions, each followed by pooling, and dense layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coterie.errors import SettingError, whole_number
from coterie.models.convolution import Images, convolve, images, max_pool
from coterie.models.layers import Layers, Sized, dense, dense_stack, width


@dataclass(frozen=True)
class CNN(Sized):
    """Convolutions with ReLU and max pooling, then dense layers with ReLU between them.

    Convolutions keep the size of an image, and pooling halves it (rounding up). Images are of shape
    (height, width) or (height, width, channels). The defaults are the network for FEMNIST of the IFCA paper's
    and the SR-FCA paper's code; `CNN.cifar10` is that for CIFAR-10.

    Parameters
    ----------
    channels
        How many channels each convolution makes.
    kernel
        Height and width of the convolutions' kernels.
    pool
        Height and width of the windows of which pooling takes the largest value: 2, or 3 for windows that
        overlap.
    hidden
        Widths of the dense layers before the last.
    response_norm
        Local response normalisation over 9 channels, once between the first pooling and the second
        convolution and before the last pooling, as in TensorFlow's tutorial.
    tutorial_init
        Initial weights as in TensorFlow's tutorial: normal, cut at two standard deviations, which are 0.05
        for convolutions, 0.04 for hidden layers and 1/width for the last; biases 0.1, and 0 in the first and
        last layer. Otherwise uniform in +-1/sqrt(fan in).
    """

    channels: tuple[int, ...] = (32, 64)
    kernel: int = 5
    pool: int = 2
    hidden: tuple[int, ...] = (2048,)
    response_norm: bool = False
    tutorial_init: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels or any(width < 1 for width in (*self.channels, *self.hidden)):
            raise SettingError(
                f"channels and hidden must hold widths from 1 up, and channels at least one, not "
                f"{self.channels} and {self.hidden}."
            )
        whole_number("kernel", self.kernel, 1)
        whole_number("pool", self.pool, 2)

    @classmethod
    def cifar10(cls, preset: str = "paper") -> Self:
        """The network for CIFAR-10 of the IFCA paper.

        `"paper"` is two convolutions and two dense layers, as the text has it; it leaves their widths open,
        which are those of the released code. `"authors"` is that code: TensorFlow's tutorial network, with
        three dense layers, response normalisation and that tutorial's initial weights, for images of 24 x 24.
        """
        if preset not in ("paper", "authors"):
            raise SettingError(f"preset must be 'paper' or 'authors', not {preset!r}.")
        if preset == "paper":
            return cls(channels=(64, 64), pool=3, hidden=(384,))
        return cls((64, 64), pool=3, hidden=(384, 192), response_norm=True, tutorial_init=True)

    def init(self, key: Any, x: Array) -> Layers:
        *_, height, columns, inputs = images(x, "CNN").shape
        keys = jax.random.split(key, len(self.channels) + 2)
        convolutions = []
        for (a, b), k in zip(pairwise((inputs, *self.channels)), keys[2:], strict=True):
            convolutions.append(eqx.nn.Conv2d(a, b, self.kernel, padding="SAME", key=k))
            height, columns = -(-height // 2), -(-columns // 2)
        seen = height * columns * self.channels[-1]
        widths = [seen, *self.hidden, width(self.output_shape)]
        layers = (*convolutions, *dense_stack(widths, True, keys[0]).layers)
        return Layers(_as_in_the_tutorial(layers, keys[1]) if self.tutorial_init else layers)

    def apply(self, params: Layers, x: Array) -> Array:
        z = self.body(params, x)
        return dense(params.layers[-1], z).reshape(len(z), *self.output_shape)

    def body(self, params: Layers, x: Array) -> Float[Array, "examples width"]:
        """What the last layer sees."""
        x, last = images(x, "CNN"), len(self.channels) - 1
        for i, layer in enumerate(params.layers[: last + 1]):
            x, bias = convolve(layer, x), layer.bias.reshape(-1)
            if self.response_norm and i == last:
                x = max_pool(_response_norm(jax.nn.relu(x + bias)), self.pool)
                continue
            # the same as in the usual order, on fewer numbers
            x = jax.nn.relu(max_pool(x, self.pool) + bias)
            if self.response_norm and i == 0:
                x = _response_norm(x)
        z = x.reshape(len(x), -1)
        for layer in params.layers[last + 1 : -1]:
            z = jax.nn.relu(dense(layer, z))
        return z


def _response_norm(x: Images) -> Images:
    """x over (1 + alpha * sum of its squares over 9 channels) ** 0.75, with TensorFlow's tutorial's alpha."""
    squares: Array = jax.lax.reduce_window(
        jnp.square(x), 0.0, jax.lax.add, (1, 1, 1, 9), (1, 1, 1, 1), "SAME"
    )
    return x / (1 + 0.001 / 9 * squares) ** 0.75


def _as_in_the_tutorial(layers: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
    """The same layers with other initial weights."""
    made = []
    for i, (layer, k) in enumerate(zip(layers, jax.random.split(key, len(layers)), strict=True)):
        deviation = 0.05 if isinstance(layer, eqx.nn.Conv2d) else 0.04
        if i == len(layers) - 1:
            deviation = 1 / layer.weight.shape[1]
        weight = deviation * jax.random.truncated_normal(k, -2, 2, layer.weight.shape)
        bias = jnp.full_like(layer.bias, 0.0 if i in (0, len(layers) - 1) else 0.1)
        made.append(eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias)))
    return tuple(made)
