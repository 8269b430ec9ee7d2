"""What a method costs, in the units of Table 1 of the SR-FCA paper.

One function for each way of asking clients, which counts by what the history says: who answered, and with how
many models. The last exchange is left out: there clients tell how the final models serve them, which changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from coterie.algorithms import IFCA, SRFCA, FedSoft, OneShotKMeans
from coterie.clustering.history import FINISH, Event
from coterie.clustering.result import Clustering


@dataclass(frozen=True)
class Cost:
    """What a run took, counted over all clients."""

    models_down: int
    models_up: int
    forward: int  # losses of a model on a client's examples, computed to find clusters
    steps_taken: int  # local steps of a client
    bytes_down: int  # as measured: models, and what little goes with them
    bytes_up: int


# given the result, the algorithm, and how many steps a local update takes
Count = Callable[[Clustering, Any, int], Cost]


def averaging(found: Clustering, algorithm: Any, steps: int) -> Cost:
    """In each round a client gets one model and sends one: FedAvg, CFL and the oracle.

    CFL may ask all clients once more between rounds, for an update.
    """
    trained = _trained(found) + len(found.ids) * sum(event.asks for event in _events(found))
    return _cost(found, trained, trained, 0, trained * steps)


def alone(found: Clustering, algorithm: Any, steps: int) -> Cost:
    """Nothing needs to travel before the end, when the server gets the clients' models."""
    cost = _cost(found, 0, len(found.ids), 0, _trained(found) * steps)
    return Cost(**{**vars(cost), "bytes_down": 0, "bytes_up": len(found.ids) * _size(found)})


def alternating(found: Clustering, algorithm: IFCA, steps: int) -> Cost:
    """In each round a client gets all k models, computes their losses, and sends one: IFCA."""
    trained, before = _trained(found), _alone_at_first(found, getattr(algorithm.init, "rounds", 0))
    asked = trained * algorithm.k
    return _cost(
        found, asked + before.models, trained + before.models, asked, (trained + before.updates) * steps
    )


def one_shot(found: Clustering, algorithm: OneShotKMeans, steps: int) -> Cost:
    """Every client trains alone and sends its model; then one model each way."""
    before = _alone_at_first(found, algorithm.alone)
    moved, updates = _trained(found) + before.models, _trained(found) + before.updates
    return _cost(found, moved, moved, 0, updates * steps)


def successive(found: Clustering, algorithm: SRFCA, steps: int) -> Cost:
    """SR-FCA: with cross losses, all clients' models go to all, and all clusters' after each REFINE."""
    clients, before = len(found.ids), _alone_at_first(found, algorithm.rounds)
    losses = 0
    if algorithm.distance == "cross_loss":
        last_rounds = found.history.logs[algorithm.rounds - 1 :: algorithm.rounds]
        losses = clients * clients + sum(clients * len(log.sizes[0]) for log in last_rounds)
    trained = _trained(found)
    moved, updates = trained + before.models, trained + before.updates
    return _cost(found, moved + losses, moved, losses, updates * steps)


def soft(found: Clustering, algorithm: FedSoft, steps: int) -> Cost:
    """FedSoft: k centres and its own model to each client of a round; every so often k centres to all."""
    trained = _trained(found)
    losses = algorithm.k * len(found.ids) * sum(event.asks for event in _events(found))
    return _cost(found, trained * (algorithm.k + 1) + losses, trained, losses, trained * steps)


@dataclass(frozen=True)
class _Before:
    """What clients do before the first round."""

    models: int  # that each way is sent
    updates: int


def _alone_at_first(found: Clustering, rounds: int) -> _Before:
    restarts = len(found.history.logs[0].loss)
    clients = len(found.ids) * restarts if rounds else 0
    return _Before(clients, clients * rounds)


def _trained(found: Clustering) -> int:
    """How many local updates were made in rounds, of all restarts."""
    return sum(log.answered * len(log.loss) for log in found.history.logs)


def _events(found: Clustering) -> list[Event]:
    return [event for event in found.history.events if event.name != FINISH]


def _size(found: Clustering) -> int:
    """Bytes of one model."""
    return sum(leaf[0].nbytes for leaf in jax.tree.leaves(found.models))


def _cost(found: Clustering, down: int, up: int, forward: int, steps: int) -> Cost:
    told = [*found.history.logs, *_events(found)]
    bytes_down, bytes_up = (sum(getattr(r, name) for r in told) for name in ("bytes_down", "bytes_up"))
    return Cost(down, up, forward, steps, int(bytes_down), int(bytes_up))
