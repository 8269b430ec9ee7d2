"""What a server knows, and how it asks: a generator that yields an `Ask` and is sent the `Answers`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from coterie import keys
from coterie.data.shards import Spec
from coterie.federation.protocol import Answers, Ask, Federation
from coterie.learn.learner import Learner

T = TypeVar("T")
Exchange = Generator[Ask, Answers, T]  # asks as often as it needs, and returns a T


@dataclass(frozen=True)
class Server:
    """What a server knows beside its state: who its clients are, what they can do, and the seed."""

    learner: Learner
    spec: Spec
    ids: np.ndarray
    tokens: np.ndarray  # that stand for the ids where randomness is derived
    present: Int[np.ndarray, " present"]  # positions of the clients that can be asked now
    seed: int

    @classmethod
    def of(cls, federation: Federation, learner: Learner, seed: int) -> Server:
        """The server of a federation."""
        return cls(learner, federation.spec, federation.ids, federation.tokens, federation.present(), seed)

    @property
    def clients(self) -> int:
        return len(self.ids)

    def key(self, purpose: str) -> Key[Array, ""]:
        """The key of one purpose of the run."""
        return keys.purpose(self.seed, purpose)

    def start_key(self, start: int) -> Key[Array, ""]:
        """The key of one of the starts that run side by side."""
        return jax.random.fold_in(self.key("init"), start)
