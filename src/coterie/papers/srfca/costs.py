"""What a method costs, in the units of Table 1 of the SR-FCA paper."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from coterie.clustering.history import FINISH, Event
from coterie.clustering.result import Clustering


@dataclass(frozen=True)
class Cost:
    """What a run took, counted over all clients and restarts."""

    models_down: float  # as many bytes as so many models
    models_up: float
    forward: int  # losses of a model on a client's examples, computed to find clusters
    steps_taken: int  # local steps of a client
    bytes_down: int
    bytes_up: int


def cost(found: Clustering, steps: int) -> Cost:
    """The cost of a run whose local updates take so many steps, as its history has counted it.

    The last exchange is left out: there clients tell how the final models serve them, which changes nothing.
    """
    before_end = [r for r in found.history.records if not (isinstance(r, Event) and r.name == FINISH)]
    losses, updates, down, up = (
        sum(getattr(record, name) for record in before_end)
        for name in ("losses", "updates", "bytes_down", "bytes_up")
    )
    one = sum(leaf[0].nbytes for leaf in jax.tree.leaves(found.models))
    return Cost(down / one, up / one, losses, updates * steps, down, up)
