"""A federation that keeps count of what is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Key

from coterie.federation.protocol import Answers, Federation


@dataclass
class Count:
    """Exchanges with clients, and the bytes that they moved."""

    asks: int = 0
    bytes_down: int = 0
    bytes_spared: int = 0
    bytes_up: int = 0

    def add(self, answers: Answers) -> None:
        """One exchange more."""
        answered = np.asarray(answers.answered)
        down, spared, up = jax.device_get(answers.traffic).total(answered.reshape(len(answered), -1).any(1))
        self.asks += 1
        self.bytes_down += down
        self.bytes_spared += spared
        self.bytes_up += up


def with_count(federation: Federation, count: Count, key: Key[Array, ""] | None = None) -> Federation:
    """The same clients; what is asked of them, one ask at a time, is added to the count.

    Asks without a key of their own get one derived from `key`, so that not always the same clients drop out.
    """
    return cast(Federation, _Counted(federation, count, key))


class _Counted:
    def __init__(self, federation: Federation, count: Count, key: Key[Array, ""] | None) -> None:
        self._federation, self._count, self._key = federation, count, key

    def ask(self, *arguments: Any, **settings: Any) -> Answers:
        if self._key is not None:
            settings = {"key": jax.random.fold_in(self._key, self._count.asks), **settings}
        answers = self._federation.ask(*arguments, **settings)
        self._count.add(answers)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)
