"""What is compared: a line for each method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.algorithms import CFL, IFCA, SRFCA, FedSoft, Global, Local, OneShotKMeans, Oracle
from coterie.initialise import Components, OneShot
from coterie.learn.local import SGD, LocalUpdate
from coterie.papers.srfca.tuning import Settings


@dataclass(frozen=True)
class Problem:
    """What methods are told: how long they may train, and some of them the truth."""

    truth: np.ndarray | None
    rounds: int
    distance: str
    clusters: int | None = None  # where the truth is not known, or is not to be told

    @property
    def k(self) -> int:
        if self.clusters is not None:
            return self.clusters
        assert self.truth is not None
        return int(self.truth.max()) + 1

    @property
    def third(self) -> int:
        return max(1, self.rounds // 3)


def sgd(settings: Settings, steps: int) -> LocalUpdate:
    """What clients do, for most methods."""
    return SGD(lr=settings["rate"], steps=steps, proximal=settings.get("mu", 0.0))


@dataclass(frozen=True)
class Method:
    """A method of the comparison.

    Attributes
    ----------
    label
        What it is called.
    make
        The algorithm, given the problem and the settings that were chosen.
    tuned
        The settings that are chosen for it, in the order in which they are.
    local
        The local update, given the settings and the number of steps.
    personal
        Whether clients are served by models of their own.
    alone
        Whether every client is a cluster of its own, so that who is in the wrong one says nothing.
    course
        Whether to look at what it has after ONE_SHOT and each REFINE.
    """

    label: str
    make: Callable[[Problem, Settings], Any]
    tuned: tuple[str, ...] = ("rate",)
    local: Callable[[Settings, int], LocalUpdate] = sgd
    personal: bool = False
    alone: bool = False
    course: bool = False


LAMBDA_BETA = ("rate", "threshold", "trim")


def refined(problem: Problem, settings: Settings, rounds: int, **options: Any) -> SRFCA:
    """SR-FCA with two REFINEs, and λ and β where these are chosen."""
    if "threshold" in settings:
        options |= {"threshold": f"{settings['threshold']:.4%}", "trim": settings["trim"]}
    return SRFCA(rounds=rounds, refines=2, **{"distance": problem.distance, **options})


def _one_shot_kmeans(p: Problem) -> OneShotKMeans:
    return OneShotKMeans(p.k, rounds=p.rounds - p.third, alone=p.third)


def _ifca_from_kmeans(p: Problem) -> IFCA:
    return IFCA(p.k, rounds=p.rounds - p.third, n_init=1, init=OneShot(p.third))


def _one_shot_ifca(p: Problem) -> IFCA:
    init = Components(p.third, distance=p.distance)
    return IFCA(rounds=p.rounds - p.third, init=init)


def _soft(p: Problem, s: Settings) -> FedSoft:
    return FedSoft(p.k, rounds=p.rounds, select=None, pull=s["pull"])


TEXT: dict[str, Method] = {
    # as in the paper: ONE_SHOT and each REFINE take as many steps as another method in all
    "srfca": Method("SR-FCA", lambda p, s: refined(p, s, p.rounds), LAMBDA_BETA, course=True),
    "srfca-auto": Method("SR-FCA, automatic λ", lambda p, s: refined(p, s, p.rounds)),
    # as many steps as any other method: a third alone, and a third in each REFINE
    "srfca-equal": Method("SR-FCA, equal budget", lambda p, s: refined(p, s, p.third), LAMBDA_BETA),
    "srfca-warm": Method(
        "SR-FCA, equal budget, warm",
        lambda p, s: refined(p, s, p.third, warm=True),
        LAMBDA_BETA,
    ),
    "local": Method("Local", lambda p, s: Local(rounds=p.rounds), alone=True),
    "global": Method("Global, FedAvg", lambda p, s: Global(rounds=p.rounds)),
    "fedprox": Method("Global, FedProx", lambda p, s: Global(rounds=p.rounds), ("rate", "mu")),
    "ifca": Method("IFCA, one start", lambda p, s: IFCA(p.k, rounds=p.rounds, n_init=1)),
    "ifca-5": Method(
        "IFCA, best of 5", lambda p, s: IFCA(p.k, rounds=p.rounds, n_init=5, keep_best_after=1.0)
    ),
    # the paper's own: IFCA from the components of ONE_SHOT, and k-means once at the end of local training
    "one-shot-ifca": Method("ONE_SHOT-IFCA", lambda p, s: _one_shot_ifca(p)),
    "local-kmeans": Method("Local-KMeans", lambda p, s: OneShotKMeans(p.k, rounds=0, alone=p.rounds)),
    "ifca-kmeans": Method("IFCA from k-means", lambda p, s: _ifca_from_kmeans(p)),
    "kmeans-fedavg": Method("k-means, then FedAvg", lambda p, s: _one_shot_kmeans(p)),
    "cfl": Method("CFL", lambda p, s: CFL(rounds=p.rounds)),
    "fedsoft": Method("FedSoft", _soft, ("rate", "pull")),
    "fedsoft-own": Method("FedSoft, own models", _soft, ("rate", "pull"), personal=True),
    "oracle": Method("oracle", lambda p, s: Oracle(p.truth, rounds=p.rounds)),
}
