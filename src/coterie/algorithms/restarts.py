"""Which of the restarts that ran side by side is kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from coterie.errors import diverged


class Kept(NamedTuple):
    """The best restart, and what clients told of it."""

    restart: int
    losses: Float[np.ndarray, "clients k"]  # NaN in the rows of clients that told nothing
    told: Bool[np.ndarray, " clients"]


def lowest_loss(
    losses: Float[np.ndarray, "clients restarts k"], answered: Bool[np.ndarray, "clients restarts"]
) -> Kept:
    """The restart in which the clients' mean loss, each under its best model, is lowest."""
    lowest = np.where(np.isfinite(losses), losses, np.inf).min(axis=2)
    told = answered & np.isfinite(lowest)
    # a restart diverged if most say so; a few who have no number for it tell nothing
    sane = 2 * told.sum(axis=0) > answered.sum(axis=0)
    mean = np.where(told, lowest, 0).sum(axis=0) / np.maximum(told.sum(axis=0), 1)
    mean = np.where(sane | ~answered.any(axis=0), mean, np.inf)
    best = int(np.argmin(mean))
    if not np.isfinite(mean[best]):
        raise diverged("in the last round")
    return Kept(best, np.where(told[:, best, None], losses[:, best], np.nan), told[:, best])
