"""The images of section V-D: who holds which, and the test error of a method after every round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie import keys, metrics
from coterie.algorithms import FedX, Global, OneShotKMeans, Oracle
from coterie.algorithms.algorithm import Algorithm, State
from coterie.algorithms.lockstep import carried_out
from coterie.data.mnist import MNIST
from coterie.data.partition import cluster_sizes
from coterie.data.shards import Shards
from coterie.data.views import rotated
from coterie.errors import SettingError
from coterie.federation.exchange import Server
from coterie.federation.participants import Participants
from coterie.federation.simulation import Simulation
from coterie.initialise import MomentDescent
from coterie.learn import losses
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.models import Linear, stacked
from coterie.papers.experiment import Arrays
from coterie.papers.mixed_regression.problem import SCALED
from coterie.papers.mixed_regression.rounds import course


@dataclass(frozen=True)
class Digits:
    """The clients of Figure 4 or 5, and how long everything lasts."""

    figure: int
    rotations: tuple[int, ...]  # of the clusters
    rate: float  # eta
    clients: int  # beside the anchors
    images: int  # of each of them
    anchor_images: int  # of each anchor, of which every cluster has one
    iterations: int  # of Phase 1
    asked: int  # clients for the subspace, as printed
    rounds: int  # of Phase 2
    participants: int  # in each of them
    alone: int  # rounds that a client trains alone for one-shot clustering

    @property
    def k(self) -> int:
        return len(self.rotations)

    @property
    def anchors(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(range(self.clients, self.clients + self.k))


class Score(eqx.Module):
    """Of each cluster's test images under its best model, averaged over clusters."""

    loss: Float[Any, "*rounds"]
    error: Float[Any, "*rounds"]  # the share classified wrongly
    best: Int[Any, "*rounds k"]  # the model of lowest loss for each cluster


class HeldOut(eqx.Module):
    """The test set as every cluster sees it."""

    x: Float[Any, "k images pixels"]
    y: Int[Any, " images"]

    def of(self, learner: Learner, models: PyTree) -> Score:
        """What k models, or one for all, do on them."""

        def one(model: PyTree) -> tuple[Array, Array]:
            outputs = jax.vmap(lambda x: learner.model.apply(model, x))(self.x)
            loss = jax.vmap(lambda o: losses.named(learner.loss)(o, self.y).mean())(outputs)
            return loss, 1 - jax.vmap(lambda o: losses.correct(o, self.y).mean())(outputs)

        loss, error = jax.vmap(one)(models)
        return Score(loss.min(axis=0).mean(), error.min(axis=0).mean(), loss.argmin(axis=0))


def halved(images: np.ndarray) -> Float[np.ndarray, "images height width"]:
    """Images of half the height and width, from 0 to 1: means of 2 x 2 pixels of one byte."""
    n, height, width = images.shape
    parts = images.reshape(n, height // 2, 2, width // 2, 2)
    means: np.ndarray = parts.sum(axis=(2, 4), dtype=np.uint16).astype(np.float32) / np.float32(4 * 255)
    return means


@lru_cache(maxsize=1)  # the methods of a seed follow one another
def population(of: Digits, seed: int) -> tuple[Simulation, np.ndarray, HeldOut]:
    """The clients, with no image held twice, the cluster of each, and the test images."""
    images = MNIST.read(None)
    sizes = np.repeat([of.images, of.anchor_images], [of.clients, of.k])
    if sizes.sum() > len(images.kept):
        raise SettingError(
            f"{of.clients} clients with {of.images} images and {of.k} with {of.anchor_images} need "
            f"{sizes.sum()} images, and there are {len(images.kept)}."
        )
    held = np.random.default_rng(seed).permutation(images.kept)[: sizes.sum()]
    truth = np.concatenate([np.repeat(np.arange(of.k), cluster_sizes(of.clients, of.k)), np.arange(of.k)])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x, tested = halved(images.x[held]), halved(images.x[images.held_out])
    views = rotated(of.rotations, x.shape[1:])
    for cluster, view in enumerate(views):
        mine = truth[owner] == cluster
        x[mine] = view.change(x[mine])
    shards = Shards.from_flat(x.reshape(len(x), -1), images.y[held], owner, classes=10)
    seen = np.stack([view.change(tested).reshape(len(tested), -1) for view in views])
    test = HeldOut(jnp.asarray(seen), jnp.asarray(images.y[images.held_out], jnp.int32))
    return Simulation(shards, precision="float32"), truth, test


def measured(of: Digits, method: str, phase_one: Mapping[str, Any], seed: int) -> Arrays:
    """Test loss and error before the first and after every round, those of Phase 1 included.

    `phase_one` are settings of moment descent, for the two-phase system.
    """
    clients, truth, test = population(of, seed)
    learner = Learner(Linear(bias=True), "cross_entropy", SGD(lr=of.rate, steps=5)).for_data(clients.spec)
    clients = clients.with_learner(learner)
    server, key = Server.of(clients, learner, seed), keys.purpose(seed, "starts")
    facts: Arrays = {}
    whole: dict[str, Any] = {"rounds": of.iterations + of.rounds, "participation": of.participants}
    algorithm: Algorithm[Any]
    state: Any
    if method == "two-phase":
        descent = MomentDescent(of.anchors, iterations=of.iterations, scale=SCALED, **phase_one)
        trace = carried_out(clients, descent.trace(server, key, of.k), key)
        before = [jax.tree.map(jnp.asarray, now.models) for now in trace]
        algorithm = FedX(of.k, n_init=1, **whole | {"rounds": of.rounds})
        # each anchor is of a cluster of its own, so that its model is that of a group: line 16
        state = algorithm.state_of(before[-1], server.clients)
    elif method == "one-shot":
        algorithm = OneShotKMeans(of.k, alone=of.alone, weight="examples", **whole)
        blank = carried_out(clients, algorithm.start(server, key), key)
        state = carried_out(clients, algorithm.pause(server, blank, 0), key).state
        before = [state.models]
        facts["misclustering"] = np.array(metrics.misclustering(np.asarray(state.assignment), truth))
    else:
        algorithm, state = _from_random(method, of, server, whole, truth, key)
        before = [state.models]
    drawn = algorithm.draw(server, state, range(algorithm.rounds))
    assert drawn is not None
    after = _course(algorithm, learner, clients, state, clients.select(drawn.clients), test)
    begun = stacked.stack([_scored(learner, models, test) for models in before])
    if stacked.count(state.models) > 1:
        facts["collapsed"] = np.array(len(set(np.asarray(after.best)[-1].tolist())) < of.k)
    return {
        "losses": np.concatenate([begun.loss, after.loss]),
        "errors": np.concatenate([begun.error, after.error]),
        **facts,
    }


def _from_random(
    method: str, of: Digits, server: Server, whole: Mapping[str, Any], truth: np.ndarray, key: Any
) -> tuple[Algorithm[Any], State]:
    """The methods that begin with models drawn as section V has it."""
    like = server.learner.shapes(server.spec)
    dim = stacked.parameters(like)
    drawn = SCALED / math.sqrt(dim) * jax.random.normal(key, (of.k, dim))
    models = stacked.from_matrix(drawn, like)
    if method == "IFCA":
        algorithm: Algorithm[Any] = FedX(of.k, n_init=1, **whole)
        return algorithm, algorithm.state_of(models, server.clients)
    if method == "oracle":
        # as the two-phase system is averaged: see line 9 of Phase 2
        algorithm = Oracle(truth, weight="examples", normalise="participants", **whole)
        state = algorithm.state_of(models, server.clients)
        return algorithm, replace(state, assignment=jnp.asarray(truth, jnp.int32))
    algorithm = Global(weight="examples", **whole)
    return algorithm, algorithm.state_of(jax.tree.map(lambda a: a[:1], models), server.clients)


@partial(jax.jit, static_argnums=0)
def _course(
    algorithm: Algorithm[Any],
    learner: Learner,
    clients: Simulation,
    state: State,
    drawn: Participants,
    test: HeldOut,
) -> Score:
    with jax.default_matmul_precision("float32"):
        found: Score = course(
            algorithm, clients, learner, state, lambda models: test.of(learner, models), drawn
        )
    return found


@jax.jit
def _scored(learner: Learner, models: PyTree, test: HeldOut) -> Score:
    with jax.default_matmul_precision("float32"):
        return test.of(learner, models)
