"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

PARTS = re.compile(r"([0-9]+)")  # numbers, and what is between them


def count(number: int, noun: str) -> str:
    """`3 clients`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_order(names: Iterable[Any]) -> list[str]:
    """Names as a reader counts: m2 before m10."""
    return sorted(
        map(str, names), key=lambda name: [int(p) if p.isdecimal() else p for p in PARTS.split(name)]
    )


def percent(text: Any) -> float | None:
    """The share that is meant by `25%`; None for anything else."""
    if not isinstance(text, str) or not text.endswith("%"):
        return None
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        return None
    return share if 0 < share < math.inf else None


def is_number(value: Any) -> bool:
    """Whether a setting is a number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)
