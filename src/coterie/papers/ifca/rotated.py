"""Rotated MNIST and CIFAR-10 as the IFCA paper has them: clients, learners, methods and what is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from coterie.algorithms import IFCA, Global, Local
from coterie.clustering.result import Clustering
from coterie.data import rotated_cifar10, rotated_mnist
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.evaluate.metrics import misclustering
from coterie.federation.simulation import Simulation
from coterie.learn.augment import Crop, Distort
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.learn.task import Client, Reply, Task
from coterie.models import CNN, MLP, stacked
from coterie.papers.experiment import Arrays
from coterie.papers.ifca.released import Clipped, EvenlyChosen

METHODS = {
    "ifca": "IFCA, best of 5",
    "ifca-1": "IFCA, one start",
    "global": "global",
    "local": "local",
}
RELEASED_ALONE = {"MNIST": 10, "CIFAR": 300}  # rounds of the released code's local models
SEEN_BY_ONE_IN = 10  # of CIFAR's clients, the released code trains one in ten alone


@dataclass(frozen=True)
class Population:
    """The clients of some columns of Table 1, and how they are trained.

    Attributes
    ----------
    data
        `"MNIST"`, turned by 0, 90, 180 and 270 degrees, or `"CIFAR"`, turned by 0 and 180.
    clients, examples
        m and n.
    unseen
        Test clients, of as many images of the test set.
    rounds, participation
        T, and |M_t| as a share of m.
    channels, hidden
        Of the network; no channels for one without convolutions.
    """

    data: str
    clients: int
    examples: int
    unseen: int
    rounds: int
    participation: float
    channels: tuple[int, ...]
    hidden: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.data} m={self.clients} n={self.examples}"

    @property
    def k(self) -> int:
        return 4 if self.data == "MNIST" else 2

    @property
    def alone(self) -> int:
        """For how many rounds clients train alone: as many as they take part in with others, on average."""
        return max(1, round(self.participation * self.rounds))


@lru_cache(maxsize=1)  # the methods for one population and seed come one after another
def drawn(population: Population, seed: int) -> Federated:
    """The clients of a seed."""
    make = rotated_mnist if population.data == "MNIST" else rotated_cifar10
    return make(population.clients, population.unseen, examples=population.examples, seed=seed)


def learner_of(population: Population, method: str, preset: str) -> Learner:
    """What clients know how to do."""
    if population.data == "MNIST":
        return Learner(MLP(hidden=population.hidden), local=SGD(lr=0.1, steps=10))
    model = replace(
        CNN.cifar10("authors" if preset == "authors" else "paper"),
        channels=population.channels,
        hidden=population.hidden,
    )
    rule: dict[str, Any] = {"epochs": 5, "batch_size": 50, "decay": 0.99}
    if preset == "text":
        return Learner(model, local=SGD(lr=0.1, **rule), augment=Crop(pad=4))
    decayed = tuple(f"layers.{len(model.channels) + i}.weight" for i in range(len(model.hidden)))
    local = SGD(lr=0.25, weight_decay=0.004, decayed=decayed, **rule)
    return Learner(model, local=local, augment=Clipped() if method == "local" else Distort())


def algorithm_of(population: Population, method: str, preset: str) -> Any:
    """The method, as the paper or its released code has it."""
    how: dict[str, Any] = {"rounds": population.rounds, "participation": population.participation}
    if method == "local" and preset == "authors":
        return Local(rounds=min(population.rounds, RELEASED_ALONE[population.data]))
    if method == "local":
        return Local(rounds=population.alone)
    if method == "global":
        return Global(**how)
    if method == "ifca":
        return IFCA(population.k, **how)
    if preset == "authors" and population.data == "CIFAR":
        how["init"] = EvenlyChosen()
    return IFCA(population.k, n_init=1, **how)


def measured(population: Population, method: str, preset: str, seed: int) -> Arrays:
    """A method on the clients of a seed, and how well it serves others."""
    data = drawn(population, seed)
    assert data.truth is not None and data.unseen is not None and data.unseen_truth is not None
    train, truth = data.train, data.truth
    if method == "local" and preset == "authors" and population.data == "CIFAR":
        some = np.arange(0, len(truth), min(SEEN_BY_ONE_IN, len(truth) // population.k))
        train, truth = train[some], truth[some]
    simulation = Simulation(train)
    learner = learner_of(population, method, preset)
    found = algorithm_of(population, method, preset).fit(simulation, learner, seed=seed)
    if method == "local":
        accuracy = alone(found, truth, data.unseen, data.unseen_truth).mean()
        loss = found.evaluate(simulation, "train").loss
    else:
        accuracy = found.evaluate(data.unseen).accuracy  # each by the model of lowest loss on its own images
        loss = found.losses.min(axis=1).mean()
    result = {"accuracy": np.array(accuracy), "training loss": np.array(loss)}
    if method.startswith("ifca"):
        result |= {
            "misclustering": np.array(misclustering(found.assignment, truth)),
            "clusters": np.array(found.k),
            "collapsed": np.array(collapsed(found.assignment, truth)),
        }
    return result


def collapsed(found: Int[np.ndarray, " clients"], truth: Int[np.ndarray, " clients"]) -> bool:
    """Whether some true cluster has no model of its own.

    Its model is the one that most of its clients take; it is not its own if another true cluster's is the
    same.
    """
    models = [np.bincount(found[truth == j] + 1).argmax() for j in np.unique(truth)]
    return len(set(models)) < len(models)


class Accuracies(Task):
    """The accuracy of each of k models on the shard."""

    models: PyTree  # (k, ...)

    class Report(eqx.Module):
        accuracies: Float[Array, " k"]

    def __call__(self, client: Client) -> Reply:
        def one(model: PyTree) -> Float[Array, ""]:
            return client.learner.shard_accuracy(model, client.shard)

        # one after another: the images of all test clients that are computed at once are one product
        return Reply(self.Report(jax.lax.map(one, self.models)))


def alone(
    found: Clustering,
    truth: Int[np.ndarray, " clients"],
    unseen: Shards,
    unseen_truth: Int[np.ndarray, " unseen"],
) -> Float[np.ndarray, " clients"]:
    """The accuracy of every client's own model on all test images of its rotation."""
    accuracy = np.zeros(len(truth))
    for rotation in np.unique(truth):
        members, testers = np.flatnonzero(truth == rotation), np.flatnonzero(unseen_truth == rotation)
        federation = Simulation(unseen[testers]).with_learner(found.learner, trains=False)
        models = stacked.take(found.models, found.assignment[members])
        answers = federation.ask(Accuracies(models))
        accuracy[members] = np.asarray(answers.report.accuracies).mean(axis=0)
    return accuracy
