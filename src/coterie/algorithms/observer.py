"""Who watches a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from coterie.algorithms.state import State
from coterie.clustering.history import Record
from coterie.data.shards import Spec
from coterie.federation.protocol import Federation

Arrays = Mapping[str, Any]


class Observer(Protocol):
    """Watches a run: shows progress, writes it down, restores it."""

    def clients(self) -> tuple[np.ndarray, Spec] | None:
        """The ids of the clients so far, by position, and the shape of an example; None to start afresh."""
        ...

    def resume(self, restored: Callable[[Arrays], State]) -> tuple[State, list[Record]] | None:
        """The state to start from, and what led there; None to start afresh.

        `restored` makes a state of the arrays that were kept.
        """
        ...

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
        """Something happened: the state after it, with whom, what it was, and how many rounds are done."""
        ...


class Unobserved:
    """Watches nothing."""

    def clients(self) -> None:
        return None

    def resume(self, restored: Callable[[Arrays], State]) -> None:
        return None

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
        pass
