"""Clients with known clusters, on which methods are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array

from coterie.data.digits import inverted_digits, rotated_digits
from coterie.data.federated import Federated
from coterie.data.partition import cluster_sizes
from coterie.data.shards import Shards
from coterie.data.synthetic import mixed_regression
from coterie.models import MLP, Linear
from coterie.models.layers import Layers

TEST_IMAGES = 0  # the seed by which test images are held out, the same for every draw


@dataclass(frozen=True)
class Population:
    """Clients with known clusters, and the model that they train."""

    make: Callable[[int, int], Federated]  # given how many, and the seed
    model: Callable[[int], Any]  # given the width of a hidden layer
    note: str
    k: int = 2  # clusters
    regression: bool = False
    # what the paper has to say of such clients: its tables, its theorems, or nothing
    said: Literal["tables", "theory", "nothing"] = "tables"

    @property
    def loss(self) -> str:
        return "squared" if self.regression else "cross_entropy"

    @property
    def distance(self) -> str:
        """Of models: Euclidean in section 4, where models are linear; the cross-cluster loss in section 5."""
        return "l2" if self.regression else "cross_loss"


@dataclass(frozen=True)
class CoinFlips(Linear):
    """A linear model that starts from coordinates that are 0 or 1, as in the released code."""

    def init(self, key: Any, x: Array) -> Layers:
        fresh = super().init(key, x)
        flips: Layers = jax.tree.map(lambda a: jax.random.bernoulli(key, 0.5, a.shape).astype(a.dtype), fresh)
        return flips


def released_mixture(clients: int, seed: int) -> Federated:
    """Two linear models of 1,000 coordinates, each 0 or 1; 100 examples per client, noise 0.001.

    The released code multiplies the targets of the test examples by the noise; here they are as in training.
    """
    rng = np.random.default_rng(seed)
    models = rng.integers(0, 2, (2, 1000)).astype(float)
    truth = np.repeat(np.arange(2), cluster_sizes(clients, 2))

    def draw() -> Shards:
        xs = [rng.standard_normal((100, 1000)) for _ in truth]
        ys = [x @ models[j] + 0.001 * rng.standard_normal(100) for x, j in zip(xs, truth, strict=True)]
        return Shards.from_lists(xs, ys)

    return Federated(train=draw(), test=draw(), truth=truth, models=models, name="mixture of regressions")


def _network(hidden: int) -> MLP:
    return MLP(hidden=(hidden,))


_digits = {"unseen": 0, "disjoint": True, "test_seed": TEST_IMAGES}

POPULATIONS = {
    "rotated": Population(
        lambda clients, seed: rotated_digits(clients, seed=seed, **_digits),  # type: ignore[arg-type]
        _network,
        "rotated: scikit-learn's 1,797 digits of 8 x 8 pixels at four angles, where the paper has the 70,000 "
        "of MNIST. As there, no two clients hold the same image, in any cluster.",
        k=4,
    ),
    "inverted": Population(
        lambda clients, seed: inverted_digits(clients, seed=seed, **_digits),  # type: ignore[arg-type]
        _network,
        "inverted: the same digits, light on dark for half of the clients.",
    ),
    "equal": Population(
        lambda clients, seed: mixed_regression(2, clients, 40, 20, noise=0.5, seed=seed),
        lambda hidden: Linear(),
        "equal: two linear models in 20 dimensions, 40 examples per client, noise 0.5.",
        regression=True,
        said="theory",
    ),
    "spread": Population(
        lambda clients, seed: mixed_regression(2, clients, 40, 20, noise=0.3, spread=0.2, seed=seed),
        lambda hidden: Linear(),
        "spread: the same with noise 0.3 and models that differ by up to 0.4 within a cluster (epsilon_1).",
        regression=True,
        said="theory",
    ),
    "released": Population(
        released_mixture,
        lambda hidden: CoinFlips(),
        "released: the mixture of the released code, which is in no table of the paper: two models of 1,000 "
        "coordinates 0 or 1, 100 examples per client, noise 0.001. All training starts from coordinates 0 or "
        "1. A client alone cannot know a model of so many coordinates.",
        regression=True,
        said="nothing",
    ),
}
