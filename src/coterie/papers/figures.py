"""Which figures and tables can be computed again, of all papers."""

from __future__ import annotations

from dataclasses import replace

from coterie.errors import ConfigError
from coterie.papers import ifca, mixed_regression, srfca
from coterie.papers.experiment import Experiment, Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (*ifca.FIGURES, *mixed_regression.FIGURES, *srfca.FIGURES)
}


def find(name: str, scale: str, preset: str, trials: int | None = None) -> Experiment:
    """The experiment of that name, scale and preset, with as many trials as the scale has if not given."""
    if name not in FIGURES:
        raise ConfigError(f"there is no {name!r} to reproduce; choose one of {', '.join(FIGURES)}.")
    figure = FIGURES[name]
    for option, value, known in (
        ("scale", scale, figure.scales),
        ("preset", preset, figure.presets),
    ):
        if value not in known:
            raise ConfigError(f"--{option} {value}: choose one of {', '.join(known)} for {name}.")
    experiment = figure.make(scale, preset)  # type: ignore[arg-type]
    if trials is None:
        return experiment
    if trials < 1:
        raise ConfigError(f"--trials {trials}: choose a whole number from 1 up.")
    return replace(experiment, trials=trials)  # type: ignore[type-var]
