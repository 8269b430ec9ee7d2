"""FEMNIST as the IFCA paper has it: writers, and methods that share a network's body or freeze it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie.algorithms import IFCA, Global, Local, OneShotKMeans, Oracle
from coterie.algorithms.observer import Moment, Observer
from coterie.clustering.result import Clustering
from coterie.data import femnist
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.federation.simulation import Simulation
from coterie.initialise.one_shot import k_means
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.learn.tasks import Evaluate, MeasureLosses, lowest
from coterie.models import CNN, Linear, stacked
from coterie.papers.experiment import Arrays

SHARED = "all but last"
PASSES = 5  # of a round, where the text leaves it open: as many as it has for CIFAR-10
EACH = 20  # rounds between evaluations in the released code, which reports the best of them


@dataclass(frozen=True)
class Writing:
    """The writers, the network, and how long it is trained.

    Attributes
    ----------
    writers, at_least
        How many, each with so many images.
    channels, hidden
        Of the network.
    rounds
        Of every method, in each of which all writers take part.
    alone
        Rounds of the one-shot method before it clusters, which come on top.
    before, warm, heads
        In the released code: rounds for the body, by 3 writers each, for the heads of random groups, and for
        the heads by 6 writers each.
    """

    writers: int
    at_least: int
    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    rounds: int
    alone: int
    before: int
    warm: int
    heads: int

    @property
    def network(self) -> CNN:
        return CNN(channels=self.channels, hidden=self.hidden)


@lru_cache(maxsize=1)
def drawn(writing: Writing, seed: int) -> Federated:
    """The writers of an experiment: the same for all of its seeds, as in the released code."""
    return femnist(writing.writers, at_least=writing.at_least, seed=seed)


def shared_body(writing: Writing, draw: int, method: str, k: int, seed: int) -> Arrays:
    """A method with a body that all clusters train together: as the text says."""
    data = drawn(writing, draw)
    assert data.test is not None
    rule: dict[str, Any] = {"rounds": writing.rounds}
    algorithms: dict[str, Callable[[], Any]] = {
        "ifca": lambda: IFCA(k, n_init=1, share=SHARED, **rule),
        "one-shot": lambda: OneShotKMeans(k, alone=writing.alone, share=SHARED, **rule),
        "global": lambda: Global(**rule),
        "local": lambda: Local(**rule),
    }
    algorithm = algorithms[method]()
    learner = Learner(writing.network, local=SGD(lr=0.1, epochs=PASSES, batch_size=20))
    return _at_the_end(algorithm.fit(data.train, learner, seed=seed), data.test, data)


def frozen_body(writing: Writing, draw: int, method: str, k: int, seed: int) -> Arrays:
    """A method that trains the last layer alone, on a body that was trained before: as the released code.

    The body does not change, so that what it makes of the images is computed once, and the last layer is
    logistic regression on that.
    """
    data = drawn(writing, draw)
    assert data.test is not None
    body = pretrained(writing, draw, seed)
    train, test = (Simulation(_seen_by_last(writing.network, body, part)) for part in (data.train, data.test))
    learner = Learner(Linear(bias=True), local=SGD(lr=0.004, epochs=1, batch_size=10))
    taking_part = min(6, writing.writers)
    if method == "local":  # as many rounds as a writer takes part in with others
        alone = Local(rounds=max(1, taking_part * writing.heads // writing.writers))
        return _at_the_end(alone.fit(train, learner, seed=seed), test, data)
    rule: dict[str, Any] = {"rounds": writing.heads, "participation": taking_part, "weight": "examples"}
    if method == "one-shot":
        algorithm: Any = Oracle(k_means(_by_pixels(writing, draw), k, seed), **rule)
    else:  # the global model is that of k = 1
        groups = np.random.default_rng(seed).permutation(np.arange(writing.writers) % k)
        warm: dict[str, Any] = {"rounds": writing.warm, "participation": min(k * taking_part, len(groups))}
        heads = Oracle(groups, weight="examples", **warm).fit(train, learner, seed=seed).models
        algorithm = IFCA(k, init=heads, **rule)
    watch = _Best(train, test, learner, _examples(data), chosen=method != "one-shot")
    found = algorithm.fit(train, learner, seed=seed, observers=[watch])
    return {"accuracy": np.array(watch.best), "clusters": np.array(found.k)}


@lru_cache(maxsize=1)
def pretrained(writing: Writing, draw: int, seed: int) -> PyTree:
    """The network of one model for all writers, of 3 of whom each round is."""
    learner = Learner(writing.network, local=SGD(lr=0.004, epochs=1, batch_size=10))
    algorithm = Global(rounds=writing.before, participation=min(3, writing.writers), weight="examples")
    found = algorithm.fit(drawn(writing, draw).train, learner, seed=seed)
    return stacked.take(found.models, 0)


def _seen_by_last(network: CNN, params: PyTree, shards: Shards) -> Shards:
    """The same examples as the last layer sees them."""
    pairs = list(shards)
    x = np.concatenate([x for x, _ in pairs])
    made = np.asarray(_made_of(network, params, jnp.asarray(x), shards.spec.scale or 1.0))
    ys = [y for _, y in pairs]
    xs = np.split(made, np.cumsum([len(y) for y in ys])[:-1])
    return Shards.from_lists(xs, ys, [*shards.ids], classes=shards.spec.classes)


@partial(jax.jit, static_argnums=(0, 3))
def _made_of(network: CNN, params: PyTree, x: Array, scale: float) -> Float[Array, "examples width"]:
    def one(image: Array) -> Array:
        return network.body(params, image[None] * scale)[0]

    with jax.default_matmul_precision("float32"):
        made: Array = jax.lax.map(one, x, batch_size=256)
    return made


@lru_cache(maxsize=1)
def _by_pixels(writing: Writing, draw: int) -> Float[np.ndarray, "writers d"]:
    """For each writer the weights of logistic regressions on pixels, one per label against the others."""
    from sklearn.linear_model import LogisticRegression  # slow to import, and seldom needed

    shards = drawn(writing, draw).train
    found = np.zeros((len(shards), shards.spec.classes or 0, *shards.spec.x_shape))
    for i, (x, y) in enumerate(shards):
        pixels = x.reshape(len(x), -1) * (shards.spec.scale or 1)
        for label in np.unique(y) if len(np.unique(y)) > 1 else ():
            fitted = LogisticRegression(solver="liblinear").fit(pixels, y == label)
            found[i, label] = fitted.coef_.reshape(shards.spec.x_shape)
    return found.reshape(len(shards), -1)


class _Best(Observer):
    """The best accuracy on test examples, looked at every so many rounds: the released code's number."""

    def __init__(
        self, train: Simulation, test: Simulation, learner: Learner, weights: np.ndarray, chosen: bool
    ) -> None:
        self.best = np.nan  # until it is looked at
        learner = learner.for_data(train.spec)
        self._train, self._test = (one.with_learner(learner, trains=False) for one in (train, test))
        self._weights, self._chosen = weights, chosen
        self._told = self._looked = 0

    def wants_states(self) -> bool:
        return self._told + 1 - self._looked >= EACH

    def after(self, moment: Moment) -> None:
        self._told = moment.place.done
        if moment.states is None or self._told - self._looked < EACH:
            return
        self._looked = self._told
        models, assignment = jax.tree.map(lambda a: a[0], (moment.states.models, moment.states.assignment))
        if self._chosen:  # by everybody, by the loss on training examples
            assignment = lowest(self._train.ask(MeasureLosses(models)).report.losses)
        accuracy = self._test.ask(Evaluate(models), only=assignment).report.accuracy
        self.best = float(np.fmax(self.best, np.average(np.asarray(accuracy), weights=self._weights)))


def _at_the_end(found: Clustering, test: Shards | Simulation, data: Federated) -> Arrays:
    """The accuracy in the end, of every writer by the cluster that its training examples chose."""
    each = found.evaluate(test, "train").per_client["accuracy"]
    return {"accuracy": np.array(np.average(each, weights=_examples(data))), "clusters": np.array(found.k)}


def _examples(data: Federated) -> Int[np.ndarray, " clients"]:
    """How many a writer has in all, by which the released code weighs the accuracies."""
    assert data.test is not None
    return np.array(data.train.sizes + data.test.sizes)
