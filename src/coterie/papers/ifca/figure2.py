"""Figure 2 of the IFCA paper: how often IFCA recovers the true models of a mixture of regressions.

Section 6.1, in two readings. `text` follows the paper, which does not say at what scale the starts are drawn:
they are coordinates of 0 and 1 as they come (`unscaled`), and rescaled to norm R like the true models
(`rescaled`). `authors` follows the released code where it differs: true models are R times their Bernoulli
coordinates and not rescaled to norm R; starts are unscaled; a learned model is compared with the true one
nearest to it; 0.001 is added to the threshold in (a) and (b); and (c) and (d) have the R that the saved plots
hold.

Printed in the text: k, d, the step sizes, how many starts, rounds and trials, the threshold, m and n in (a)
and (b), R in (c) and (d). The released code's: R and sigma in (a) and (b), m, n and sigma in (c) and (d).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from coterie.papers.experiment import Figure, Scale
from coterie.papers.ifca.panel import Panel

A = Panel(
    letter="a",
    k=2,
    dim=1000,
    across="R",
    by="sigma",
    R=(0.1, 0.25, 0.5, 0.75, 1.0),
    sigma=(0.0, 0.1, 0.2, 0.4),
    m=(100,),
    n=(100,),
    start=("unscaled", "rescaled"),
    rates=(0.01, 0.1, 1.0),
    starts=10,
    rounds=300,
    trials=40,
    preset="text",
    scale="paper",
)
B = replace(A, letter="b", k=4, m=(400,), rates=(0.5, 1.0, 2.0))
C = replace(
    A,
    letter="c",
    across="m",
    by="n",
    R=(0.1,),
    sigma=(0.1,),
    m=(50, 70, 100, 150, 200, 300, 400),
    n=(50, 100, 200),
)
D = replace(C, letter="d", k=4, R=(0.5,), m=(100, 200, 300, 400, 800), rates=B.rates)
SAVED_R = {"c": 0.25, "d": 0.75}  # that of the released code's saved plots


def _read(panel: Panel, scale: Scale, preset: str) -> Panel:
    """A panel as a preset reads it, at a scale; all scales have the same d/(mn/k), unknowns per example."""
    panel = replace(panel, preset=preset, scale=scale)
    if preset == "authors":
        panel = replace(panel, start=("unscaled",))
        if panel.letter in SAVED_R:
            panel = replace(panel, R=(SAVED_R[panel.letter],))
    if scale == "small":
        return replace(panel, dim=200, m=_over(5, panel.m), trials=10)
    if scale == "smoke":
        if panel.across == "R":
            panel = replace(panel, R=(0.1, 1.0), sigma=(0.0, 0.1))
        else:
            panel = replace(panel, m=(50 * panel.k, 200 * panel.k), n=(50, 200))
        m, n = _over(10, panel.m), _over(5, panel.n)
        return replace(panel, dim=20, m=m, n=n, starts=3, rounds=60, trials=4)
    return panel


def _over(divisor: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size // divisor for size in sizes)


def _figure(panel: Panel, against: str) -> Figure:
    title = f"IFCA, Figure 2({panel.letter}): success against {against}, k = {panel.k}"
    return Figure(f"ifca/fig2{panel.letter}", title, partial(_read, panel))


FIGURES: tuple[Figure, ...] = (
    _figure(A, "separation R and noise sigma"),
    _figure(B, "separation R and noise sigma"),
    _figure(C, "clients m and examples n"),
    _figure(D, "clients m and examples n"),
)
