"""IFCA as section 5 of its paper analyses it: near the true models, with new examples in every round.

The clients of a cluster have a linear model with squared loss. Of a round's 2 n' examples per client one half
is for finding its cluster, the other for its gradient; the server takes one step (option I). Features have
variances from mu to 1, in equal steps: the population loss is 2 mu-strongly convex and 2-smooth, and with
mu = 1 this is section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from coterie.algorithms import IFCA
from coterie.algorithms.algorithm import State
from coterie.algorithms.rounds import Step, one_round
from coterie.data.shards import Bucket, Shards, Spec
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import Linear, stacked

EXACT = jax.lax.Precision.HIGHEST
NEAR = 0.25  # of sqrt(mu) Delta: how far each start is from its true model, Assumptions 1 and 6


@dataclass(frozen=True)
class Mixture:
    """Everything that shapes the program of a run.

    Attributes
    ----------
    sizes
        Clients per cluster.
    examples
        n', what a client has for each of the two uses in a round.
    dim
        d.
    rounds
        T.
    runs
        How many, with draws of their own.
    """

    sizes: tuple[int, ...]
    examples: int
    dim: int
    rounds: int
    runs: int

    @property
    def truth(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @property
    def spec(self) -> Spec:
        return Spec((self.dim,), "float32", (), "float32")


@lru_cache(maxsize=1)
def simulation(mixture: Mixture) -> Simulation:
    """Clients of the right size that wait for their data."""
    nothing, m, n = np.zeros((), np.float32), sum(mixture.sizes), 2 * mixture.examples
    x, y = np.broadcast_to(nothing, (m, n, mixture.dim)), np.broadcast_to(nothing, (m, n))
    shards = Shards(np.arange(m), mixture.spec, [Bucket(x, y, np.full(m, n), np.arange(m))])
    return Simulation(shards, batch=m, precision="float32")


@partial(jax.jit, static_argnums=0)
def courses(
    mixture: Mixture,
    clients: Simulation,
    each: Key[Array, " runs"],
    separation: Any,
    noise: Any,
    rate: Any,
    flattest: Any,
) -> tuple[Float[Array, "runs rounds+1"], Float[Array, "runs rounds"]]:
    """The largest distance of a model from its true one before and after every round, and who is misplaced.

    Parameters
    ----------
    separation, noise
        Delta, the distance between any two true models, and sigma.
    rate
        gamma.
    flattest
        mu, the least variance of a feature.
    """
    k, m, d, n = len(mixture.sizes), sum(mixture.sizes), mixture.dim, 2 * mixture.examples
    learner = Learner(Linear(), loss="squared", local=SGD(lr=rate, steps=1)).for_data(mixture.spec)
    # one round at a time, of new examples: parts 0 and 1 of two
    algorithm = IFCA(k, n_init=1, rounds=1, average="gradients", resample=True)
    one, truth = learner.shapes(mixture.spec), jnp.asarray(mixture.truth)
    federation = clients.with_learner(learner)
    deviations = jnp.sqrt(jnp.linspace(flattest, 1.0, d))

    def run(key: Key[Array, ""]) -> tuple[Array, Array]:
        of_truth, of_start, of_rounds = jax.random.split(key, 3)
        directions = jnp.linalg.qr(jax.random.normal(of_truth, (d, k)))[0].T
        true = separation / jnp.sqrt(2) * directions
        away = jax.random.normal(of_start, (k, d))
        away = away / jnp.linalg.norm(away, axis=1, keepdims=True)
        begin = true + NEAR * jnp.sqrt(flattest) * separation * away
        state = algorithm.state_of(stacked.from_matrix(begin, one), m)
        states: State = jax.tree.map(lambda a: jnp.asarray(a)[None], state)

        def once(states: State, key: Key[Array, ""]) -> tuple[State, tuple[Array, Array]]:
            of_x, of_noise = jax.random.split(key)
            x = deviations * jax.random.normal(of_x, (m, n, d))
            y = jnp.einsum("mnd,md->mn", x, true[truth], precision=EXACT)
            y = y + noise * jax.random.normal(of_noise, (m, n))
            step = Step(jnp.asarray(0), key)
            after, _ = one_round(algorithm, federation.with_examples(x, y), learner, states, step)
            return after, (distance(after), (after.assignment[0] != truth).mean())

        def distance(states: State) -> Array:
            models = stacked.to_matrix(jax.tree.map(lambda a: a[0], states.models))
            farthest: Array = jnp.linalg.norm(models - true, axis=1).max()
            return farthest

        _, (error, misplaced) = jax.lax.scan(once, states, jax.random.split(of_rounds, mixture.rounds))
        return jnp.concatenate([distance(states)[None], error]), misplaced

    found: tuple[Array, Array] = jax.lax.map(run, each)
    return found


def floor(error: Float[np.ndarray, "runs rounds+1"]) -> Float[np.ndarray, " runs"]:
    """What the distance comes to: its mean over the last quarter of the rounds."""
    last: np.ndarray = error[:, -(error.shape[1] // 4) :].mean(axis=1)
    return last


def contraction(error: Float[np.ndarray, "runs rounds+1"]) -> float:
    """By what a round multiplies the distance, while it is at least ten times what it comes to.

    The geometric mean over the rounds of all runs, of which the first counts in any case.
    """
    least = 10 * floor(error)[:, None]
    before, after = error[:, :-1], error[:, 1:]
    far = np.cumprod(after >= least, axis=1).astype(bool)
    far[:, 0] = True
    return float(np.exp(np.log(after[far] / before[far]).mean()))
