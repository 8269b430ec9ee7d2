"""Numbers and names as a reader wants them."""

from __future__ import annotations


def count(number: int, noun: str) -> str:
    """`3 clients`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
