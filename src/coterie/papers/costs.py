"""What a method costs, in the units of Table 1 of the SR-FCA paper."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.algorithms import IFCA, SRFCA, FedSoft, Local, OneShotKMeans
from coterie.algorithms.rounds import RoundAlgorithm
from coterie.clustering.history import FINISH
from coterie.clustering.result import Clustering
from coterie.federation.protocol import bytes_of
from coterie.initialise import OneShot
from coterie.models import stacked


@dataclass(frozen=True)
class Cost:
    """What a run took, counted over all clients."""

    bytes_down: float
    bytes_up: float
    models_down: float  # as many bytes as so many models
    models_up: float
    forward: float  # losses of a model on a client's examples, computed to find clusters
    steps_taken: float  # local steps of a client


def cost(found: Clustering, algorithm: RoundAlgorithm, steps: int) -> Cost:
    """The cost of a run, by what its history says was sent and who answered.

    The last exchange is left out: there clients tell how the final models serve them, which changes nothing.
    """
    one = bytes_of(stacked.take(found.models, 0))
    rounds = found.history.logs
    events = [event for event in found.history.events if event.name != FINISH]
    restarts = len(rounds[0].loss)
    clients = len(found.ids)
    down, up = (
        sum(getattr(record, name) for record in [*rounds, *events]) for name in ("bytes_down", "bytes_up")
    )
    taken = sum(log.answered for log in rounds) * steps * restarts
    forward = sum(log.bytes_down / one for log in rounds) if isinstance(algorithm, IFCA) else 0.0
    for event in events:
        if isinstance(algorithm, SRFCA):
            forward += event.bytes_down / one - (clients if event.name == "one-shot" else 0)
        elif isinstance(algorithm, FedSoft):
            forward += event.bytes_down / one
    if isinstance(algorithm, SRFCA | OneShotKMeans):
        taken += clients * steps * (algorithm.rounds if isinstance(algorithm, SRFCA) else algorithm.alone)
    elif isinstance(algorithm, IFCA) and isinstance(algorithm.init, OneShot):
        taken += clients * steps * algorithm.init.rounds
    if isinstance(
        algorithm, Local
    ):  # nothing needs to travel before the end, when the server gets the models
        up = clients * one
    return Cost(down, up, down / one, up / one, forward, float(taken))
