"""Does IFCA recover the true models? Section 6.1 of its paper, many trials as one compiled program.

A trial draws true models and the clients' data on the device, then runs IFCA from several starts with
several step sizes side by side: each pair of these is a restart of the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from coterie.algorithms import IFCA
from coterie.algorithms.state import Step
from coterie.data.partition import cluster_sizes
from coterie.data.shards import Bucket, Shards, Spec
from coterie.federation import Federation
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import Linear, stacked


@dataclass(frozen=True)
class Problem:
    """Everything about a trial that shapes its program.

    Parameters
    ----------
    k, clients, examples, dim
        The paper's k, m, n and d.
    starts, rates
        How many random starts, and the step sizes that each of them is tried with.
    rounds
        The paper's T.
    rescaled
        Whether true models are rescaled to norm R, or are R times their Bernoulli coordinates.
    """

    k: int
    clients: int
    examples: int
    dim: int
    starts: int
    rates: tuple[float, ...]
    rounds: int
    rescaled: bool = True

    @property
    def spec(self) -> Spec:
        return Spec((self.dim,), "float32", (), "float32")

    @property
    def replicas(self) -> int:
        return self.starts * len(self.rates)

    def learner(self) -> Learner:
        """Linear regression with squared loss; the step size of every replica."""
        rates: Any = jnp.tile(jnp.asarray(self.rates, jnp.float32), self.starts)
        return Learner(Linear(), loss="squared", local=SGD(lr=rates, steps=1)).for_data(self.spec)

    def simulation(self) -> Simulation:
        """Clients of the right size that wait for their data."""
        nothing, m, n = np.zeros((), np.float32), self.clients, self.examples
        x, y = np.broadcast_to(nothing, (m, n, self.dim)), np.broadcast_to(nothing, (m, n))
        clients = np.arange(m)
        shards = Shards(clients, self.spec, [Bucket(x, y, np.full(m, n), clients)])
        # on an accelerator linear models run best all at once; timing that for every size would take long
        batch: Any = "auto" if jax.default_backend() == "cpu" else m
        return Simulation(shards, batch=batch, precision="float32").with_learner(self.learner())

    def algorithm(self) -> IFCA:
        """IFCA with gradient averaging (option I), as the section says."""
        init = CoinFlips(len(self.rates))
        return IFCA(self.k, n_init=self.replicas, init=init, rounds=self.rounds, average="gradients")


@dataclass(frozen=True)
class CoinFlips:
    """An initialiser: coordinates are Bernoulli(0.5). Consecutive restarts, `each` of them, start alike."""

    each: int

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        one = learner.shapes(federation.spec)
        size = sum(leaf.size for leaf in jax.tree.leaves(one))
        flips = jax.vmap(lambda key: _coins(key, (size,)))(keys[:: self.each].reshape(-1))
        models = stacked.from_matrix(flips, one)
        restarts, k = keys.shape
        return jax.tree.map(
            lambda leaf: jnp.repeat(leaf.reshape(restarts // self.each, k, *leaf.shape[1:]), self.each, 0),
            models,
        )


@partial(jax.jit, static_argnums=0)
def trials(
    problem: Problem, simulation: Simulation, keys: Key[Array, " trials"], separation: Any, noise: Any
) -> dict[str, Float[Array, "trials starts rates"]]:
    """The distances of what was learned from the truth, by rule, for one trial per key."""

    def trial(key: Key[Array, ""]) -> dict[str, Float[Array, "starts rates"]]:
        models, true = learned(problem, simulation, key, separation, noise)
        return distances(models, true)

    found: dict[str, Array] = jax.lax.map(trial, keys)
    return found


def learned(
    problem: Problem, simulation: Simulation, key: Key[Array, ""], separation: Any, noise: Any
) -> tuple[Float[Array, "starts rates k d"], Float[Array, "k d"]]:
    """One trial: the models that IFCA learns from each start with each step size, and the true ones."""
    data, starts = jax.random.split(key)
    x, y, true = drawn(problem, data, separation, noise)
    federation, learner, algorithm = simulation.with_examples(x, y), problem.learner(), problem.algorithm()
    state = algorithm.start(federation, learner, starts)
    steps = Step(jnp.arange(problem.rounds), algorithm.round_keys(key))
    state, _ = jax.lax.scan(
        lambda state, step: (algorithm.round(federation, learner, state, step)[0], None), state, steps
    )
    models = jax.vmap(stacked.to_matrix)(state.models)
    return models.reshape(problem.starts, len(problem.rates), problem.k, problem.dim), true


def drawn(
    problem: Problem, key: Key[Array, ""], separation: Any, noise: Any
) -> tuple[Float[Array, "m n d"], Float[Array, "m n"], Float[Array, "k d"]]:
    """The clients' data and the true models: equal clusters, x ~ N(0, I), y = <x, theta*> + noise."""
    m, n, d, k = problem.clients, problem.examples, problem.dim, problem.k
    coins, features, errors = jax.random.split(key, 3)
    true = _coins(coins, (k, d))
    if problem.rescaled:
        norm = jnp.linalg.norm(true, axis=1, keepdims=True)
        # a model of zeros has no norm to rescale
        true = jnp.where(norm > 0, true / norm, 1 / jnp.sqrt(d))
    true = separation * true
    x = jax.random.normal(features, (m, n, d))
    own = jnp.repeat(true, jnp.asarray(cluster_sizes(m, k)), axis=0, total_repeat_length=m)
    clean = jnp.einsum("mnd,md->mn", x, own, precision=jax.lax.Precision.HIGHEST)
    return x, clean + noise * jax.random.normal(errors, (m, n)), true


def distances(
    models: Float[Array, "*batch k d"], true: Float[Array, "k d"]
) -> dict[str, Float[Array, "*batch"]]:
    """How far learned models are from the true ones, on average over the k of them, by three rules.

    `printed`: the j-th from the j-th, as the formula in the paper reads. `matched`: under the permutation
    that is best, since the order of learned models means nothing. `nearest`: each learned model from the true
    one next to it, as in the released code, where k copies of one true model are as good as all k.
    Infinite where training diverged.
    """
    k = len(true)
    apart = jnp.linalg.norm(models[..., :, None, :] - true, axis=-1)  # (..., learned, true)
    each = jnp.arange(k)
    ways = jnp.asarray(list(permutations(range(k))))
    found = {
        "printed": apart[..., each, each].mean(-1),
        "matched": apart[..., each, ways].mean(-1).min(-1),
        "nearest": apart.min(-1).mean(-1),
    }
    return {rule: jnp.where(jnp.isfinite(distance), distance, jnp.inf) for rule, distance in found.items()}


def _coins(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    return jax.random.bernoulli(key, 0.5, shape).astype(jnp.float32)
