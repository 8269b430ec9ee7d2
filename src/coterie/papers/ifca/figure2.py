"""Figures of Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning".

Figure 2: the probability that IFCA recovers all true models of a mixture of linear regressions (section 6.1).

Two readings. `text` follows the paper. `authors` follows the released code where it differs: true models are
R times their Bernoulli coordinates and not rescaled to norm R; a learned model is compared with the true one
nearest to it; 0.001 is added to the threshold in (a) and (b); and (c) and (d) have the R that the saved plots
hold, not that of the text.
"""

from __future__ import annotations

from functools import partial

from coterie.papers.experiment import Figure, Scale
from coterie.papers.ifca.success import Axis, Success

SIGMAS, SEPARATIONS, EXAMPLES = (0.0, 0.1, 0.2, 0.4), (0.1, 0.25, 0.5, 0.75, 1.0), (50, 100, 200)
RATES = {2: (0.01, 0.1, 1.0), 4: (0.5, 1.0, 2.0)}
MANY = {2: (50, 70, 100, 150, 200, 300, 400), 4: (100, 200, 300, 400, 800)}
FEW = {2: (100, 400), 4: (200, 800)}  # of which, for a smoke test


def _separation(panel: str, k: int, m: int, scale: Scale, preset: str) -> Success:
    smoke = scale == "smoke"
    return _at(
        scale,
        panel=panel,
        k=k,
        across="R",
        by="sigma",
        R=(0.1, 1.0) if smoke else SEPARATIONS,
        sigma=(0.0, 0.1) if smoke else SIGMAS,
        m=(m,),
        n=(100,),
        preset=preset,
    )


def _amount(panel: str, k: int, R: float, saved_R: float, scale: Scale, preset: str) -> Success:
    smoke = scale == "smoke"
    return _at(
        scale,
        panel=panel,
        k=k,
        across="m",
        by="n",
        R=(saved_R if preset == "authors" else R,),
        sigma=(0.1,),
        m=FEW[k] if smoke else MANY[k],
        n=(50, 200) if smoke else EXAMPLES,
        preset=preset,
    )


def _at(
    scale: Scale,
    *,
    panel: str,
    k: int,
    across: Axis,
    by: Axis,
    R: tuple[float, ...],
    sigma: tuple[float, ...],
    m: tuple[int, ...],
    n: tuple[int, ...],
    preset: str,
) -> Success:
    """A panel at a scale; d/(mn/k), examples per unknown, is the same at all of them."""
    smaller_d, smaller_m, smaller_n = {"paper": (1, 1, 1), "small": (5, 5, 1), "smoke": (50, 10, 5)}[scale]
    trials, starts, rounds = {"paper": (40, 10, 300), "small": (10, 10, 300), "smoke": (4, 3, 60)}[scale]
    return Success(
        panel=panel,
        k=k,
        dim=1000 // smaller_d,
        across=across,
        by=by,
        R=R,
        sigma=sigma,
        m=tuple(clients // smaller_m for clients in m),
        n=tuple(examples // smaller_n for examples in n),
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
        partial(_separation, "2(a)", 2, 100),
    ),
    Figure(
        "ifca/fig2b",
        "IFCA, Figure 2(b): success against separation R and noise sigma, k = 4",
        partial(_separation, "2(b)", 4, 400),
    ),
    Figure(
        "ifca/fig2c",
        "IFCA, Figure 2(c): success against clients m and examples n, k = 2",
        partial(_amount, "2(c)", 2, 0.1, 0.25),
    ),
    Figure(
        "ifca/fig2d",
        "IFCA, Figure 2(d): success against clients m and examples n, k = 4",
        partial(_amount, "2(d)", 4, 0.5, 0.75),
    ),
)
