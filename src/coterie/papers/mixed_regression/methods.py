"""The methods of section V: how each of them begins, and its error after every iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from coterie import keys
from coterie.algorithms import FedX, Global, OneShotKMeans, known_clusters
from coterie.algorithms.algorithm import Algorithm, State
from coterie.algorithms.lockstep import carried_out
from coterie.data.federated import Federated
from coterie.evaluate.matching import best_match, contingency
from coterie.federation.exchange import Server
from coterie.initialise import MomentDescent, OneShot
from coterie.learn.learner import Learner
from coterie.learn.local import SGD, LocalUpdate
from coterie.learn.proximal import Proximal
from coterie.models import Linear, stacked
from coterie.papers.experiment import Arrays
from coterie.papers.mixed_regression.phase_one import AS_PRINTED, centres, descents
from coterie.papers.mixed_regression.problem import (
    FEW,
    SCALED,
    Problem,
    largest_curvature,
    populations,
    separation,
    simulations,
    smallest_share,
)
from coterie.papers.mixed_regression.rounds import distance, errors_by_round


@dataclass(frozen=True)
class Plan:
    """Clients, and how long everything lasts."""

    problem: Problem
    rate: float  # eta
    iterations: int  # of Phase 1
    rounds: int  # of Phase 2
    alone: int  # rounds that a client trains alone for one-shot clustering
    trials: int


@dataclass(frozen=True)
class Arm:
    """One curve."""

    label: str
    local: LocalUpdate
    panel: int  # 0: local updates of the two-phase system, 1: methods
    start: str  # "moments", "printed", "random", "common", "true" or "alone"


def arms(plan: Plan) -> dict[str, Arm]:
    """The curves by name."""
    steps = {s: SGD(lr=plan.rate, steps=s) for s in (1, 5, 10)}
    return {
        "s=1": Arm("FedAvg, s = 1", steps[1], 0, "moments"),
        "s=5": Arm("FedAvg, s = 5", steps[5], 0, "moments"),
        "s=10": Arm("FedAvg, s = 10", steps[10], 0, "moments"),
        "fedprox": Arm("FedProx", Proximal(lr=5 * plan.rate), 0, "moments"),
        "oracle": Arm("oracle", steps[5], 1, "true"),
        "ifca": Arm("IFCA", steps[5], 1, "random"),
        "one-shot": Arm("one-shot clustering", steps[5], 1, "alone"),
        "fedavg": Arm("vanilla FedAvg", steps[5], 1, "common"),
        "printed": Arm("two-phase, Phase 1 as printed", steps[5], 1, "printed"),
    }


def measured(plan: Plan, name: str, seed: int) -> Arrays:
    """The error of a method after every iteration (trials, 1 + iterations), and what else claims need."""
    arm, data = arms(plan)[name], populations(plan.problem, plan.trials, seed)
    learner = Learner(Linear(), "half_squared", arm.local).for_data(data[0].train.spec)
    begun = [_begin(plan, arm, learner, seed, trial) for trial in range(plan.trials)]
    before = [
        [float(distance(m, jnp.asarray(of.models, jnp.float32))) for m in one.before]
        for one, of in zip(begun, data, strict=True)
    ]
    after = errors_after(plan, begun[0].algorithm, learner, [one.state for one in begun], seed)
    found = {"error": np.concatenate([np.array(before), after], axis=1)}
    if arm.start == "true":  # once is enough: facts about the clients
        found["smallest_share"] = np.array([smallest_share(of) for of in data])
        found["largest_curvature"] = np.array([largest_curvature(of) for of in data])
    if arm.start == "alone":
        misplaced = [_misplaced(one.state, of) for one, of in zip(begun, data, strict=True)]
        few = np.array(plan.problem.sizes) == min(FEW, *plan.problem.sizes)
        found["misplaced"] = np.array([wrong.mean() for wrong in misplaced])
        if few.any():
            found["misplaced_few"] = np.array([wrong[few].mean() for wrong in misplaced])
    return found


def errors_after(
    plan: Plan, algorithm: Algorithm[Any], learner: Learner, states: Sequence[State], seed: int
) -> Float[np.ndarray, "trials rounds"]:
    """The error after every round of an algorithm that begins at these states."""
    data = populations(plan.problem, plan.trials, seed)
    true = jnp.stack([jnp.asarray(of.models, jnp.float32) for of in data])
    clients = simulations(plan.problem, plan.trials, seed)
    return np.asarray(errors_by_round(algorithm, learner, clients, states, true))


def two_phase(plan: Plan) -> MomentDescent:
    """Phase 1 as the library has it, from the start of section V."""
    return MomentDescent(iterations=plan.iterations, scale=SCALED)


@lru_cache(maxsize=2)
def _phase_one(plan: Plan, printed: bool, seed: int) -> tuple[list[Array], ...]:
    """The k models of every trial at the start and after each iteration of Phase 1."""
    settings = replace(AS_PRINTED, iterations=plan.iterations) if printed else two_phase(plan)
    found = descents(plan.problem, plan.trials, settings, seed, true_separation=printed)
    data = populations(plan.problem, plan.trials, seed)
    return tuple(
        [centres(now, plan.problem.k, separation(of) if printed else None) for now in trace]
        for trace, of in zip(found, data, strict=True)
    )


@dataclass(frozen=True)
class _Begun:
    """A trial that is ready for its rounds."""

    algorithm: Algorithm[Any]
    state: State
    before: list[Array]  # the models of the iterations so far


def begun(algorithm: Algorithm[Any], models: Array, before: list[Array], data: Federated) -> _Begun:
    """A trial whose rounds begin with these models."""
    like = Learner(Linear(), "half_squared").for_data(data.train.spec).shapes(data.train.spec)
    return _Begun(algorithm, algorithm.state_of(stacked.from_matrix(models, like), len(data.train)), before)


def _begin(plan: Plan, arm: Arm, learner: Learner, seed: int, trial: int) -> _Begun:
    """The models of a trial before its rounds, and the rounds that bring it to the last iteration."""
    data, k = populations(plan.problem, plan.trials, seed)[trial], plan.problem.k
    key = jax.random.fold_in(keys.purpose(seed, "starts"), trial)
    if arm.start in ("moments", "printed"):
        found = _phase_one(plan, arm.start == "printed", seed)[trial]
        return begun(FedX(k, n_init=1, rounds=plan.rounds), found[-1], found, data)
    whole = plan.iterations + plan.rounds
    if arm.start == "true":
        models = jnp.asarray(data.models, jnp.float32)
        return begun(FedX(k, n_init=1, rounds=whole), models, [models], data)
    if arm.start == "alone":
        algorithm = OneShotKMeans(k, alone=plan.alone, rounds=whole, weight="examples")
        federation = simulations(plan.problem, plan.trials, seed)[trial].with_learner(learner)
        server, own = Server.of(federation, learner, seed), jax.random.fold_in(key, 0)
        groups = carried_out(federation, OneShot(plan.alone).grouped(server, own, [k]), own)
        state = known_clusters.State(groups.models, jnp.asarray(groups.labels, jnp.int32))
        return _Begun(algorithm, state, [stacked.to_matrix(state.models)])
    models = SCALED / math.sqrt(plan.problem.dim) * jax.random.normal(key, (k, plan.problem.dim))
    if arm.start == "random":
        return begun(FedX(k, n_init=1, rounds=whole), models, [models], data)
    return begun(Global(rounds=whole, weight="examples"), models[:1], [models[:1]], data)


def _misplaced(state: State, data: Federated) -> np.ndarray:
    """Which clients are not in the cluster that matches their true one."""
    found, truth = np.asarray(state.assignment), np.asarray(data.truth)
    match = dict(zip(*best_match(contingency(found, truth)), strict=True))
    return np.array([match.get(c) != z for c, z in zip(found.tolist(), truth.tolist(), strict=True)])
