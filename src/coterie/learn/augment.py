"""Augmentation: local steps see each image changed at random, all else sees it as it is.

It is part of the local update, inside the compiled program. What is drawn follows from the client's own key,
the number of the step and the place in its batch alone: neither other clients nor padding change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from coterie import keys
from coterie.data.shards import Spec
from coterie.errors import LearnerError, SettingError, whole_number
from coterie.settings import Settings

Images = Float[Array, "examples height width *channels"]
Shape = tuple[int, ...]


class Augment(Protocol):
    """What a model is shown in the place of a client's examples.

    Examples are given as they are once they have been scaled. An augmentation is a constant of the compiled
    program: it must be hashable, as a frozen dataclass is.
    """

    def shape(self, shape: Shape, /) -> Shape:
        """The shape the model is built for, given that of an example; it refuses what it cannot change."""
        ...

    def train(self, x: Array, key: Key[Array, ""], /) -> Array:
        """A batch as a local step sees it.

        Padding comes last in a batch: what an example becomes must not depend on how many follow it.
        """
        ...

    def look(self, x: Array, /) -> Array:
        """Examples as they are seen wherever losses and accuracies are measured: nothing is drawn."""
        ...


@dataclass(frozen=True)
class Crop(Settings):
    """A random part of each image, for every other one as in a mirror: the usual augmentation of photographs.

    Outside of training the middle of the image is seen. `Crop(pad=4)` is what is usual for CIFAR-10, and
    `Crop(pad=2, cutout=8)` what the SR-FCA paper's released code does.

    Parameters
    ----------
    size
        Height and width of the part; those of the image when None.
    pad
        How many black pixels (zeros) are put around the image before.
    flip
        Whether left and right are exchanged, in half of the cases.
    cutout
        Height and width of a square that is blackened, anywhere in the part.
    standardise
        Whether what is seen is brought to mean 0 and deviation 1 over all pixels and channels of an image.
    """

    size: int | None = None
    pad: int = 0
    flip: bool = True
    cutout: int = 0
    standardise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            whole_number("size", self.size, 1)
        whole_number("pad", self.pad, 0)
        whole_number("cutout", self.cutout, 0)
        if self.size is not None and self.cutout > self.size:
            raise SettingError(f"cutout must be at most the size {self.size}, not {self.cutout}.")

    def shape(self, shape: Shape) -> Shape:
        part = _part(self, shape, self.size)
        if self.cutout > min(part[:2]):
            raise LearnerError(
                f"Crop cannot cut {self.cutout} x {self.cutout} pixels out of {part[0]} x {part[1]}."
            )
        return part

    def train(self, x: Images, key: Key[Array, ""]) -> Images:
        part = self.shape(x.shape[1:])
        around = (self.pad, self.pad)
        x = jnp.pad(x, ((0, 0), around, around, *[(0, 0)] * (x.ndim - 3)))

        def one(image: Array, key: Key[Array, ""]) -> Array:
            lots = jax.random.uniform(key, (5,))
            image = jax.lax.dynamic_slice(image, _start(lots[:2], image.shape, part), part)
            image = jnp.where(lots[2] < 0.5, image[:, ::-1], image) if self.flip else image
            return self._cut(image, lots[3:]) if self.cutout else image

        return self._seen(jax.vmap(one)(x, keys.numbered(key, len(x))))

    def look(self, x: Images) -> Images:
        return self._seen(_middle(x, self.shape(x.shape[1:])))

    def _cut(self, image: Array, lots: Array) -> Array:
        top, left, *_ = _start(lots, image.shape, (self.cutout, self.cutout))
        row, column = jnp.arange(image.shape[0])[:, None] - top, jnp.arange(image.shape[1]) - left
        hole = (row >= 0) & (row < self.cutout) & (column >= 0) & (column < self.cutout)
        return jnp.where(hole.reshape(*hole.shape, *[1] * (image.ndim - 2)), 0, image)

    def _seen(self, x: Images) -> Images:
        return standardised(x) if self.standardise else x


@dataclass(frozen=True)
class Distort(Settings):
    """The distorted images of TensorFlow's tutorial on CIFAR-10, as the IFCA paper's released code has them.

    A random part of the image, for every other one as in a mirror, with another contrast, and standardised.
    That code distorts batches and not images: all images of a batch are cropped at one place and get one
    contrast; whether one is mirrored is drawn for each. Outside of training the middle is seen, standardised.

    It also makes all images of a batch brighter or darker by one number, of up to 63 on a scale from 0 to 1.
    Standardised images are the same without it, but for rounding errors: it is left out.

    Parameters
    ----------
    size
        Height and width of the part.
    contrast
        The least and the largest factor by which pixels are moved away from the mean of their channel.
    """

    size: int = 24
    contrast: tuple[float, float] = (0.2, 1.8)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("size", self.size, 1)
        if len(self.contrast) != 2 or not 0 <= self.contrast[0] <= self.contrast[1] < math.inf:
            raise SettingError(
                f"contrast must be a least and a largest factor, such as (0.2, 1.8), not {self.contrast}."
            )

    def shape(self, shape: Shape) -> Shape:
        return _part(self, shape, self.size)

    def train(self, x: Images, key: Key[Array, ""]) -> Images:
        part = self.shape(x.shape[1:])
        of_batch, of_images = jax.random.split(key)
        lots = jax.random.uniform(of_batch, (3,))
        x = jax.lax.dynamic_slice(x, (0, *_start(lots[:2], x.shape[1:], part)), (len(x), *part))
        flips = jax.vmap(jax.random.bernoulli)(keys.numbered(of_images, len(x)))
        x = jnp.where(flips.reshape(-1, *[1] * len(part)), x[:, :, ::-1], x)
        least, largest = self.contrast
        mean = x.mean((1, 2), keepdims=True)
        return standardised((x - mean) * (least + (largest - least) * lots[2]) + mean)

    def look(self, x: Images) -> Images:
        return standardised(_middle(x, self.shape(x.shape[1:])))


def check_augment(augment: Augment, spec: Spec) -> None:
    """Refuse an augmentation that these examples have no use for, or whose parts do not go together."""
    name, example = type(augment).__name__, spec.example()
    if not np.issubdtype(example.dtype, np.floating):
        raise LearnerError(
            f"{name} needs real numbers, not features of type {example.dtype}: give the shards scale=1/255 "
            "where images have one byte a pixel."
        )

    def drawn(x: Array) -> Array:
        return augment.train(x, jax.random.key(0))

    try:
        wanted = (1, *augment.shape(spec.x_shape))
        shown = {
            "look": jax.eval_shape(augment.look, example).shape,
            "train": jax.eval_shape(drawn, example).shape,
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise LearnerError(
            f"the augmentation {augment} cannot be applied to features of shape {spec.x_shape}: {error}"
        ) from error
    for method, shape in shown.items():
        if shape != wanted:
            raise LearnerError(
                f"{name}.{method} gives a batch of shape {shape} for one example, where {name}.shape says "
                f"{wanted}."
            )


def standardised(x: Images) -> Images:
    """Images of mean 0 and deviation 1, as TensorFlow has it: no deviation counts as below 1/sqrt(values)."""
    each = tuple(range(1, x.ndim))
    x = x - x.mean(each, keepdims=True)
    deviation = jnp.sqrt(jnp.square(x).mean(each, keepdims=True))
    return x / jnp.maximum(deviation, 1 / math.sqrt(math.prod(x.shape[1:])))


def _part(augment: Augment, shape: Shape, size: int | None) -> Shape:
    """The shape of a part of an image of that shape."""
    name = type(augment).__name__
    if len(shape) not in (2, 3):
        raise LearnerError(
            f"{name} needs images, of shape (height, width) or (height, width, channels), not features of "
            f"shape {shape}."
        )
    if size is None:
        return shape
    if size > min(shape[:2]):
        raise LearnerError(f"{name} cannot take {size} x {size} pixels of images of {shape[0]} x {shape[1]}.")
    return (size, size, *shape[2:])


def _start(lots: Float[Array, "2"], whole: Shape, part: Shape) -> tuple[Array | int, ...]:
    """Where a part begins, at a random place in height and in width, given numbers from 0 up to 1."""
    places = [
        jnp.floor(lot * (n - m + 1)).astype(jnp.int32)
        for lot, n, m in zip((lots[0], lots[1]), whole, part, strict=False)
    ]
    return (*places, *[0] * (len(whole) - 2))


def _middle(x: Images, part: Shape) -> Images:
    top, left = ((n - m) // 2 for n, m in zip(x.shape[1:3], part, strict=False))
    return x[:, top : top + part[0], left : left + part[1]]
