"""Mixtures of regressions: the generators of both theory papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coterie.data.federated import Federated
from coterie.data.partition import cluster_sizes
from coterie.data.shards import Shards
from coterie.errors import SettingError


def mixed_regression(
    k: int = 2,
    clients: int = 100,
    examples: int | Sequence[int] = 100,
    dim: int = 20,
    noise: float = 0.1,
    parameters: Literal["gaussian", "bernoulli"] = "gaussian",
    scale: float = 1.0,
    proportions: Sequence[float] | None = None,
    spread: float = 0.0,
    seed: int = 0,
) -> Federated:
    """Clients whose data follow one of k linear models: y = <x, theta_z> + noise, x ~ N(0, I).

    Parameters
    ----------
    k, clients, dim
        Number of models, of clients, and of coordinates of x.
    examples
        Examples per client: a number, or one number per client.
    noise
        Standard deviation of the noise on y.
    parameters, scale
        `"gaussian"`: theta_j = scale * N(0, I) / sqrt(dim). `"bernoulli"`: coordinates Bernoulli(0.5), then
        rescaled to norm `scale`.
    proportions
        Probability of each cluster, from which every client draws its label; equal cluster sizes
        when not given.
    spread
        How far the model of a client is from that of its cluster: in a random direction of its own, so that
        no two clients of a cluster need be equal (epsilon_1 of the SR-FCA paper is at most twice this).
    seed
        Everything random.

    Returns
    -------
    Federated
        With `truth` and `models`, shape (k, dim); `test` holds as many fresh examples per client.
    """
    if min(k, clients, dim) < 1 or noise < 0 or scale <= 0 or spread < 0:
        raise SettingError(
            "need k >= 1, clients >= 1, dim >= 1, noise >= 0, scale > 0, spread >= 0; "
            f"got {k}, {clients}, {dim}, {noise}, {scale}, {spread}."
        )
    rng = np.random.default_rng(seed)
    sizes = (
        np.broadcast_to(np.asarray(examples), (clients,)) if np.ndim(examples) == 0 else np.asarray(examples)
    )
    if sizes.shape != (clients,) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise SettingError("examples must be a positive whole number, or one such number per client.")
    models = _parameters(k, dim, parameters, scale, rng)
    if proportions is None:
        truth = np.repeat(np.arange(k), cluster_sizes(clients, k))
    else:
        p = np.asarray(proportions, float)
        if p.shape != (k,) or (p < 0).any() or not np.isclose(p.sum(), 1):
            raise SettingError(f"proportions must be {k} non-negative numbers that add up to 1.")
        truth = rng.choice(k, size=clients, p=p)

    own = models[truth]
    if spread:
        away = rng.standard_normal(own.shape)
        own = own + spread * away / np.linalg.norm(away, axis=1, keepdims=True)

    def draw() -> Shards:
        xs = [rng.standard_normal((n, dim)) for n in sizes]
        ys = [x @ theta + noise * rng.standard_normal(len(x)) for x, theta in zip(xs, own, strict=True)]
        return Shards.from_lists(xs, ys)

    return Federated(train=draw(), test=draw(), truth=truth, models=models, name="mixture of regressions")


def _parameters(k: int, dim: int, kind: str, scale: float, rng: np.random.Generator) -> np.ndarray:
    theta: np.ndarray
    if kind == "gaussian":
        theta = rng.standard_normal((k, dim)) / np.sqrt(dim)
        return scale * theta
    if kind == "bernoulli":
        theta = rng.integers(0, 2, (k, dim)).astype(float)
        while not theta.any(axis=1).all():  # a model of zeros has no norm to rescale
            blank = ~theta.any(axis=1)
            theta[blank] = rng.integers(0, 2, (int(blank.sum()), dim))
        theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        return scale * theta
    raise SettingError(f"parameters must be 'gaussian' or 'bernoulli', not {kind!r}.")
