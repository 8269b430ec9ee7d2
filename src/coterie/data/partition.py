"""Ways to spread examples over clients."""

from __future__ import annotations

import numpy as np

from coterie.errors import SettingError


def evenly(
    examples: int, clients: int, rng: np.random.Generator, each: int | None = None
) -> list[np.ndarray]:
    """Indices of each client's examples: a random split into parts whose sizes differ by at most one.

    Or of as many examples for `each`, where that is given.
    """
    if clients < 1 or clients > examples:
        raise SettingError(
            f"cannot split {examples} examples over {clients} clients: choose 1 to {examples} clients."
        )
    order = rng.permutation(examples)
    return np.array_split(order if each is None else order[: clients * each], clients)


def cluster_sizes(clients: int, clusters: int) -> np.ndarray:
    """Clients per cluster, as equal as possible, the first clusters taking the remainder."""
    if clusters < 1 or clients < clusters:
        raise SettingError(
            f"{clients} clients cannot fill {clusters} clusters: choose at least one client per cluster."
        )
    return np.array([len(part) for part in np.array_split(np.arange(clients), clusters)])
