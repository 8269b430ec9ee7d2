"""Populations of clients of whom it is known how many groups they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from coterie.data.digits import inverted_digits, rotated_digits
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.data.synthetic import mixed_regression

EXAMPLES = 50  # of a client, where nothing else is said
TURNED = 15  # degrees, by which groups are near each other
Labels = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Population:
    """Clients, and how they are told to train.

    Attributes
    ----------
    make
        Draws them, given a seed.
    groups
        How many there are; None where no number is right, since clients of a group differ.
    rate
        The step size of all methods.
    """

    make: Callable[[int], Federated]
    groups: int | None
    rate: float = 0.1


def _rotated(seed: int, *, clients: int, rotations: Sequence[int], examples: int = EXAMPLES) -> Federated:
    return rotated_digits(clients, rotations, unseen=0, seed=seed, examples=examples)


def _inverted(seed: int) -> Federated:
    return inverted_digits(40, unseen=0, seed=seed, examples=EXAMPLES)


def _of_sizes(seed: int, *, sizes: Sequence[int]) -> Federated:
    """Rotated digits, with groups of these sizes."""
    rotations = (0, 90, 180, 270)[: len(sizes)]
    whole = _rotated(seed, clients=max(sizes) * len(sizes), rotations=rotations, examples=45)
    assert whole.truth is not None
    of_each = [np.flatnonzero(whole.truth == j)[:size] for j, size in enumerate(sizes)]
    return _some(whole, np.concatenate(of_each))


def _some(whole: Federated, which: Int[np.ndarray, " some"]) -> Federated:
    assert whole.test is not None and whole.truth is not None
    return replace(whole, train=whole.train[which], test=whole.test[which], truth=whole.truth[which])


def _strangers(seed: int, *, permuted: bool) -> Federated:
    """Two groups of 12, and 8 clients whose labels mean nothing, or are permuted for each its own way."""
    whole, rng = _rotated(seed, clients=32, rotations=(0, 90)), np.random.default_rng(seed)
    assert whole.truth is not None
    odd = np.concatenate([np.flatnonzero(whole.truth == j)[12:] for j in (0, 1)])
    changes: dict[int, Labels] = {}
    truth = whole.truth.copy()
    for number, i in enumerate(odd.tolist()):
        changes[i] = partial(np.take, rng.permutation(10)) if permuted else partial(_any_label, rng)
        truth[i] = 2 + (number if permuted else 0)
    return replace(_relabelled(whole, changes), truth=truth)


def _any_label(rng: np.random.Generator, y: np.ndarray) -> np.ndarray:
    return rng.integers(0, 10, len(y))


def _relabelled(whole: Federated, changes: Mapping[int, Labels]) -> Federated:
    def changed(shards: Shards) -> Shards:
        xs, ys = zip(*shards, strict=True)
        new = [changes[i](y).astype(y.dtype) if i in changes else y for i, y in enumerate(ys)]
        return Shards.from_lists(xs, new, shards.ids.tolist(), classes=shards.spec.classes)

    assert whole.test is not None
    return replace(whole, train=changed(whole.train), test=changed(whole.test))


def _near(seed: int) -> Federated:
    """Rotations of 0, 15, 90 and 105 degrees."""
    from scipy.ndimage import rotate  # slow to import

    whole = _rotated(seed, clients=40, rotations=(0, 0, 90, 90))
    assert whole.test is not None and whole.truth is not None
    turned = whole.truth % 2 == 1

    def changed(shards: Shards) -> Shards:
        def seen(x: np.ndarray) -> np.ndarray:
            made: np.ndarray = rotate(x, TURNED, axes=(1, 2), reshape=False, order=1)
            return made

        xs, ys = zip(*shards, strict=True)
        new = [seen(x) if own else x for x, own in zip(xs, turned, strict=True)]
        return Shards.from_lists(new, ys, shards.ids.tolist(), classes=shards.spec.classes)

    return replace(whole, train=changed(whole.train), test=changed(whole.test))


def _regressions(seed: int, **settings: Any) -> Federated:
    return mixed_regression(seed=seed, **settings)


def _mixture(k: int, clients: int, examples: int, dim: int, noise: float, **more: Any) -> Population:
    make = partial(_regressions, k=k, clients=clients, examples=examples, dim=dim, noise=noise, **more)
    return Population(make, None if "spread" in more else k, rate=0.03 if dim > 20 else 0.08)


DIGITS: dict[str, Population] = {
    "4 rotations x 10": Population(partial(_rotated, clients=40, rotations=(0, 90, 180, 270)), 4),
    "2 rotations x 12": Population(partial(_rotated, clients=24, rotations=(0, 90)), 2),
    "3 rotations x 8": Population(partial(_rotated, clients=24, rotations=(0, 90, 180)), 3),
    "inverted, 2 x 20": Population(_inverted, 2),
    "alike, 24 x 50 images": Population(partial(_rotated, clients=24, rotations=(0,)), 1),
    "alike, 24 x 20 images": Population(partial(_rotated, clients=24, rotations=(0,), examples=20), 1),
    "4 rotations x 10, 20 images": Population(
        partial(_rotated, clients=40, rotations=(0, 90, 180, 270), examples=20), 4
    ),
    "30, 6 and 4 clients": Population(partial(_of_sizes, sizes=(30, 6, 4)), 3),
    "23 and 1 client": Population(partial(_of_sizes, sizes=(23, 1)), 2),
    "2 x 12 and 8 of noise": Population(partial(_strangers, permuted=False), 3),
    "2 x 12 and 8 permuted": Population(partial(_strangers, permuted=True), 10),
    "near: 0, 15, 90, 105 degrees": Population(_near, 4),
}
REGRESSIONS: dict[str, Population] = {
    **{
        f"{k} of 50 coordinates, {n} examples": _mixture(k, 60, n, 50, 0.1)
        for n in (10, 20)
        for k in (1, 2, 3, 4, 5)
    },
    "10 groups of 6": _mixture(10, 60, 20, 20, 0.07),
    "alike, noise 0.7": _mixture(1, 40, 20, 10, 0.7),
    "weak separation": _mixture(3, 60, 20, 10, 0.7, scale=0.5),
    "spread 0.3": _mixture(2, 40, 40, 20, 0.07, spread=0.3),
    "spread 0.15": _mixture(2, 40, 40, 20, 0.3, spread=0.15),
}
