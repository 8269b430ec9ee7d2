"""What is compared with Discover, and how each method is told to train on some clients."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
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
MOST_MAPS = 30_000  # of the 65,530 that Linux gives a process; the programs of one draw take up to 20,000


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


def make_room_for_programs() -> None:
    """Let go of all compiled programs, if they have taken many of the memory maps that a process may have."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
