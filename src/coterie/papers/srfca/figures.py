"""The experiments: which methods on which clients, and how large."""

from __future__ import annotations

from functools import partial

from coterie.papers.experiment import Figure, Scale
from coterie.papers.srfca.authors import AUTHORS
from coterie.papers.srfca.comparison import Compared
from coterie.papers.srfca.methods import TEXT
from coterie.papers.srfca.setups import setup
from coterie.papers.srfca.views import VIEWS, OwnData

SCALES = ("smoke", "small", "full")  # none has the paper's sizes, which need the paper's data
TRIALS: dict[Scale, int] = {"smoke": 1, "small": 2, "paper": 5}
SHARED = "srfca/tables"  # where what is shown by Tables 1 to 5 and Figure 3 is kept


def _digits(scale: Scale, preset: str) -> Compared:
    """As many steps as the paper (280). It has 100 clients with 600 images; here are 1,438 in all."""
    clients, rounds, trials = {"full": (40, 56, 5), "small": (20, 56, 3), "smoke": (8, 6, 1)}[scale]
    return Compared(
        populations=("rotated", "inverted"),
        methods=tuple(TEXT),
        clients=clients,
        rounds=rounds,
        local=5,
        hidden=8 if scale == "smoke" else 64,
        trials=trials,
        scale=scale,
    )


def _synthetic(scale: Scale, preset: str) -> Compared:
    populations: tuple[str, ...]
    if preset == "authors":
        clients, rounds, trials = {"full": (50, 56, 5), "small": (50, 56, 2), "smoke": (8, 6, 1)}[scale]
        populations, methods = ("released",), tuple(AUTHORS)
    else:
        clients, rounds, trials = {"full": (100, 150, 5), "small": (100, 60, 5), "smoke": (8, 6, 1)}[scale]
        populations, methods = ("equal", "spread"), tuple(TEXT)
    return Compared(
        populations=populations,
        methods=methods,
        clients=clients,
        rounds=rounds,
        local=5,
        hidden=0,
        trials=trials,
        scale=scale,
    )


def _own_data(view: type[OwnData], data: tuple[str, ...], scale: Scale, preset: str) -> OwnData:
    return view(TRIALS[scale], scale, preset, tuple((name, setup(name, scale, preset)) for name in data))


FIGURES: tuple[Figure, ...] = (
    *(
        Figure(f"srfca/{name}", title, partial(_own_data, view, data), presets=presets, shared=SHARED)
        for name, (title, view, data, presets) in VIEWS.items()
    ),
    Figure(
        "srfca/digits",
        "SR-FCA, Tables 1, 2, 3 and 5 and Figure 3: all methods on rotated and inverted digits",
        _digits,
        presets=("text",),
        scales=SCALES,
    ),
    Figure(
        "srfca/synthetic",
        "SR-FCA, section 4: all methods on mixtures of regressions with equal and unequal clients",
        _synthetic,
        scales=SCALES,
    ),
)
