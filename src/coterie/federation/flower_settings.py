"""What a server expects of clients that it does not own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.errors import SettingError


@dataclass(frozen=True)
class FlowerSettings:
    """How many clients there must be, how long they are waited for, and what is accepted from them.

    Parameters
    ----------
    min_clients
        How many clients must be there before anything is asked.
    min_replies
        How many of the clients asked must answer, as a fraction of them or as a number; fewer are an error.
    deadline
        Seconds a client has to answer.
    wait
        Seconds to wait for enough clients to be connected, at the start and before every ask.
    max_norm
        The largest norm of a model or gradient that is accepted from a client.
    poll
        Seconds between two looks for answers.
    """

    min_clients: int = 2
    min_replies: float | int = 0.5
    deadline: float = 600.0
    wait: float = 600.0
    max_norm: float = 1e6
    poll: float = 0.25

    def __post_init__(self) -> None:
        if self.min_clients < 1:
            raise SettingError(f"min_clients must be at least 1, not {self.min_clients}.")
        whole = type(self.min_replies) is int and self.min_replies >= 1
        if not whole and not (isinstance(self.min_replies, float) and 0 < self.min_replies <= 1):
            raise SettingError(
                "min_replies must be a fraction above 0 and up to 1.0 of those asked, or a number of clients "
                f"from 1 up, not {self.min_replies!r}."
            )
        for name in ("deadline", "wait", "max_norm", "poll"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} must be positive, not {getattr(self, name)}.")

    def needed(self, asked: int) -> int:
        """How many of the clients asked must answer."""
        if isinstance(self.min_replies, int):
            return min(self.min_replies, asked)
        return max(1, math.ceil(self.min_replies * asked - 1e-9))  # 0.07 of 100 are 7
