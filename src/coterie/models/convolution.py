"""Convolutions and pooling of images, fast also where every client has weights of its own.

JAX batches a convolution over weights as one with a group for each set of weights. On a GPU that is as fast
as with one set of weights, but its gradients are not; on a CPU it is far slower than one after another, and
its gradients in a loop are slow too (jax-ml/jax#12868). So they are spelled out here, for each kind of
device; benchmarks/convolution.py compares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap
from jaxtyping import Array, Float

from coterie.errors import LearnerError

Images = Float[Array, "examples height width channels"]
Kernel = Float[Array, "rows columns inputs outputs"]
LAYOUT = ("NHWC", "HWIO", "NHWC")
CHANNELS = 16  # with fewer of them at its input a convolution is a product of patches


class Window(NamedTuple):
    """How a kernel moves over an image, in height and in width."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


def images(x: Array, model: str) -> Images:
    """Features as images with channels; refused, in the name of the model, if they are no images."""
    if x.ndim not in (3, 4) or not jnp.issubdtype(x.dtype, jnp.floating):
        raise LearnerError(
            f"{model} needs images of real numbers, of shape (height, width) or (height, width, channels), "
            f"not features of shape {x.shape[1:]} and type {x.dtype}."
        )
    return x if x.ndim == 4 else x[..., None]


def convolve(layer: eqx.nn.Conv2d, x: Images) -> Images:
    """What a convolutional layer does to a batch of images with their channels last, without its bias."""
    padding: Any = layer.padding
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(x.shape[1:3], layer.kernel_size, layer.stride, padding)
    window = Window(tuple(layer.stride), tuple((low, high) for low, high in padding))
    return convolution(window, on_cpu=jax.default_backend() == "cpu")(x, layer.weight.transpose(2, 3, 1, 0))


@cache
def convolution(window: Window, on_cpu: bool) -> Callable[[Images, Kernel], Images]:
    """The convolution with such a window, as it is computed on such a device."""
    forward, backward = _on_cpu(window) if on_cpu else _on_accelerator(window)
    found: Any = jax.custom_vjp(lambda x, kernel: forward(x, kernel))
    found.defvjp(lambda x, kernel: (forward(x, kernel), (x, kernel)), lambda kept, dy: backward(*kept, dy))
    return cast(Callable[[Images, Kernel], Images], found)


def _on_cpu(window: Window) -> tuple[Any, Any]:
    """One set of weights after another, with gradients that are convolutions of `LAYOUT` too.

    XLA has a fast way for these; outside of loops it brings others into their form, inside it does not.
    """
    dilation, pads = window.stride, window.padding

    def forward(x: Images, kernel: Kernel) -> Images:
        return plain(x, kernel, window)

    def backward(x: Images, kernel: Kernel, dy: Images) -> tuple[Images, Kernel]:
        # channels as examples, examples as channels, and dy as a kernel that moves over them
        spans = [(n - 1) * s + 1 for n, s in zip(dy.shape[1:3], dilation, strict=True)]
        sizes = zip(x.shape[1:3], kernel.shape[:2], spans, pads, strict=True)
        turned = jax.lax.conv_general_dilated(
            x.transpose(3, 1, 2, 0),
            dy.transpose(1, 2, 0, 3),
            (1, 1),
            [(low, k - n + span - 1 - low) for n, k, span, (low, _) in sizes],
            rhs_dilation=dilation,
            dimension_numbers=LAYOUT,
        )
        return of_images(x, kernel, dy, window), turned.transpose(1, 2, 0, 3)

    return sequential_vmap(forward), sequential_vmap(backward)


def _on_accelerator(window: Window) -> tuple[Any, Any]:
    """Weights of several clients as groups, with the gradient of the weights as a product of patches."""

    @custom_vmap
    def forward(x: Images, kernel: Kernel) -> Images:
        return plain(x, kernel, window)

    @custom_vmap
    def backward(x: Images, kernel: Kernel, dy: Images) -> tuple[Images, Kernel]:
        dx, dkernel = jax.vjp(lambda x, kernel: plain(x, kernel, window), x, kernel)[1](dy)
        return dx, dkernel

    @forward.def_vmap
    def many_forward(count: int, batched: list[bool], x: Array, kernel: Array) -> tuple[Array, bool]:
        if not batched[1]:
            # as more images, which yet another axis of clients may still find with weights of their own
            y = forward(x.reshape(-1, *x.shape[2:]), kernel)
            return y.reshape(*x.shape[:2], *y.shape[1:]), True
        axes = [0 if of_clients else None for of_clients in batched]
        way = by_patches if kernel.shape[-2] < CHANNELS else plain
        return jax.vmap(partial(way, window=window), axes)(x, kernel), True

    @backward.def_vmap
    def many_backward(
        count: int, batched: list[bool], x: Array, kernel: Array, dy: Array
    ) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        def one(x: Images, kernel: Kernel, dy: Images) -> tuple[Images, Kernel]:
            seen = patches(x, kernel.shape[:2], window)
            dkernel = jnp.einsum("nhwp,nhwo->po", seen, dy).reshape(kernel.shape)
            return of_images(x, kernel, dy, window), dkernel

        axes = [0 if of_clients else None for of_clients in batched]
        return jax.vmap(one, axes)(x, kernel, dy), (True, True)

    return forward, backward


def plain(x: Images, kernel: Kernel, window: Window) -> Images:
    """The convolution as JAX has it."""
    return jax.lax.conv_general_dilated(x, kernel, window.stride, window.padding, dimension_numbers=LAYOUT)


def of_images(x: Images, kernel: Kernel, dy: Images, window: Window) -> Images:
    """The gradient of the images: dy, spread out by the strides, with the kernel turned around."""
    pads = []
    for n, k, m, stride, (low, _) in zip(
        x.shape[1:3], kernel.shape[:2], dy.shape[1:3], window.stride, window.padding, strict=True
    ):
        pads.append((k - 1 - low, n - (m - 1) * stride - 1 + low))
    return jax.lax.conv_general_dilated(
        dy, kernel[::-1, ::-1].swapaxes(2, 3), (1, 1), pads, window.stride, dimension_numbers=LAYOUT
    )


def by_patches(x: Images, kernel: Kernel, window: Window) -> Images:
    """The convolution as one matrix product: what the kernel sees of an image, times the kernel."""
    return patches(x, kernel.shape[:2], window) @ kernel.reshape(-1, kernel.shape[-1])


def patches(
    x: Images, size: tuple[int, ...], window: Window
) -> Float[Array, "examples height width rows*columns*channels"]:
    """What a kernel of so many rows and columns sees of an image from each place."""
    x = jnp.pad(x, ((0, 0), *window.padding, (0, 0)))
    # first what it sees of a row: 5 + 5 parts are put together far faster than 25
    of_row = jnp.concatenate(_moved(x, size[1], window.stride[1], axis=2), axis=-1)
    of_row = jax.lax.optimization_barrier(of_row)
    return jnp.concatenate(_moved(of_row, size[0], window.stride[0], axis=1), axis=-1)


def max_pool(x: Images, size: int) -> Images:
    """The largest of each window of size x size, every second one; what lies outside the image is left out.

    Of the same values as a `reduce_window` with "SAME" padding, whose gradient is far slower.
    """
    return pooling(size, on_cpu=jax.default_backend() == "cpu")(x)


@cache
def pooling(size: int, on_cpu: bool) -> Callable[[Images], Images]:
    """Pooling over windows of that size, as it is computed on such a device."""
    return partial(_pool_by_axes, size=size) if on_cpu else _remembering_pool(size)


def _pool_by_axes(x: Images, size: int) -> Images:
    for axis in (1, 2):
        pads: list[tuple[int, int]] = [(0, 0)] * 4
        (pads[axis],) = jax.lax.padtype_to_pads(x.shape[axis : axis + 1], (size,), (2,), "SAME")
        first, *others = _moved(jnp.pad(x, pads, constant_values=-jnp.inf), size, 2, axis)
        x = first
        for other in others:
            x = jnp.maximum(x, other)
    return x


def _remembering_pool(size: int) -> Callable[[Images], Images]:
    """Pooling that remembers which place of each window was the largest, the first of several."""

    def pads_of(height: int, width: int) -> list[tuple[int, int]]:
        return jax.lax.padtype_to_pads((height, width), (size, size), (2, 2), "SAME")

    def forward(x: Images) -> tuple[Images, tuple[Array, Any]]:
        pads = ((0, 0), *pads_of(*x.shape[1:3]), (0, 0))
        padded = jnp.pad(x, pads, constant_values=-jnp.inf)
        seen = [column for row in _moved(padded, size, 2, axis=1) for column in _moved(row, size, 2, axis=2)]
        largest, place = seen[0], jnp.zeros(seen[0].shape, jnp.uint8)
        for i, other in enumerate(seen[1:], 1):
            larger = (other > largest) | jnp.isnan(other)
            largest, place = jnp.where(larger, other, largest), jnp.where(larger, jnp.uint8(i), place)
        # or it would be computed anew wherever a number of it is needed, and on a GPU that is in many places
        largest, place = jax.lax.optimization_barrier((largest, place))
        return largest, (place, x[:0])

    def backward(kept: tuple[Array, Any], dy: Images) -> tuple[Images]:
        place, like = kept
        sizes = list(zip(like.shape[1:3], dy.shape[1:3], pads_of(*like.shape[1:3]), strict=True))
        dx: Any = 0
        for i in range(size**2):
            spread = [(0, 0, 0)] * 4
            for axis, ((n, m, (low, _)), at) in enumerate(zip(sizes, divmod(i, size), strict=True), 1):
                spread[axis] = (at - low, n - (at - low) - 2 * m + 1, 1)
            dx = dx + jax.lax.pad(jnp.where(place == i, dy, 0), jnp.zeros((), dy.dtype), spread)
        return (jax.lax.optimization_barrier(dx),)

    def largest_of(x: Images) -> Images:
        pads = ((0, 0), *pads_of(*x.shape[1:3]), (0, 0))
        whole = (1, size, size, 1), (1, 2, 2, 1)
        return cast(Array, jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *whole, pads))

    pooled: Any = jax.custom_vjp(largest_of)
    pooled.defvjp(forward, backward)
    return cast(Callable[[Images], Images], pooled)


def _moved(x: Array, size: int, stride: int, axis: int) -> list[Array]:
    """For each place of a window along an axis, what it sees as the window moves."""
    reach = x.shape[axis] - size
    return [jax.lax.slice_in_dim(x, i, i + reach + 1, stride, axis) for i in range(size)]
