"""What an initialiser is."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Array, Key, PyTree

from coterie.federation.exchange import Exchange, Server


class Initialiser(Protocol):
    """How the k models start. It may ask clients: see `coterie.algorithms.algorithm`."""

    def __call__(self, server: Server, key: Key[Array, ""], k: int | None) -> Exchange[PyTree]:
        """k stacked models; `key` is that of the start. k is None where the initialiser finds it."""
        ...
