"""A federation that keeps count of what is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

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


def with_count(federation: Federation, count: Count) -> Federation:
    """The same clients; what is asked of them, one ask at a time, is added to the count."""
    return cast(Federation, _Counted(federation, count))


class _Counted:
    def __init__(self, federation: Federation, count: Count) -> None:
        self._federation, self._count = federation, count

    def ask(self, *arguments: Any, **settings: Any) -> Answers:
        answers = self._federation.ask(*arguments, **settings)
        self._count.add(answers)
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)
