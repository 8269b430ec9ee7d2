"""What an aggregator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Array, Bool, PyTree

from coterie.aggregate.sums import Sums
from coterie.federation.protocol import Reduction
from coterie.learn.task import Reply
from coterie.settings import Settings


class Aggregator(Settings, ABC):
    """How the replies of each cluster's clients become one, and how far its model goes there."""

    @abstractmethod
    def reduction(self, k: int) -> Reduction | None:
        """How replies are summed on the way; None if all of them are needed at once."""

    @abstractmethod
    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        """What becomes of stacked replies, all at once."""

    def start(self, models: PyTree) -> Any:
        """What the server keeps from round to round, given k stacked models; None if nothing."""
        return None

    def step(
        self, kept: Any, models: PyTree, target: PyTree, active: Bool[Array, " k"]
    ) -> tuple[Any, PyTree]:
        """The models of the next round, given those that the replies come to; all the way there by default.

        `active` tells which clusters any client contributed to. The others' models stay as they are.
        """
        return kept, target
