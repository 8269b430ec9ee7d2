"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from coterie.run.report import style

NOTHING = "–"
LISTED = 16  # clusters named one by one


def listed(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = list(parts) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return NOTHING if share is None or math.isnan(share) else f"{100 * share:.1f}%"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def swatch(cluster: int) -> str:
    """A small square in the colour of a cluster, as HTML."""
    return f'<span class="swatch" style="background:{style.colour(cluster)}"></span>'
