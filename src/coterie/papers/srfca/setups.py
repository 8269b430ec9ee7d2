"""The paper's six data sets: who the clients are, what they train, and for how long.

What the text prints is in `TEXT` as printed; what it does not print (step sizes, batches, rounds, how many
real clients take part, beta of each data set) is the released code's `best_hp`. `AUTHORS` has what that code
does otherwise where it moves a number, and `SMALL` and `SMOKE` are smaller problems of the same shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import optax

from coterie import data as sources
from coterie.data.federated import Federated
from coterie.data.shards import Bucket, Shards
from coterie.federation.simulation import Precision
from coterie.learn.augment import Crop
from coterie.learn.learner import Learner
from coterie.learn.local import SGD, LocalUpdate, Optax
from coterie.models import CNN, LSTM, MLP, ResNet9
from coterie.papers.experiment import Scale
from coterie.papers.srfca.triangular import Triangular


@dataclass(frozen=True)
class Setup:
    """How one data set is trained on: plain values, which decide the results and are recorded with them.

    Attributes
    ----------
    k, splits
        How many clusters IFCA and its like are told, and up to how many CFL splits.
    iterations, local
        Steps of a client in one training (ONE_SHOT, a REFINE, or another method), and how many of them
        between two exchanges.
    optimiser, rate, others
        What a client does with a gradient; the step size, and other step sizes for some of the methods.
    drawn
        Who takes part in a round: a share of all clients, or so many for each of the method's clusters.
    refines, trim
        R and beta. Table 5 has two REFINEs in any case: see `trial`.
    released
        lambda of the released code in mean losses, or its share of all pairs; None where that has no meaning.
    width
        Of the network: see `learner`.
    most
        Examples of a client: with images, how many each trains on, all where None. Of real clients, what
        they are cut to, so that all seeds have the same shapes.
    raw
        Whether pixels are numbers up to 255, and not up to 1.
    decides
        Whether there is enough training for what the paper says to be judged.
    """

    clients: int
    k: int
    splits: int
    iterations: int
    local: int
    batch: int
    optimiser: Literal["adam", "sgd", "triangular"]
    rate: float
    refines: int
    trim: float
    width: int
    others: tuple[tuple[str, float], ...] = ()
    drawn: float | int = 1.0
    released: float | str | None = None
    most: int | None = None
    raw: bool = False
    labels: tuple[tuple[int, ...], ...] | None = None
    precision: Precision = "tf32"
    decides: bool = True

    @property
    def rounds(self) -> int:
        return max(1, self.iterations // self.local)

    def rate_of(self, method: str) -> float:
        return dict(self.others).get(method, self.rate)

    def taking_part(self, clusters: int) -> float | int:
        """`participation` of a method with so many clusters."""
        return self.drawn if isinstance(self.drawn, float) else min(self.drawn * clusters, self.clients)


MNIST = Setup(100, 2, 2, 280, 5, 50, "adam", 2e-4, 2, 0.15, width=200)
FIRST, LAST = tuple(range(7)), tuple(range(3, 10))
# 48 steps between exchanges: the text has FedAvg and does not say how many, and the released code exchanges
# after each, for which a client that tells its loss in each round would look at all images for every step
CIFAR = Setup(32, 2, 2, 2400, 48, 100, "triangular", 0.5, 2, 0.0, 64, drawn=0.5, precision="bfloat16")
TEXT: dict[str, Setup] = {
    "inverted-mnist": MNIST,
    "rotated-mnist": replace(
        MNIST, k=4, splits=4, iterations=250, others=(("global", 7.4e-4), ("cfl", 9.1e-4)), released=1.0
    ),
    "rotated-cifar10": CIFAR,
    "label-cifar10": replace(CIFAR, labels=(FIRST, LAST)),
    "femnist": Setup(
        50, 4, 2, 1000, 5, 100, "sgd", 0.04, 1, 0.2092, 2048, drawn=10, released="30%", most=400
    ),
    "shakespeare": Setup(
        50, 3, 1, 2400, 400, 10, "sgd", 0.8, 1, 0.15, 256, drawn=10, released="25%", most=4096
    ),
}
_RELEASED = replace(CIFAR, drawn=1.0, refines=1)
AUTHORS: dict[str, Setup] = {
    # the released lambda (0.77) times the batch, which makes sense for raw pixels only
    "inverted-mnist": replace(TEXT["inverted-mnist"], drawn=10, raw=True, released=38.5),
    "rotated-mnist": replace(TEXT["rotated-mnist"], drawn=10),
    # the released lambda (0.0186 and 0.0140) times the examples of a client, divided by its batches
    "rotated-cifar10": replace(_RELEASED, clients=16, most=3125, released=1.82),
    "label-cifar10": replace(_RELEASED, released=1.39, labels=(tuple(range(6)), (4, 5))),
}
FEW = {"clients": 8, "precision": "float32", "decides": False}
FEW_PHOTOGRAPHS = {**FEW, "iterations": 96, "local": 24, "batch": 20, "rate": 0.1, "width": 4, "most": 200}
SMALL: dict[str, dict[str, Any]] = {
    "inverted-mnist": {"clients": 20, "most": 600, "precision": "float32"},
    "rotated-mnist": {"clients": 20, "most": 600, "precision": "float32"},
    "rotated-cifar10": FEW_PHOTOGRAPHS,
    "label-cifar10": FEW_PHOTOGRAPHS,
    "femnist": {**FEW, "k": 2, "iterations": 100, "batch": 20, "width": 64, "drawn": 4, "most": 128},
    "shakespeare": {**FEW, "k": 2, "iterations": 80, "local": 20, "width": 32, "drawn": 4, "most": 256},
}
TINY = {"decides": False, "precision": "float32", "iterations": 4, "local": 2, "batch": 4}
SMOKE: dict[str, dict[str, Any]] = {
    "inverted-mnist": {**TINY, "clients": 8, "width": 8, "most": 12},
    "rotated-mnist": {**TINY, "clients": 8, "width": 8, "most": 12},
    "rotated-cifar10": {**TINY, "clients": 6, "width": 2, "most": 8},
    "label-cifar10": {**TINY, "clients": 6, "width": 2, "most": 8},
    "femnist": {**TINY, "clients": 6, "k": 2, "width": 8, "drawn": 2, "most": 8},
    "shakespeare": {**TINY, "clients": 6, "k": 2, "width": 4, "drawn": 2, "most": 8},
}


def setup(data: str, scale: Scale, preset: str) -> Setup:
    """The setup of a data set at one scale and in one reading."""
    whole = (AUTHORS if preset == "authors" else TEXT)[data]
    if scale == "paper":
        return whole
    change = dict({"small": SMALL, "smoke": SMOKE}[scale][data])
    if preset == "authors" and isinstance(whole.drawn, int) and "drawn" not in change:
        change["drawn"] = max(1, whole.drawn * change["clients"] // whole.clients)
    return replace(whole, **change)


def clients(data: str, setup: Setup, seed: int) -> Federated:
    """The clients of a draw."""
    own: dict[str, Any] = {"clients": setup.clients, "seed": seed}
    if data == "inverted-mnist":
        made = sources.inverted_mnist(**own, examples=setup.most)
        return _raw(made) if setup.raw else made
    if data == "rotated-mnist":
        return sources.rotated_mnist(**own, examples=setup.most, disjoint=True)
    if data == "rotated-cifar10":
        return sources.rotated_cifar10(**own, examples=setup.most)
    if data == "label-cifar10":
        assert setup.labels is not None
        return sources.label_cifar10(**own, examples=setup.most, labels=setup.labels)
    made = sources.femnist(**own) if data == "femnist" else sources.shakespeare(**own)
    assert setup.most is not None and made.test is not None
    return replace(made, train=_alike(made.train, setup.most), test=_alike(made.test, setup.most))


def learner(data: str, setup: Setup, rate: float, steps: int) -> Learner:
    """What clients know how to do, so many steps at a time."""
    local = _local(setup, rate, steps)
    if data in ("inverted-mnist", "rotated-mnist"):
        return Learner(MLP(hidden=(setup.width,)), "cross_entropy", local)
    if data in ("rotated-cifar10", "label-cifar10"):
        network = ResNet9(setup.width, groups=min(32, setup.width))
        return Learner(network, "smoothed_cross_entropy", local, Crop(pad=2, cutout=8))
    if data == "femnist":
        channels = (32, 64) if setup.width == TEXT["femnist"].width else (4, 8)
        return Learner(CNN(channels=channels, hidden=(setup.width,)), "cross_entropy", local)
    return Learner(LSTM(hidden=setup.width), "cross_entropy", local)


def _local(setup: Setup, rate: float, steps: int) -> LocalUpdate:
    how: dict[str, Any] = {"steps": steps, "batch_size": setup.batch}
    if setup.optimiser == "adam":
        return Optax(_adam(rate), **how)
    if setup.optimiser == "sgd":
        return SGD(rate, **how)
    whole = setup.iterations
    return Triangular(rate, momentum=0.9, weight_decay=5e-4, whole=whole, rise=whole // 16, **how)


@cache
def _adam(rate: float) -> optax.GradientTransformation:
    """One for each step size: another would be another program to compile."""
    return optax.adam(rate)


def _raw(made: Federated) -> Federated:
    """The same images with pixels from 0 to 255."""

    def unscaled(shards: Shards) -> Shards:
        return Shards(shards.ids, replace(shards.spec, scale=1.0), shards.buckets)

    assert made.test is not None
    return replace(made, train=unscaled(made.train), test=unscaled(made.test))


def _alike(shards: Shards, most: int) -> Shards:
    """The first `most` examples of each client, all in one bucket: one shape, whoever is drawn."""
    pairs = [(x[:most], y[:most]) for x, y in shards]
    sizes = np.array([len(y) for _, y in pairs], np.int32)
    rows = [np.arange(most) % size for size in sizes]  # what is beyond a client's size is masked
    x, y = (np.stack([pair[i][row] for pair, row in zip(pairs, rows, strict=True)]) for i in (0, 1))
    return Shards(shards.ids, shards.spec, [Bucket(x, y, sizes, np.arange(len(sizes)))])
