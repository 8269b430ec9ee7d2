"""Populations of clients that need no download, of whom it is known how many groups they are."""

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
from coterie.federation.simulation import usual_precision
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import MLP, Linear

STEPS = 10  # of a local update, where nothing else is said
EXAMPLES = 50  # of a client
TURNED = 15  # degrees, by which groups are near each other
CLASSES = 5  # that a client has, where labels are skewed
ROTATIONS = (0, 90, 180, 270)
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Population:
    """Clients, and how they train.

    Attributes
    ----------
    make
        Draws them, given a seed.
    groups
        How many there are; None where no number is right, since clients of a group differ, or nobody knows.
    learner
        The same for all methods.
    participation
        Of rounds.
    told
        The number of groups that methods are told who need one, where nobody knows it.
    """

    make: Callable[[int], Federated]
    groups: int | None
    learner: Learner
    participation: float = 1.0
    told: int | None = None

    @property
    def measure(self) -> str:
        """What methods are compared by: "accuracy" or "loss"."""
        return "loss" if self.learner.loss == "squared" else "accuracy"

    @property
    def steps(self) -> int:
        """Of a local update."""
        local = self.learner.local
        assert isinstance(local, SGD) and local.steps is not None
        return local.steps

    @property
    def precision(self) -> str:
        return usual_precision(self.learner.loss)


def changed(shards: Shards, change: Callable[[int, np.ndarray, np.ndarray], Pair]) -> Shards:
    """The same clients with other examples: what `change` makes of those of each, who is told by place."""
    xs, ys = zip(*(change(i, x, y) for i, (x, y) in enumerate(shards)), strict=True)
    spec, ids = shards.spec, shards.ids.tolist()
    return Shards.from_lists(xs, ys, ids, classes=spec.classes, scale=spec.scale)


def _both(whole: Federated, change: Callable[[int, np.ndarray, np.ndarray], Pair]) -> Federated:
    """The same change of training and test examples."""
    assert whole.test is not None
    return replace(whole, train=changed(whole.train, change), test=changed(whole.test, change))


def _some(whole: Federated, which: Int[np.ndarray, " some"]) -> Federated:
    assert whole.test is not None and whole.truth is not None
    return replace(whole, train=whole.train[which], test=whole.test[which], truth=whole.truth[which])


# -- digits ------------------------------------------------------------------------------------------------


def _rotated(
    seed: int, *, clients: int, rotations: Sequence[int], examples: int | None = EXAMPLES
) -> Federated:
    return rotated_digits(clients, rotations, unseen=0, seed=seed, examples=examples)


def _inverted(seed: int) -> Federated:
    return inverted_digits(40, unseen=0, seed=seed, examples=EXAMPLES)


def _of_sizes(seed: int, *, sizes: Sequence[int]) -> Federated:
    """Rotated digits, with groups of these sizes."""
    whole = _rotated(seed, clients=max(sizes) * len(sizes), rotations=ROTATIONS[: len(sizes)], examples=45)
    assert whole.truth is not None
    of_each = [np.flatnonzero(whole.truth == j)[:size] for j, size in enumerate(sizes)]
    return _some(whole, np.concatenate(of_each))


def _in_turn(sizes: Sequence[int], groups: int, clients: int) -> list[int]:
    """These sizes of the clients of each group, in turn.

    They are few, and the same of all draws: each is a part of every program, and draws share these.
    """
    of_each: list[int] = np.tile(np.resize(sizes, clients // groups), groups).tolist()
    return of_each


def _unequal(seed: int, *, sizes: Sequence[int]) -> Federated:
    """Rotated digits of clients that have so many images to train on, in turn."""
    whole = _rotated(seed, clients=40, rotations=ROTATIONS, examples=max(sizes))
    sizes = _in_turn(sizes, 4, 40)
    return replace(whole, train=changed(whole.train, lambda i, x, y: (x[: sizes[i]], y[: sizes[i]])))


def _skewed(seed: int, *, clients: int, rotations: Sequence[int]) -> Federated:
    """Rotated digits of clients that have some of the classes only, each its own."""
    rng = np.random.default_rng(seed)
    own = [rng.choice(10, CLASSES, replace=False) for _ in range(clients)]

    def of_own(i: int, x: np.ndarray, y: np.ndarray) -> Pair:
        mine = np.isin(y, own[i])
        return x[mine][:EXAMPLES], y[mine][:EXAMPLES]

    return _both(_rotated(seed, clients=clients, rotations=rotations, examples=None), of_own)


def _strangers(seed: int, *, permuted: bool) -> Federated:
    """Two groups of 12, and 8 clients whose labels mean nothing, or are permuted for each its own way."""
    whole, rng = _rotated(seed, clients=32, rotations=(0, 90)), np.random.default_rng(seed)
    assert whole.truth is not None
    odd = np.concatenate([np.flatnonzero(whole.truth == j)[12:] for j in (0, 1)])
    truth = whole.truth.copy()
    truth[odd] = 2 + np.arange(len(odd)) * permuted
    own: Mapping[int, np.ndarray] = {i: rng.permutation(10) for i in odd.tolist()} if permuted else {}

    def relabelled(i: int, x: np.ndarray, y: np.ndarray) -> Pair:
        if i not in odd:
            return x, y
        return x, (own[i][y] if permuted else rng.integers(0, 10, len(y))).astype(y.dtype)

    return replace(_both(whole, relabelled), truth=truth)


def turned(whole: Federated, degrees: Sequence[float]) -> Federated:
    """Each client's images turned further by its own angle."""
    from scipy.ndimage import rotate  # slow to import

    def seen(i: int, x: np.ndarray, y: np.ndarray) -> Pair:
        return (rotate(x, degrees[i], axes=(1, 2), reshape=False, order=1) if degrees[i] else x), y

    return _both(whole, seen)


def _near(seed: int) -> Federated:
    """Rotations of 0, 15, 90 and 105 degrees."""
    whole = _rotated(seed, clients=40, rotations=(0, 0, 90, 90))
    assert whole.truth is not None
    return turned(whole, [TURNED * (j % 2) for j in whole.truth.tolist()])


NETWORK = Learner(MLP(hidden=(64,)), "cross_entropy", SGD(lr=0.1, steps=STEPS))
MINIBATCHES = replace(NETWORK, local=SGD(lr=0.1, steps=STEPS, batch_size=10))
_four = partial(_rotated, clients=40, rotations=ROTATIONS)


def _digits(make: Callable[[int], Federated], groups: int | None, **more: Any) -> Population:
    return Population(make, groups, **{"learner": NETWORK, **more})


DIGITS: dict[str, Population] = {
    "4 rotations x 10": _digits(_four, 4),
    "2 rotations x 12": _digits(partial(_rotated, clients=24, rotations=(0, 90)), 2),
    "3 rotations x 8": _digits(partial(_rotated, clients=24, rotations=(0, 90, 180)), 3),
    "inverted, 2 x 20": _digits(_inverted, 2),
    "alike, 24 x 50 images": _digits(partial(_rotated, clients=24, rotations=(0,)), 1),
    "alike, 24 x 20 images": _digits(partial(_rotated, clients=24, rotations=(0,), examples=20), 1),
    "4 rotations x 10, 20 images": _digits(partial(_four, examples=20), 4),
    "4 rotations x 10, 5 to 120 images": _digits(partial(_unequal, sizes=(5, 25, 120)), 4),
    "4 rotations x 10, 5 classes each": _digits(partial(_skewed, clients=40, rotations=ROTATIONS), None),
    "one rotation x 10, 5 classes each": _digits(partial(_skewed, clients=10, rotations=(0,)), None),
    "4 rotations x 10, minibatches": _digits(_four, 4, learner=MINIBATCHES),
    "4 rotations x 10, half at a time": _digits(_four, 4, participation=0.5),
    "30, 6 and 4 clients": _digits(partial(_of_sizes, sizes=(30, 6, 4)), 3),
    "23 and 1 client": _digits(partial(_of_sizes, sizes=(23, 1)), 2),
    "2 x 12 and 8 of noise": _digits(partial(_strangers, permuted=False), 3),
    "2 x 12 and 8 permuted": _digits(partial(_strangers, permuted=True), 10),
    "near: 0, 15, 90, 105 degrees": _digits(_near, 4),
}


# -- regressions -------------------------------------------------------------------------------------------


def _regressions(seed: int, **settings: Any) -> Federated:
    return mixed_regression(seed=seed, **settings)


def mixture(
    k: int,
    clients: int,
    examples: int | Sequence[int],
    dim: int,
    noise: float,
    rate: float | None = None,
    **more: Any,
) -> Population:
    """Linear regressions of k models."""
    make = partial(_regressions, k=k, clients=clients, examples=examples, dim=dim, noise=noise, **more)
    local = SGD(lr=rate or (0.03 if dim > 20 else 0.08), steps=STEPS)
    return Population(make, None if "spread" in more else k, Learner(Linear(), "squared", local))


REGRESSIONS: dict[str, Population] = {
    **{
        f"{k} of 50 coordinates, {n} examples": mixture(k, 60, n, 50, 0.1)
        for n in (10, 20)
        for k in (1, 2, 3, 4, 5)
    },
    "3 of 10 coordinates, 2 to 60 examples": mixture(
        3,
        60,
        _in_turn((2, 12, 60), 3, 60),
        10,
        0.1,
        rate=0.02,  # with more, a single example of ten coordinates is overshot
    ),
    "10 groups of 6": mixture(10, 60, 20, 20, 0.07),
    "alike, noise 0.7": mixture(1, 40, 20, 10, 0.7),
    "weak separation": mixture(3, 60, 20, 10, 0.7, scale=0.5),
    "spread 0.3": mixture(2, 40, 40, 20, 0.07, spread=0.3),
    "spread 0.15": mixture(2, 40, 40, 20, 0.3, spread=0.15),
}
