"""Which figures and tables there are."""

from __future__ import annotations

from typing import get_args

from coterie.errors import ConfigError
from coterie.papers import ifca
from coterie.papers.experiment import Experiment, Figure, Scale

FIGURES: dict[str, Figure] = {figure.name: figure for figure in ifca.FIGURES}


def find(name: str, scale: str, preset: str) -> Experiment:
    """The experiment of that name, scale and preset."""
    if name not in FIGURES:
        raise ConfigError(f"there is no {name!r} to reproduce; choose one of {', '.join(FIGURES)}.")
    figure = FIGURES[name]
    for option, value, known in (
        ("scale", scale, get_args(Scale)),
        ("preset", preset, figure.presets),
    ):
        if value not in known:
            raise ConfigError(f"--{option} {value}: choose one of {', '.join(known)} for {name}.")
    return figure.make(scale, preset)  # type: ignore[arg-type]
