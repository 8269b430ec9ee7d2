"""Clients whose cluster no longer changes are sent only its model (IFCA paper, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from coterie.errors import SettingError
from coterie.federation.protocol import Answers


@dataclass(frozen=True)
class Settling:
    """After how many rounds in the same cluster a client is sent its own model alone.

    Every `recheck`-th time from then on it is sent all models again, to see whether it still belongs there.
    """

    after: int | None = None  # never, when None
    recheck: int = 10

    def check(self) -> None:
        if self.after is not None and self.after < 1:
            raise SettingError(f"settle must be a number of rounds from 1 up, not {self.after}.")
        if self.recheck < 2:
            raise SettingError(f"recheck must be a number of rounds from 2 up, not {self.recheck}.")

    def start(self, clients: int) -> Int[Array, " clients"] | None:
        """For how many of its rounds each client's cluster has stayed the same: none."""
        return None if self.after is None else jnp.zeros(clients, jnp.int32)

    def only(
        self, steady: Int[Array, " clients"] | None, assignment: Int[Array, " clients"]
    ) -> Int[Array, " clients"] | None:
        """The model that each client is sent alone; -1 for one that chooses among all."""
        if steady is None or self.after is None:
            return None
        alone = (steady >= self.after) & ((steady - self.after) % self.recheck != self.recheck - 1)
        return jnp.where(alone, assignment, -1)

    def update(
        self,
        steady: Int[Array, " clients"] | None,
        before: Int[Array, " clients"],
        now: Int[Array, " clients"],
        answers: Answers,
    ) -> Int[Array, " clients"] | None:
        """For how many of its rounds each client's cluster has stayed the same, after one more."""
        if steady is None:
            return None
        replied: Bool[Array, " clients"] = answers.updated(jnp.zeros(len(now), bool), answers.answered)
        return jnp.where(replied, jnp.where(now == before, steady + 1, 0), steady)
