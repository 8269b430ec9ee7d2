"""Images that each cluster of clients sees through a view of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from coterie.data.federated import Federated
from coterie.data.partition import cluster_sizes, evenly
from coterie.data.shards import Shards
from coterie.errors import DataError, SettingError


@dataclass(frozen=True)
class Images:
    """Labelled images, and which of them are held out.

    Attributes
    ----------
    x
        Shape (images, height, width) or (images, height, width, channels).
    y
        Labels, shape (images,).
    kept, held_out
        Which images clients train on, and which they are tested on.
    scale
        What pixels are multiplied by before a model sees them; see `Shards.from_lists`.
    """

    x: np.ndarray
    y: np.ndarray
    kept: np.ndarray
    held_out: np.ndarray
    scale: float | None = None

    @classmethod
    def of(cls, x: Sequence[np.ndarray], y: Sequence[np.ndarray], name: str) -> Images:
        """A published set of images, one byte a pixel, in parts, the last of which is to test on."""
        for images, labels in zip(x, y, strict=True):
            if len(images) != len(labels) or len(images) == 0:
                raise DataError(f"{name}: there are {len(images)} images and {len(labels)} labels for them.")
            if images.shape[1:] != x[0].shape[1:]:
                raise DataError(f"{name}: images differ in shape, {x[0].shape[1:]} and {images.shape[1:]}.")
        both = np.concatenate(x), np.concatenate(y)
        kept, held_out = np.split(np.arange(len(both[0])), [-len(x[-1])])
        return cls(*both, kept, held_out, scale=1 / 255)


@dataclass(frozen=True)
class View:
    """What a cluster makes of images, and which labels it has; all of them when None."""

    change: Callable[[np.ndarray], np.ndarray] = lambda images: images
    labels: Sequence[int] | None = None

    def of(self, which: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Those images, of some, that the cluster has."""
        return which if self.labels is None else which[np.isin(y[which], self.labels)]


def rotated(rotations: Sequence[int], shape: Sequence[int]) -> list[View]:
    """A view per angle, for images of that height and width."""
    for angle in rotations:
        if angle % 90:
            raise SettingError(f"rotation {angle} is not a multiple of 90 degrees.")
        if angle % 180 and shape[0] != shape[1]:
            raise SettingError(
                f"rotation {angle} needs square images, and these are {shape[0]} x {shape[1]}: "
                "choose multiples of 180."
            )
    return [View(partial(np.rot90, k=angle // 90, axes=(1, 2))) for angle in rotations]


def inverted(white: int) -> list[View]:
    """Light on dark in one cluster, dark on light in the other, given the largest value of a pixel."""
    return [View(), View(lambda images: white - images)]


def seen_through(
    views: Sequence[View],
    images: Images,
    name: str,
    *,
    clients: int,
    unseen: int,
    seed: int | np.random.Generator,
    examples: int | None = None,
    disjoint: bool = False,
    alike: bool = True,
) -> Federated:
    """A federation in which each cluster sees images through a view of its own.

    Clients and unseen clients are shared equally among the views. Every cluster has all the images that are
    kept, split at random over its clients; or, with `disjoint`, a share of them in proportion to its clients,
    so that no two clients of any cluster hold the same one. Held-out images are seen through the same views:
    the unseen clients of a cluster have some, and the others are its clients' `test`, which is None if there
    is not one for each.

    Parameters
    ----------
    seed
        Who holds which, or what to draw it with.
    examples
        Images that each client trains on; all images are dealt out when not given.
    alike
        Whether an unseen client holds as many images as clients train on, and not as many as they are tested
        on.
    """
    sizes = cluster_sizes(clients, len(views))
    strangers = cluster_sizes(unseen, len(views)) if unseen else np.zeros(len(views), int)
    rng = np.random.default_rng(seed)
    pools = [(view.of(images.kept, images.y), view.of(images.held_out, images.y)) for view in views]
    if disjoint:
        kept, held_out = _shares(images.kept, sizes, rng), _shares(images.held_out, sizes + strangers, rng)
        pools = list(zip(kept, held_out, strict=True))
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "test": [], "unseen": []}
    for view, members, others, (own, tested) in zip(views, sizes, strangers, pools, strict=True):
        each = _each(examples, members, len(own))
        mine, theirs = _folds(tested, members, others, each if alike else None)
        for split, pool, count, most in (
            ("train", own, members, examples),
            ("test", mine, members, None),
            ("unseen", theirs, others, None),
        ):
            if count and len(pool):
                # the images of a client are copied once, when shards are made of these views of them
                dealt = evenly(len(pool), count, rng, most)
                which = pool[np.concatenate(dealt)]
                ends = np.cumsum([len(part) for part in dealt])[:-1]
                x = np.split(view.change(images.x[which]), ends)
                parts[split] += zip(x, np.split(images.y[which], ends), strict=True)
    if len(parts["test"]) < clients:
        parts["test"].clear()
    classes = int(images.y.max()) + 1

    def shards(split: str, prefix: str) -> Shards | None:
        if not parts[split]:
            return None
        ids = [f"{prefix}{i:0{len(str(len(parts[split]) - 1))}d}" for i in range(len(parts[split]))]
        xs, ys = zip(*parts[split], strict=True)
        return Shards.from_lists(xs, ys, ids, classes=classes, scale=images.scale)

    train = shards("train", "client-")
    assert train is not None
    return Federated(
        train=train,
        test=shards("test", "client-"),
        unseen=shards("unseen", "unseen-"),
        truth=np.repeat(np.arange(len(views)), sizes),
        unseen_truth=np.repeat(np.arange(len(views)), strangers) if unseen else None,
        name=name,
    )


def _each(examples: int | None, members: int, images: int) -> int:
    """How many images every client of a cluster holds."""
    if examples is None:
        return images // members
    if examples < 1 or examples * members > images:
        raise SettingError(
            f"{members} clients cannot hold {examples} images each, a cluster has {images}: "
            f"choose 1 to {images // members} examples, or other clients."
        )
    return examples


def _folds(tested: np.ndarray, members: int, others: int, each: int | None) -> list[np.ndarray]:
    """The held-out images of a cluster's clients, and of its unseen clients, `each` if that is given."""
    if each is None:
        return np.split(tested, [round(len(tested) * members / (members + others))])
    if each * others > len(tested):
        raise SettingError(
            f"{others} unseen clients cannot hold {each} images each, as many as clients train on: a cluster "
            f"has {len(tested)} test images; choose fewer unseen clients, or fewer examples."
        )
    mine, theirs = np.split(tested, [len(tested) - each * others])
    return [mine if len(mine) >= members else mine[:0], theirs]


def _shares(pool: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The pool at random over clusters, in proportion to how many clients they have."""
    ends = np.round(len(pool) * np.cumsum(sizes) / sizes.sum()).astype(int)
    return np.split(rng.permutation(pool), ends[:-1])
