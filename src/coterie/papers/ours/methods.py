"""What is compared with Discover, and how each method is told to train on some clients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import jax

from coterie.algorithms import CFL, IFCA, SRFCA, Discover, FedSoft, Global, Local, Oracle
from coterie.data.federated import Federated
from coterie.papers.ours.populations import Population

LABELS = {
    "discover": "Discover",
    "srfca": "SR-FCA, automatic λ",
    "cfl": "CFL",
    "global": "Global",
    "local": "Local",
    "ifca": "IFCA, told k, 5 starts",
    "fedsoft": "FedSoft, told k",
    "oracle": "oracle",
}
TOLD = ("ifca", "fedsoft", "oracle")  # who is told the number of groups, or who is in which


def method_called(label: str) -> str:
    """The method of a label."""
    return next(method for method, its in LABELS.items() if its == label)


def algorithm_of(
    method: str, population: Population, data: Federated, rounds: int, share: float = 1.0
) -> Any:
    """A method for some clients, with `rounds` of Discover's last part, or a share of all its rounds."""
    truth, taking_part = data.truth, population.participation
    k: Any = population.told if truth is None else int(truth.max()) + 1
    part, whole = (max(1, round(share * number)) for number in (rounds, 3 * rounds))
    drawn_for_each = None if taking_part == 1 else max(1, round(taking_part * len(data.train) / k))
    made: dict[str, Callable[[], Any]] = {
        "discover": lambda: Discover(rounds=part, participation=taking_part),
        "srfca": lambda: SRFCA(rounds=part, participation=taking_part),
        "cfl": lambda: CFL(rounds=whole, participation=taking_part),
        "global": lambda: Global(rounds=whole, participation=taking_part),
        "local": lambda: Local(rounds=whole, participation=taking_part),
        "ifca": lambda: IFCA(k, rounds=whole, participation=taking_part),
        "fedsoft": lambda: FedSoft(k, rounds=whole, select=drawn_for_each),
        "oracle": lambda: Oracle(truth, rounds=whole, participation=taking_part),
    }
    return made[method]()


@lru_cache(maxsize=1)
def without_programs_of_others(clients: Hashable) -> None:
    """Let go of programs that were compiled for other clients: a process has room for some populations' only.

    Each takes memory, and of the 65,530 memory maps that Linux gives a process.
    """
    jax.clear_caches()
    gc.collect()
