"""The data of section V: three populations of clients, ever more unequal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import jax
import numpy as np

from coterie.data.federated import Federated
from coterie.data.synthetic import mixed_regression
from coterie.federation.simulation import Simulation
from coterie.papers.experiment import Scale

SCALED, NOISE = 2.0, 0.2  # true models and starts are 2 / sqrt(d) * N(0, I), the noise is 0.2 * N(0, 1)
FEW, MANY = 10, 50  # examples of a client
TITLES = {
    1: "balanced local data and balanced cluster partition",
    2: "unbalanced local data and balanced cluster partition",
    3: "unbalanced local data and unbalanced cluster partition",
}
SMALLER = {"paper": 1, "small": 2, "smoke": 5}  # by how much d and the number of clients are divided


@dataclass(frozen=True)
class Problem:
    """The clients of one of the figures."""

    figure: int
    k: int
    dim: int
    sizes: tuple[int, ...]  # examples of each client
    proportions: tuple[float, ...]  # of the clusters
    noise: float = NOISE


def problem(figure: int, scale: Scale) -> Problem:
    """The population of a figure: of the paper's size, or a fraction of it."""
    by = SMALLER[scale]
    return Problem(
        figure=figure,
        k=3,
        dim=100 // by,
        sizes=(MANY,) * (200 // by) if figure == 1 else (FEW,) * (900 // by) + (MANY,) * 20,
        proportions=(0.2, 0.3, 0.5) if figure == 3 else (1 / 3, 1 / 3, 1 / 3),
    )


@lru_cache(maxsize=2)
def populations(problem: Problem, trials: int, seed: int) -> tuple[Federated, ...]:
    """The clients of every trial; the true models are the same for all figures."""
    return tuple(
        mixed_regression(
            k=problem.k,
            clients=len(problem.sizes),
            examples=problem.sizes,
            dim=problem.dim,
            noise=problem.noise,
            scale=SCALED,
            proportions=problem.proportions,
            seed=seed * 1000 + trial,
        )
        for trial in range(trials)
    )


@lru_cache(maxsize=2)
def simulations(problem: Problem, trials: int, seed: int) -> tuple[Simulation, ...]:
    """A federation of the clients of every trial."""
    batch: Any = "auto" if jax.default_backend() == "cpu" else len(problem.sizes)
    return tuple(
        Simulation(data.train, batch=batch, precision="float32")
        for data in populations(problem, trials, seed)
    )


def separation(data: Federated) -> float:
    """Delta: the least distance between two true models."""
    models = np.asarray(data.models)
    return min(float(np.linalg.norm(one - other)) for one, other in combinations(models, 2))


def smallest_share(data: Federated) -> float:
    """rho: the share of all examples that the smallest cluster has."""
    held = np.bincount(np.asarray(data.truth), data.train.sizes, minlength=len(np.asarray(data.models)))
    return float(held.min() / held.sum())


def largest_curvature(data: Federated) -> float:
    """max_i ||x_i||^2 / n_i, which times eta is the gamma of section IV-B."""
    return max(float(np.linalg.norm(x, 2) ** 2 / len(x)) for x, _ in data.train)
