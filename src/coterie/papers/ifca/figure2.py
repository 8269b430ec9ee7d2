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

from functools import partial

from coterie.papers.experiment import Figure, Scale
from coterie.papers.ifca.panel import Axis, Panel

SIGMAS, SEPARATIONS, EXAMPLES = (0.0, 0.1, 0.2, 0.4), (0.1, 0.25, 0.5, 0.75, 1.0), (50, 100, 200)
RATES = {2: (0.01, 0.1, 1.0), 4: (0.5, 1.0, 2.0)}
CLIENTS = {2: (50, 70, 100, 150, 200, 300, 400), 4: (100, 200, 300, 400, 800)}
SMOKE_CLIENTS = {2: (100, 400), 4: (200, 800)}


def _separation(letter: str, k: int, m: int, scale: Scale, preset: str) -> Panel:
    smoke = scale == "smoke"
    return _at(
        scale,
        letter=letter,
        k=k,
        across="R",
        by="sigma",
        R=(0.1, 1.0) if smoke else SEPARATIONS,
        sigma=(0.0, 0.1) if smoke else SIGMAS,
        m=(m,),
        n=(100,),
        preset=preset,
    )


def _amount(letter: str, k: int, R: float, saved_R: float, scale: Scale, preset: str) -> Panel:
    smoke = scale == "smoke"
    return _at(
        scale,
        letter=letter,
        k=k,
        across="m",
        by="n",
        R=(saved_R if preset == "authors" else R,),
        sigma=(0.1,),
        m=SMOKE_CLIENTS[k] if smoke else CLIENTS[k],
        n=(50, 200) if smoke else EXAMPLES,
        preset=preset,
    )


def _at(
    scale: Scale,
    *,
    letter: str,
    k: int,
    across: Axis,
    by: Axis,
    R: tuple[float, ...],
    sigma: tuple[float, ...],
    m: tuple[int, ...],
    n: tuple[int, ...],
    preset: str,
) -> Panel:
    """A panel at a scale; d/(mn/k), unknowns per example, is the same at all of them."""
    smaller_d, smaller_m, smaller_n = {"paper": (1, 1, 1), "small": (5, 5, 1), "smoke": (50, 10, 5)}[scale]
    trials, starts, rounds = {"paper": (40, 10, 300), "small": (10, 10, 300), "smoke": (4, 3, 60)}[scale]
    return Panel(
        letter=letter,
        k=k,
        dim=1000 // smaller_d,
        across=across,
        by=by,
        R=R,
        sigma=sigma,
        m=tuple(clients // smaller_m for clients in m),
        n=tuple(examples // smaller_n for examples in n),
        start=("unscaled",) if preset == "authors" else ("unscaled", "rescaled"),
        rates=RATES[k],
        starts=starts,
        rounds=rounds,
        trials=trials,
        preset=preset,
        scale=scale,
    )


FIGURES: tuple[Figure, ...] = (
    Figure(
        "ifca/fig2a",
        "IFCA, Figure 2(a): success against separation R and noise sigma, k = 2",
        partial(_separation, "a", 2, 100),
    ),
    Figure(
        "ifca/fig2b",
        "IFCA, Figure 2(b): success against separation R and noise sigma, k = 4",
        partial(_separation, "b", 4, 400),
    ),
    Figure(
        "ifca/fig2c",
        "IFCA, Figure 2(c): success against clients m and examples n, k = 2",
        partial(_amount, "c", 2, 0.1, 0.25),
    ),
    Figure(
        "ifca/fig2d",
        "IFCA, Figure 2(d): success against clients m and examples n, k = 4",
        partial(_amount, "d", 4, 0.5, 0.75),
    ),
)
