"""What an aggregator is."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Array, Bool

from coterie.aggregate.sums import Sums
from coterie.federation.protocol import Reduction
from coterie.learn.tasks import Reply


class Aggregator(Protocol):
    """How the replies of each cluster's clients become one."""

    def reduction(self, k: int) -> Reduction | None:
        """How replies are summed on the way; None if all of them are needed at once."""
        ...

    def sums(self, replies: Reply, answered: Bool[Array, " clients"], k: int) -> Sums:
        """What becomes of stacked replies, all at once."""
        ...
