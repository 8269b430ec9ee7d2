"""All experiments: which of them are still to be computed, and how long that will take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax

from coterie.federation.devices import use_every_core
from coterie.papers import figures
from coterie.papers.experiment import Figure
from coterie.papers.folder import ResultFolder

TOOK = Path(__file__).with_name("took.json")  # benchmarks/took.py writes it


@dataclass(frozen=True)
class Task:
    """An experiment at one scale and in one reading, and what is missing of it.

    Attributes
    ----------
    missing, points
        How many points are to be computed, of how many in all.
    seconds
        What the missing ones take: by the points that are there, or else as measured on `device`, which may
        be another one than this; None where nobody has measured it.
    """

    name: str
    scale: str
    preset: str
    missing: int
    points: int
    seconds: float | None
    device: str | None


def tasks(scale: str, preset: str | None, seed: int, out: str | Path | None) -> list[Task]:
    """Every experiment at that scale, in every reading unless one is given.

    Of an experiment without that scale the nearest there is: `full` is called what cannot have the paper's
    size.
    """
    found = []
    promised: set[Path] = set()  # that experiments before it compute, and keep where it finds them
    for figure, of_scale, reading in _readings(scale, preset):
        folder = ResultFolder(default_folder(figure.name, of_scale, reading, seed, out))
        points = figures.find(figure.name, of_scale, reading).points()
        files = [folder.file(point) for point in points]
        there = [folder.kept(p) for p, file in zip(points, files, strict=True) if file.exists()]
        missing = len({file for file in files if not file.exists()} - promised)
        promised |= {*files}
        seconds, device = measured(figure.name, of_scale, reading)
        seconds = None if seconds is None else seconds * missing / len(points)
        if there:
            each = sum(kept[1]["seconds"] for kept in there if kept is not None) / len(there)
            seconds, device = each * missing, here()
        found.append(Task(figure.name, of_scale, reading, missing, len(points), seconds, device))
    return found


def _readings(scale: str, preset: str | None) -> Iterator[tuple[Figure, str, str]]:
    for figure in figures.FIGURES.values():
        of_scale = scale if scale in figure.scales else "full"
        for reading in figure.presets:
            if of_scale in figure.scales and preset in (None, reading):
                yield figure, of_scale, reading


def default_folder(
    name: str, scale: str, preset: str, seed: int, out: str | Path | None = None, trials: int | None = None
) -> Path:
    """The folder of an experiment's points, in `out` or in `runs`."""
    kept = figures.figure_of(name).shared or name
    parts = [kept.replace("/", "-"), scale, preset, str(seed), *([] if trials is None else [f"x{trials}"])]
    return Path(out or "runs") / "-".join(parts)


def outcome(name: str, folder: Path) -> Path:
    """Where in the folder of its points an experiment has its figure, its table and its results."""
    return folder / name.rpartition("/")[2] if figures.figure_of(name).shared else folder


def here() -> str:
    """The devices that compute, such as `1 x NVIDIA H200`."""
    use_every_core()  # before JAX starts, which it does here
    devices = jax.devices()
    return called(devices[0].device_kind, len(devices))


def called(kind: str, count: int) -> str:
    return f"{count} x {'CPU core' if kind == 'cpu' else kind}"


def measured(name: str, scale: str, preset: str) -> tuple[float | None, str | None]:
    """Seconds of an experiment, and the devices that took them: these if they are known, or any others."""
    of = _took().get(f"{name} {scale} {preset}", {})
    device = here() if here() in of else min(of, default=None)
    return (None, None) if device is None else (of[device], device)


@cache
def _took() -> dict[str, dict[str, float]]:
    content: dict[str, dict[str, float]] = json.loads(TOOK.read_text()) if TOOK.exists() else {}
    return content


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "not measured"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
