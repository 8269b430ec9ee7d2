"""Phase 1 in the experiments: exactly as the paper prints it, and the anchors of every trial."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from coterie import keys
from coterie.algorithms.lockstep import carried_out
from coterie.errors import LearnerError
from coterie.federation.exchange import Server
from coterie.initialise import MomentDescent
from coterie.initialise.anchors import Anchors, matrix
from coterie.learn.learner import Learner
from coterie.models import Linear
from coterie.papers.mixed_regression.problem import SCALED, Problem, populations, separation, simulations

K = 3
NEAR_ENOUGH = 1 / 3  # of Delta: from there Theorem 2 has Phase 2 converge
# every constant of the box and of section V. The features are N(0, I), so that alpha = beta = 1; Delta is
# each trial's own. Section V does not print epsilon: Theorem 1 wants a constant below alpha / 8. T_2 is
# large, since section V has a direct decomposition in the place of iterations
AS_PRINTED = MomentDescent(
    anchors=math.ceil(3 * K * math.log(K)),
    draw="uniform",
    iterations=5,
    estimator="two",
    subspace="svd",
    power_iterations=1000,
    alpha=1.0,
    beta=1.0,
    epsilon=1 / 16,
    scale=SCALED,
)


def descents(
    problem: Problem, trials: int, settings: MomentDescent, seed: int, *, true_separation: bool
) -> list[list[Anchors]]:
    """The anchors of every trial at the start and after each iteration, given the true Delta or not."""
    found = []
    clients = simulations(problem, trials, seed)
    for trial, data in enumerate(populations(problem, trials, seed)):
        own = replace(settings, separation=separation(data)) if true_separation else settings
        learner = Learner(Linear(), "half_squared").for_data(data.train.spec)
        federation = clients[trial].with_learner(learner)
        key = jax.random.fold_in(jax.random.fold_in(keys.purpose(seed, "anchors"), trial), 0)
        trace = own.trace(Server.of(federation, learner, seed), key, problem.k)
        found.append(carried_out(federation, trace, key))
    return found


def centres(anchors: Anchors, k: int, separation: float | None) -> Float[Array, "k d"]:
    """Line 16; k times the mean of all anchors where there are fewer than k groups, as before the first step.

    The paper does not say what is to be done then. Of k equal models all clients take the first in the first
    round of Phase 2, which sets it apart from the others; from there it goes on as from any start.
    """
    try:
        return jnp.asarray(matrix(anchors.centres(k, separation), 1))
    except LearnerError:
        theta = matrix(anchors.models, 1)
        return jnp.broadcast_to(jnp.asarray(theta.mean(axis=0)), (k, theta.shape[1]))
