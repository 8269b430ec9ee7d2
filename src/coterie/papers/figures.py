"""Which figures and tables can be computed again, of all papers."""

from __future__ import annotations

import importlib
from dataclasses import replace

from coterie.errors import ConfigError
from coterie.papers import ifca, mixed_regression, ours, srfca
from coterie.papers.experiment import Experiment, Figure

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (*ifca.FIGURES, *mixed_regression.FIGURES, *srfca.FIGURES, *ours.FIGURES)
}


def figure_of(name: str) -> Figure:
    """The figure of that name, or at that import path, such as `mypackage.FIGURE`."""
    if name in FIGURES:
        return FIGURES[name]
    module, _, attribute = name.rpartition(".")
    if "/" in name or not module:
        raise ConfigError(
            f"there is no {name!r} to reproduce; choose one of {', '.join(FIGURES)}, or give the import path "
            "of a figure of your own, such as 'mypackage.FIGURE'."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} cannot be imported: {error}.") from None
    if not isinstance(found, Figure):
        raise ConfigError(f"{name!r} is not a coterie.papers.Figure but {type(found).__name__}.")
    return found


def find(name: str, scale: str, preset: str, trials: int | None = None) -> Experiment:
    """The experiment of that name, scale and preset, with as many trials as the scale has if not given."""
    figure = figure_of(name)
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
