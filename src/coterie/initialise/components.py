"""ONE_SHOT of the SR-FCA paper as a start: as many models as there are groups of near clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Array, Key, PyTree

from coterie import keys
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.initialise.random import fresh_model
from coterie.settings import Settings


@dataclass(frozen=True)
class Components(Settings):
    """The means of groups of clients whose models, each trained alone, are within a threshold of each other.

    `IFCA(init=Components())` is ONE_SHOT-IFCA of the SR-FCA paper: it finds the number of clusters by itself.

    Parameters
    ----------
    rounds
        For how many rounds of its local update a client trains alone.
    threshold, min_size, distance, trained
        lambda, t, dist, and models that clients have trained before: see `SRFCA`.
    """

    rounds: int = 20
    threshold: float | str = "auto"
    min_size: int = 2
    distance: Any = "cross_loss"
    trained: PyTree = field(default=None, compare=False)

    def __call__(self, server: Server, key: Key[Array, ""], k: int | None) -> Exchange[PyTree]:
        from coterie.algorithms.srfca import one_shot  # which has initialisers of its own

        if k is not None:
            raise SettingError(f"Components() finds the number of clusters by itself, but k is {k}.")
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        w0, own = fresh_model(server, key), keys.numbered(key, 1)[0]
        found = yield from one_shot(
            server,
            w0,
            self.rounds,
            own,
            self.threshold,
            self.min_size,
            self.distance,
            trained=self.trained,
        )
        return found.means()
