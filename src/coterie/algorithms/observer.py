"""Who watches a run: progress, checkpoints and trackers, as many as there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.algorithms.algorithm import State
from coterie.clustering.history import Record
from coterie.data.shards import Spec


class Place(NamedTuple):
    """Where a run stands: rounds `first` to `last` follow one another without a pause."""

    done: int = 0  # rounds
    first: int = 0
    last: int = 0
    ended: bool = False  # whether no more rounds follow


class Moment(NamedTuple):
    """A run at one moment."""

    states: State | None  # a leading axis of starts; None where nobody wants them: see `Observer`
    place: Place
    ids: np.ndarray  # of the clients, by position
    spec: Spec
    new: Sequence[Record]  # what has happened since the last moment


class Saved(NamedTuple):
    """A run as it was kept."""

    arrays: Mapping[str, Any]  # of the states, by name
    place: Place
    ids: np.ndarray
    spec: Spec
    records: Sequence[Record]
    source: str = "the saved run"  # what it was read from


class Observer:
    """Watches a run.

    Of several observers each is told everything, one after another; a run is continued from what the first
    of them has kept that has kept anything.
    """

    def saved(self) -> Saved | None:
        """The run that is to be continued; None to start afresh."""
        return None

    def resumed(self, moment: Moment) -> None:
        """The run goes on from what was kept, by whomever; all that led there is `new`."""

    def after(self, moment: Moment) -> None:
        """Something happened."""

    def wants_states(self) -> bool:
        """Whether it wants the states of the next moment.

        If no observer does, the device goes on to further rounds while the last ones are looked at.
        """
        return True
