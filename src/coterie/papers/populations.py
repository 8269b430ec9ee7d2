"""Clients with known clusters, on which methods are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.data.digits import inverted_digits, rotated_digits
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.data.synthetic import mixed_regression


@dataclass(frozen=True)
class Population:
    """Clients with known clusters."""

    make: Callable[[int, int], Federated]  # given how many, and the seed
    note: str
    regression: bool = False


POPULATIONS = {
    "rotated": Population(
        lambda clients, seed: rotated_digits(clients=clients, unseen=0, seed=seed),
        "rotated: scikit-learn's digits of 8 x 8 pixels at four angles, where the paper has MNIST.",
    ),
    "inverted": Population(
        lambda clients, seed: inverted_digits(clients=clients, unseen=0, seed=seed),
        "inverted: the same digits, light on dark for half of the clients.",
    ),
    "equal": Population(
        lambda clients, seed: mixed_regression(2, clients, 40, 20, noise=0.5, seed=seed),
        "equal: two linear models in 20 dimensions, 40 examples per client, noise 0.5.",
        regression=True,
    ),
    "spread": Population(
        lambda clients, seed: mixed_regression(2, clients, 40, 20, noise=0.3, spread=0.2, seed=seed),
        "spread: the same with noise 0.3 and models that differ by up to 0.4 within a cluster (epsilon_1).",
        regression=True,
    ),
    "released": Population(
        lambda clients, seed: mixed_regression(
            2, clients, 100, 1000, noise=0.001, parameters="bernoulli", scale=500**0.5, seed=seed
        ),
        "released: as the authors' code has it and the paper does not: two models of 1,000 coordinates 0 or "
        "1, 100 examples per client, noise 0.001. A client alone cannot know a model of so many coordinates.",
        regression=True,
    ),
}


def parted(train: Shards) -> tuple[Shards, Shards]:
    """Every client's examples but the last fifth, and the last fifth (one at least)."""
    first, last = [], []
    for x, y in train:
        cut = min(len(x) - 1, len(x) - len(x) // 5)
        first.append((x[:cut], y[:cut]))
        last.append((x[cut:], y[cut:]))

    def shards(pairs: list[tuple[np.ndarray, np.ndarray]]) -> Shards:
        xs, ys = zip(*pairs, strict=True)
        return Shards.from_lists(xs, ys, train.ids.tolist(), classes=train.spec.classes)

    return shards(first), shards(last)
