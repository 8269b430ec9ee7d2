"""What is measured of the models after every round, as a part of one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from coterie.algorithms.algorithm import Algorithm, State
from coterie.algorithms.rounds import Step, one_round
from coterie.federation.participants import Participants
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.models import stacked


def errors_by_round(
    algorithm: Algorithm[Any],
    learner: Learner,
    simulations: Sequence[Simulation],
    states: Sequence[State],
    true: Float[Array, "trials k d"],
) -> Float[Array, "trials rounds"]:
    """d(theta_t, theta*) after every round of every trial, each from its own state with its own clients.

    Rounds are those of the library: trials, whose clients must be alike in number and size, are only put
    side by side.
    """
    clients = _together([simulation.with_learner(learner) for simulation in simulations])
    found: Array = _run(algorithm, learner, clients, _together(states), true)
    return found


@partial(jax.jit, static_argnums=0)
def _run(
    algorithm: Algorithm[Any], learner: Learner, clients: Simulation, states: State, true: Array
) -> Float[Array, "trials rounds"]:
    def trial(of: tuple[Simulation, State, Array]) -> Float[Array, " rounds"]:
        federation, state, goal = of

        def error(models: PyTree) -> Float[Array, ""]:
            return distance(stacked.to_matrix(models), goal)

        errors: Array = course(algorithm, federation, learner, state, error)
        return errors

    found: Array = jax.lax.map(trial, (clients, states, true))
    return found


def course(
    algorithm: Algorithm[Any],
    federation: Simulation,
    learner: Learner,
    state: State,
    measure: Callable[[PyTree], PyTree],
    clients: Participants | None = None,
) -> PyTree:
    """What `measure` says of the models after every round, leading axis rounds.

    `clients` are those that take part, drawn for each of the rounds; all of them when None.
    """

    def once(state: State, round: tuple[Int[Array, ""], Any]) -> tuple[State, PyTree]:
        step = Step(round[0], jax.random.key(0), round[1])
        state, _ = one_round(algorithm, federation, learner, state, step)
        return state, measure(stacked.take(state.models, 0))

    alone = jax.tree.map(lambda a: a[None], state)  # a single start
    return jax.lax.scan(once, alone, (jnp.arange(algorithm.rounds), clients))[1]


def distance(models: Float[Array, "any d"], true: Float[Array, "k d"]) -> Float[Array, ""]:
    """(5) of the mixed-regression paper: min over permutations of max_l ||theta_pi(l) - theta*_l||.

    A single model for all is compared as k copies of it.
    """
    k = len(true)
    apart = jnp.linalg.norm(jnp.broadcast_to(models, true.shape)[:, None] - true, axis=-1)
    ways = jnp.asarray(list(permutations(range(k))))
    return jnp.min(jnp.max(apart[ways, jnp.arange(k)], axis=1))


def _together(several: Sequence[PyTree]) -> PyTree:
    return stacked.stack(several)
