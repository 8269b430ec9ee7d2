"""Real handwriting without a download: scikit-learn's 1,797 digits of 8 x 8 pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.data.federated import Federated
from coterie.data.partition import cluster_sizes, evenly
from coterie.data.shards import Shards
from coterie.errors import SettingError

View = Callable[[np.ndarray], np.ndarray]


def rotated_digits(
    clients: int = 40,
    rotations: Sequence[int] = (0, 90, 180, 270),
    unseen: int = 8,
    seed: int = 0,
    disjoint: bool = False,
    test_seed: int | None = None,
) -> Federated:
    """Digits, rotated: every cluster of clients sees handwriting at its own angle.

    Parameters
    ----------
    clients
        Training clients, shared equally among the rotations.
    rotations
        One angle in degrees per cluster, multiples of 90.
    unseen
        Further clients that take no part in training, shared equally among the rotations.
    seed
        Which images are held out and who holds which.
    disjoint
        Whether an image is held by one client only, as in the SR-FCA paper. When not, every cluster sees all
        images, each turned its own way, as in the IFCA paper.
    test_seed
        Which images are held out, in place of `seed`: populations of different seeds are then tested on the
        same images, and none of them trains on these.
    """
    wrong = [angle for angle in rotations if angle % 90]
    if wrong:
        raise SettingError(f"rotation {wrong[0]} is not a multiple of 90 degrees.")
    views = [lambda images, turns=angle // 90: np.rot90(images, turns, axes=(1, 2)) for angle in rotations]
    return seen_through(
        *_digits(), views, clients, unseen, seed, "rotated digits", disjoint=disjoint, test_seed=test_seed
    )


def inverted_digits(
    clients: int = 40,
    unseen: int = 8,
    seed: int = 0,
    disjoint: bool = False,
    test_seed: int | None = None,
) -> Federated:
    """Digits, inverted for half of the clients: light on dark in one cluster, dark on light in the other.

    Parameters are those of `rotated_digits`.
    """
    views: list[View] = [lambda images: images, lambda images: 1 - images]
    return seen_through(
        *_digits(), views, clients, unseen, seed, "inverted digits", disjoint=disjoint, test_seed=test_seed
    )


def seen_through(
    images: np.ndarray,
    labels: np.ndarray,
    views: Sequence[View],
    clients: int,
    unseen: int,
    seed: int,
    name: str,
    disjoint: bool = False,
    test_seed: int | None = None,
) -> Federated:
    """A federation in which each cluster sees images through a view of its own.

    A fifth of the images is held out. Every cluster sees all the other images, split over its clients; the
    held-out images are split over the clusters' training clients as `test` and, disjoint from these, over
    the unseen clients. With `disjoint` the images are first split over the clusters, in proportion to their
    clients, so that no two clients of any cluster hold the same one.
    """
    sizes = cluster_sizes(clients, len(views))
    strangers = cluster_sizes(unseen, len(views)) if unseen else np.zeros(len(views), int)
    rng = np.random.default_rng(seed)
    chosen = rng if test_seed is None else np.random.default_rng(test_seed)
    held_out, kept = np.split(chosen.permutation(len(images)), [len(images) // 5])
    pools = [(kept, held_out)] * len(views)
    if disjoint:
        pools = list(zip(_shares(kept, sizes, rng), _shares(held_out, sizes + strangers, rng), strict=True))
    # the unseen clients get about as many images each as a training client is tested on
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"train": [], "test": [], "unseen": []}
    for view, members, others, (own, tested) in zip(views, sizes, strangers, pools, strict=True):
        seen = view(images).astype(np.float32)
        folds = np.split(tested, [round(len(tested) * members / (members + others))])
        for split, pool, count in (
            ("train", own, members),
            ("test", folds[0], members),
            ("unseen", folds[1], others),
        ):
            if count:
                parts[split] += [(seen[pool[i]], labels[pool[i]]) for i in evenly(len(pool), count, rng)]
    truth = np.repeat(np.arange(len(views)), sizes)
    classes = int(labels.max()) + 1

    def shards(split: str, prefix: str) -> Shards:
        ids = [f"{prefix}{i:0{len(str(len(parts[split]) - 1))}d}" for i in range(len(parts[split]))]
        xs, ys = zip(*parts[split], strict=True)
        return Shards.from_lists(xs, ys, ids, classes=classes)

    return Federated(
        train=shards("train", "client-"),
        test=shards("test", "client-"),
        unseen=shards("unseen", "unseen-") if unseen else None,
        truth=truth,
        unseen_truth=np.repeat(np.arange(len(views)), strangers) if unseen else None,
        name=name,
    )


def _shares(pool: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The pool at random over clusters, in proportion to how many clients they have."""
    ends = np.round(len(pool) * np.cumsum(sizes) / sizes.sum()).astype(int)
    return np.split(rng.permutation(pool), ends[:-1])


def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits  # slow to import: half of what this whole package takes

    bunch = load_digits()
    return bunch.images / 16, bunch.target.astype(np.int32)
