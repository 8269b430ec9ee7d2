"""Pictures for the papers' figures, on white paper, in the colours of our reports."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import matplotlib.style
from matplotlib.figure import Figure

from coterie.run.report.style import MUTED, STYLE

DASHES = ("-", (0, (5, 2)), (0, (6, 2, 1.2, 2)), (0, (1.2, 1.6)))


def rendered(draw: Callable[[], Figure]) -> dict[str, bytes]:
    """A figure as PNG and SVG, by the ending of the file; the same bytes for the same results."""
    files = {}
    with matplotlib.style.context(["default", STYLE | {"svg.hashsalt": "coterie"}]):
        figure = draw()
        for form in ("png", "svg"):
            buffer = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else None
            figure.savefig(buffer, format=form, dpi=160, facecolor="white", metadata=metadata)
            files[form] = buffer.getvalue()
    return files


def at_scale(scale: str) -> str:
    """What a figure's small print says of its scale."""
    return "" if scale == "paper" else f" (scale: {scale})"


def titled(title: str, facts: Sequence[str], size: tuple[float, float]) -> Figure:
    """An empty figure with a title and small print above where its panels go."""
    figure = Figure(figsize=size, layout="constrained")
    top = 0.1 + 0.22 + 0.16 * len(facts) + 0.08  # inches
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0, 0, 1, 1 - top / size[1]))  # type: ignore[call-arg]
    figure.text(0.1 / size[0], 1 - 0.1 / size[1], title, va="top", fontsize=11, weight="bold")
    small_print = "\n".join(facts)
    figure.text(0.1 / size[0], 1 - 0.36 / size[1], small_print, va="top", fontsize=8, color=MUTED)
    return figure
