"""How all pictures look: colours, type, and SVG that fits into the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import matplotlib.style
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind eyes, without its black
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
UNKNOWN = "#D5D9DE"

# drawn in these colours, then replaced by the page's variables
INK, MUTED, GRID, PAPER, ACCENT = "#1b1f24", "#5d6671", "#d9dee5", "#fdfdfe", "#4f46c9"
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper", ACCENT: "--accent"}

WIDTH = 10.0  # inches; a page shows it about 940 pixels wide

STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib and is wider than what pages are shown in
    "font.size": 9,
    "text.parse_math": False,  # a client may be called $x$
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "svg.fonttype": "none",
}

P = ParamSpec("P")


def picture(draw: Callable[P, Figure]) -> Callable[P, str]:
    """Turn a function that draws a figure into one that returns SVG, the same for the same input."""

    @wraps(draw)
    def as_svg(*args: P.args, **kwargs: P.kwargs) -> str:
        buffer = io.StringIO()
        with matplotlib.style.context(["default", STYLE | {"svg.hashsalt": draw.__name__}]):
            figure = draw(*args, **kwargs)
            with warnings.catch_warnings():
                # the browser has the letters that the font text is measured with may lack
                warnings.filterwarnings("ignore", message="Glyph .* missing from font")
                figure.savefig(buffer, format="svg", metadata={"Date": None})
        return _for_page(buffer.getvalue())

    return as_svg


def _for_page(svg: str) -> str:
    head, body = svg[svg.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # numbered anew in every picture of the page
    for colour, variable in VARIABLES.items():
        body = body.replace(f": {colour}", f": var({variable})")
    return f"<svg {box[0] if box else ''}>{body.strip()}"


def colour(cluster: int) -> str:
    """The colour of a cluster, the same in all pictures; shades of the palette after its first seven."""
    turn, place = divmod(cluster, len(PALETTE))
    strength, white = ((1.0, 0.0), (0.55, 0.0), (0.45, 0.55))[turn % 3]
    red, green, blue = (strength * part + white for part in to_rgb(PALETTE[place]))
    return to_hex((red, green, blue))
