"""One trial: a method on one draw of the clients, by the paper's protocol.

Local, ONE_SHOT, Local-KMeans and ONE_SHOT-IFCA all begin with clients that train alone, for as many steps as
another method takes in all. These are trained once for each draw, as are the losses of all their models on
all clients, and every method that begins with them is given them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from coterie import keys
from coterie.algorithms import CFL, IFCA, SRFCA, FedSoft, Global, Local, OneShotKMeans, threshold
from coterie.algorithms.distances import CrossLoss
from coterie.algorithms.lockstep import in_step
from coterie.algorithms.records import Count
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.evaluate import metrics
from coterie.federation.exchange import Exchange
from coterie.federation.simulation import Simulation
from coterie.initialise import Components
from coterie.learn.shard import Part
from coterie.models import stacked
from coterie.papers.experiment import Arrays
from coterie.papers.srfca.costs import Cost, cost
from coterie.papers.srfca.course import Stages
from coterie.papers.srfca.published import STEPS
from coterie.papers.srfca.setups import Setup, clients, learner

MOST_REFINES = 2  # of which Table 5 has the accuracies


class Clients(NamedTuple):
    """A draw, on the devices."""

    of: Federated
    train: Simulation
    test: Simulation


@dataclass(frozen=True)
class Alone:
    """What clients come to that train alone, and the losses of every client (row) under every model."""

    found: Clustering
    losses: Float[np.ndarray, "clients clients"]
    trained: Cost
    compared: Cost


@dataclass(frozen=True)
class Known(CrossLoss):
    """The cross-cluster loss, where the losses of the models that clients trained alone are known."""

    # no compiled round depends on them
    losses: Any = field(default=None, compare=False, repr=False)

    def measure(
        self, own: PyTree, there: Bool[np.ndarray, " clients"], part: Part = None
    ) -> Exchange[np.ndarray]:
        return np.asarray(self.losses)
        yield


@lru_cache(maxsize=1)
def drawn(data: str, setup: Setup, seed: int) -> Clients:
    """The clients of a seed."""
    made = clients(data, setup, seed)
    assert made.test is not None
    on_device = [Simulation(shards, precision=setup.precision) for shards in (made.train, made.test)]
    return Clients(made, *on_device)


@lru_cache(maxsize=1)
def alone(data: str, setup: Setup, seed: int) -> Alone:
    """All clients of a seed, trained alone in one go; kept until another draw is asked for."""
    train = drawn(data, setup, seed).train
    knows = learner(data, setup, setup.rate_of("local"), setup.iterations)
    found = Local(rounds=1).fit(train, knows, seed=seed)
    count, everybody = Count(), np.ones(setup.clients, bool)
    ask = CrossLoss().measure(found.models, everybody)
    (losses,) = in_step(train.with_learner(knows), [ask], keys.purpose(seed, "cross losses"), count)
    one = sum(leaf[0].nbytes for leaf in jax.tree.leaves(found.models))
    down, up = count.bytes_down, count.bytes_up
    compared = Cost(down / one, up / one, count.losses, 0, down, up)
    return Alone(found, losses, cost(found, setup.iterations), compared)


# -- the methods ---------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """A method by the paper's protocol; `make` is given the clients trained alone, if it begins there."""

    label: str
    make: Callable[..., Any]
    after_local: bool = False
    compares: bool = False  # whether it looks at the losses under all models


def _srfca(s: Setup, before: Alone, cut: float | str = "auto", refines: int = MOST_REFINES) -> SRFCA:
    return SRFCA(
        rounds=s.rounds,
        refines=max(s.refines, refines),
        trim=s.trim,
        threshold=cut,
        distance=Known(before.losses),
        trained=before.found.models,
        participation=s.taking_part(s.k),
    )


def _released(s: Setup, before: Alone) -> SRFCA:
    assert s.released is not None
    return _srfca(s, before, s.released, refines=1)


def _one_shot_ifca(s: Setup, before: Alone) -> IFCA:
    init = Components(s.iterations, distance=Known(before.losses), trained=before.found.models)
    return IFCA(rounds=s.rounds, init=init, participation=s.taking_part(s.k))


def _kmeans(s: Setup, before: Alone) -> OneShotKMeans:
    return OneShotKMeans(s.k, rounds=0, trained=before.found.models)


def _ifca(s: Setup, **starts: Any) -> IFCA:
    return IFCA(s.k, rounds=s.rounds, participation=s.taking_part(s.k), **starts)


def _cfl(s: Setup) -> CFL:
    return CFL(rounds=s.rounds, participation=s.taking_part(s.splits), max_clusters=s.splits)


def _fedsoft(s: Setup) -> FedSoft:
    select = s.drawn if isinstance(s.drawn, int) else None
    return FedSoft(s.k, rounds=s.rounds, select=select, smoother=0.05)


METHODS: dict[str, Method] = {
    "srfca": Method("SR-FCA", _srfca, True, True),
    "srfca-released": Method("SR-FCA, released λ", _released, True, True),
    "local": Method("Local", lambda s: Local(rounds=1)),
    "global": Method("Global", lambda s: Global(rounds=s.rounds, participation=s.taking_part(1))),
    "cfl": Method("CFL", _cfl),
    "local-kmeans": Method("Local-KMeans", _kmeans, True),
    "local-kmeans-head": Method("Local-KMeans as released", _kmeans, True),
    "ifca": Method("IFCA, one start", lambda s: _ifca(s, n_init=1)),
    "ifca-5": Method("IFCA, 5 starts", lambda s: _ifca(s)),
    "fedsoft": Method("FedSoft", _fedsoft),
    "one-shot-ifca": Method("ONE_SHOT-IFCA", _one_shot_ifca, True, True),
}


def trial(data: str, setup: Setup, name: str, seed: int) -> Arrays:
    """What a method comes to with one seed."""
    method, here, stages = METHODS[name], drawn(data, setup, seed), Stages()
    before = alone(data, setup, seed) if method.after_local or name == "local" else None
    costs = [] if before is None else [before.trained, *([before.compared] if method.compares else [])]
    if before is not None and (name == "local" or _nobody_is_near(setup, name, before)):
        found = before.found
    else:
        knows = learner(data, setup, setup.rate_of(name), setup.local)
        algorithm = method.make(setup) if before is None else method.make(setup, before)
        found = algorithm.fit(here.train, knows, seed=seed, observers=[stages])
        costs.append(cost(found, setup.local))
    if name == "local-kmeans-head":
        found = from_the_head(found)
    results = {
        "accuracy": served(found, here),
        "clusters": np.array(found.k),
        "models moved": np.array(sum(one.models_down + one.models_up for one in costs)),
        "steps": np.array(sum(one.steps_taken for one in costs)),
        "passes": np.array(sum(one.forward for one in costs)),
    }
    if stages.refined and before is not None:
        results |= _course(setup, stages.results(found), found, before, here)
    truth = here.of.truth
    if truth is not None and name not in ("local", "global"):  # which look for no clusters
        wrong = metrics.misclustering(found.assignment, truth)
        results |= {"misclustering": np.array(wrong), "collapsed": np.array(wrong > 0)}
    return results


def _nobody_is_near(setup: Setup, name: str, before: Alone) -> bool:
    """Whether no two clients are within the released λ: there is no cluster to refine, and all stay alone."""
    if name != "srfca-released" or not isinstance(setup.released, float):
        return False
    pairs = threshold.of_pairs(CrossLoss().between_clients(before.losses))
    return bool(pairs.min() > setup.released)


def _course(setup: Setup, after: list[Clustering], found: Clustering, before: Alone, here: Clients) -> Arrays:
    """SR-FCA step by step, and the distances after ONE_SHOT; its accuracy is that after as many REFINEs as
    the paper has for these clients."""
    shot = next(event.details for event in found.history.events if event.name == "one-shot")
    steps = [served(stage, here) for stage in after]
    distances, truth = CrossLoss().between_clients(before.losses), here.of.truth
    ends = {}
    if truth is not None:
        pairs, alike = np.triu_indices(len(truth), 1), truth[:, None] == truth
        ends = {
            "farthest within": distances[pairs][alike[pairs]].max(),
            "nearest between": distances[pairs][~alike[pairs]].min(),
        }
    return {
        "accuracy": steps[setup.refines - 1],
        "clusters": np.array(after[setup.refines - 1].k),
        STEPS[0]: served(before.found, here),
        **dict(zip(STEPS[1:], steps, strict=False)),
        "threshold": np.array(shot["threshold"]),
        "gap": np.array(shot["gap"] is not None),
        "distances": distances.astype(np.float32),
        **{name: np.array(end) for name, end in ends.items()},
    }


def served(found: Clustering, here: Clients) -> Float[np.ndarray, ""]:
    """Mean over clients of the accuracy of the model of each on its own test examples."""
    return np.array(found.evaluate(here.test, "train").accuracy)


def from_the_head(found: Clustering) -> Clustering:
    """As the released code makes models of the means of k-means: each array is the head of one vector."""
    vectors = np.asarray(stacked.to_matrix(found.models))

    def head(array: Any) -> np.ndarray:
        return vectors[:, : array[0].size].reshape(array.shape)

    return replace(found, models=jax.tree.map(head, found.models))
