"""Real handwriting without a download: scikit-learn's 1,797 digits of 8 x 8 pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.data.federated import Federated
from coterie.data.views import Images, View, inverted, rotated, seen_through


def rotated_digits(
    clients: int = 40,
    rotations: Sequence[int] = (0, 90, 180, 270),
    unseen: int = 8,
    seed: int = 0,
    disjoint: bool = False,
    test_seed: int | None = None,
    examples: int | None = None,
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
    examples
        Images that each client trains on; all are dealt out when not given.
    """
    rng, images = _digits(seed, test_seed)
    views = rotated(rotations, images.x.shape[1:])
    return _dealt(views, images, "rotated digits", clients, unseen, rng, disjoint, examples)


def inverted_digits(
    clients: int = 40,
    unseen: int = 8,
    seed: int = 0,
    disjoint: bool = False,
    test_seed: int | None = None,
    examples: int | None = None,
) -> Federated:
    """Digits, inverted for half of the clients: light on dark in one cluster, dark on light in the other.

    Parameters are those of `rotated_digits`.
    """
    rng, images = _digits(seed, test_seed)
    return _dealt(inverted(white=1), images, "inverted digits", clients, unseen, rng, disjoint, examples)


def _dealt(
    views: Sequence[View],
    images: Images,
    name: str,
    clients: int,
    unseen: int,
    rng: np.random.Generator,
    disjoint: bool,
    examples: int | None,
) -> Federated:
    # there are so few images that an unseen client gets only about as many as a client is tested on
    return seen_through(
        views,
        images,
        name,
        clients=clients,
        unseen=unseen,
        seed=rng,
        examples=examples,
        disjoint=disjoint,
        alike=False,
    )


def _digits(seed: int, test_seed: int | None) -> tuple[np.random.Generator, Images]:
    """All the digits, a fifth of them held out, and what further draws are made with."""
    from sklearn.datasets import load_digits  # slow to import: half of what this whole package takes

    bunch = load_digits()
    rng = np.random.default_rng(seed)
    chosen = rng if test_seed is None else np.random.default_rng(test_seed)
    held_out, kept = np.split(chosen.permutation(len(bunch.target)), [len(bunch.target) // 5])
    x = (bunch.images / 16).astype(np.float32)
    return rng, Images(x, bunch.target.astype(np.int32), kept, held_out)
