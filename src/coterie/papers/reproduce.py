"""Carrying an experiment out: point by point into a folder, then figure, table and results."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from coterie import storage
from coterie.errors import ConfigError
from coterie.federation import tuning
from coterie.papers.everything import default_folder, outcome
from coterie.papers.experiment import Arrays, Experiment, Point, Row
from coterie.papers.figures import figure_of, find
from coterie.papers.folder import BATCH, ResultFolder
from coterie.papers.provenance import provenance

# told how many steps are behind us, of how many in all, and in words when a point is finished
Show = Callable[[int, str | None], None]
Progress = Callable[[str, int], AbstractContextManager[Show]]


def reproduce(
    name: str,
    scale: str = "small",
    preset: str = "text",
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    trials: int | None = None,
    only: str | None = None,
) -> dict[str, Any]:
    """Compute a figure or table of a paper and write it down.

    Parameters
    ----------
    name
        Which one, such as `"ifca/fig2a"`; `FIGURES` lists them.
    scale
        `"smoke"`, `"small"` or `"paper"`: how large.
    preset
        `"text"`, `"authors"` or `"fair"`: after the paper's text, after the authors' released code, or with
        equal budgets and settings that are all chosen alike. `Figure.presets` has those there are.
    seed
        Everything random.
    out
        The folder; `runs/NAME-SCALE-PRESET-SEED` when not given. Points that it holds are not computed
        again. Figures that share their points have one folder, and in it one of its own each.
    progress
        `progress(name, steps)` gives a context in which steps are shown.
    trials
        How many, instead of as many as the scale has.
    only
        Compute these parts of a table and leave the others open: those whose names contain these words, or
        match them where they hold a `*`. Parts that are in the folder are shown, too.

    Returns
    -------
    dict
        What `results.json` holds, and the `folder`.
    """
    experiment = find(name, scale, preset, trials)
    folder = _folder(name, scale, preset, seed, out, trials)
    try:
        compute(name, scale, preset, seed, out, progress, trials, only)
    except KeyboardInterrupt:
        if experiment.in_parts and any(folder.file(point).exists() for point in experiment.points()):
            _write(folder, experiment, name, scale, preset, seed)
        raise
    return _write(folder, experiment, name, scale, preset, seed)


def _folder(
    name: str, scale: str, preset: str, seed: int, out: str | Path | None, trials: int | None
) -> ResultFolder:
    return ResultFolder(out or default_folder(name, scale, preset, seed, trials=trials))


def _write(
    folder: ResultFolder, experiment: Experiment, name: str, scale: str, preset: str, seed: int
) -> dict[str, Any]:
    """Figure, table and results of the points that are there."""
    kept = [(point, folder.kept(point)) for point in experiment.points()]
    results = {point.name: one[0] for point, one in kept if one is not None}
    how = {point.name: one[1] for point, one in kept if one is not None}
    content: dict[str, Any] = {
        "name": name,
        "title": figure_of(name).title,
        "scale": scale,
        "preset": preset,
        "seed": seed,
        "settings": experiment.settings(),
        "notes": experiment.notes(),
        "findings": [asdict(finding) for finding in experiment.findings(results)],
        "overview": experiment.overview(results),
        "table": experiment.table(results),
        "points": how,
    }
    path = outcome(name, folder.path)
    storage.write_json(path / "results.json", content)
    storage.write_text(path / "table.csv", as_csv(content["table"]))
    storage.write_text(path / "table.md", as_markdown(content))
    _write_pictures(path, experiment, results)
    return {"folder": str(path), **content}


def compute(
    name: str,
    scale: str = "small",
    preset: str = "text",
    seed: int = 0,
    out: str | Path | None = None,
    progress: Progress | None = None,
    trials: int | None = None,
    only: str | None = None,
) -> ResultFolder:
    """The part of `reproduce` that takes long: all points, kept in the folder. It needs no Matplotlib."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"--seed {seed}: choose a whole number from 0 up to {2**32 - 1}.")
    experiment = find(name, scale, preset, trials)
    points, steps = _chosen(experiment, name, only), experiment.steps
    folder = _folder(name, scale, preset, seed, out, trials)
    shared = figure_of(name).shared
    own = {"scale": scale, "preset": preset} if shared else {}
    folder.claim({"name": shared or name, "seed": seed, **own, **experiment.settings()}, bool(shared))
    shown = progress(name, steps * len(points)) if progress else nullcontext(lambda done, said: None)
    # what is not to be computed now may be there from before
    others = [point for point in experiment.points() if point not in points]
    known: dict[str, Arrays] = {
        point.name: kept[0] for point in others if (kept := folder.kept(point)) is not None
    }
    with tuning.remembered_in(folder.path / BATCH), shown as show:
        for number, point in enumerate(points):
            kept = folder.kept(point)
            if kept is None:
                began = time.perf_counter()
                progress_of = lambda done: show(number * steps + done, None)  # noqa: B023, E731
                result = experiment.compute(point, seed, progress_of, known)
                seconds = round(time.perf_counter() - began, 3)
                folder.keep(point, result, {"seconds": seconds, **provenance(experiment.precision(point))})
                how = f"{seconds:.1f} s"
            else:
                result, how = kept[0], "kept from before"
            known[point.name] = result
            said = f"{point.name}: {experiment.headline(point, result)} ({how})"
            show((number + 1) * steps, said)
    return folder


def _chosen(experiment: Experiment, name: str, only: str | None) -> Sequence[Point]:
    points = experiment.points()
    if only is None:
        return points
    if not experiment.in_parts:
        raise ConfigError(f"--only {only!r}: {name} needs all of its parts; --only is for tables.")
    pattern = only if "*" in only else f"*{only}*"
    chosen = [point for point in points if fnmatchcase(point.name, pattern)]
    if not chosen:
        raise ConfigError(
            f"--only {only!r}: no part of {name} is called so; they are called {points[0].name!r} to "
            f"{points[-1].name!r}."
        )
    return chosen


def _write_pictures(path: Path, experiment: Experiment, results: Mapping[str, Arrays]) -> None:
    from coterie.papers.pictures import rendered  # Matplotlib takes a second to import

    for form, content in rendered(lambda: experiment.draw(results)).items():
        storage.write_bytes(path / f"figure.{form}", content)


def as_csv(rows: Sequence[Row]) -> str:
    """The table for programs: numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_markdown(content: Mapping[str, Any]) -> str:
    """The table for people, below what it is and above what was found."""
    rows = content["table"]
    lines = [
        f"# {content['title']}",
        "",
        f"Scale `{content['scale']}`, preset `{content['preset']}`, seed {content['seed']}.",
        "",
        *(f"- {note}" for note in content["notes"]),
        "",
        "![the figure](figure.svg)",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(cell(value) for value in row.values()) + " |" for row in rows),
    ]
    for finding in content["findings"]:
        lines += ["", f"- paper: {finding['paper']}", f"- found: {finding['found']}{verdict(finding)}"]
    return "\n".join(lines) + "\n"


def cell(value: Any) -> str:
    """A value of the table as people read it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def verdict(finding: Mapping[str, Any]) -> str:
    """Whether paper and results agree, where they decide it."""
    return {True: " **It agrees.**", False: " **It disagrees.**", None: ""}[finding["agrees"]]
