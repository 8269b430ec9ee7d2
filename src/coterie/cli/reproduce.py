"""`coterie reproduce`: the papers' figures and tables, computed again."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli.errors import clear_errors
from coterie.cli.stop import Stop, stoppable
from coterie.errors import ConfigError, CoterieError
from coterie.words import count


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="What to reproduce, such as ifca/fig2a; all are listed without it.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Everything that is still missing, after what it will take.")
    ] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (minutes on two cores), and paper or full: the largest of a figure."
        ),
    ] = "small",
    preset: Annotated[
        str | None,
        typer.Option(
            help="After the paper's text, after the authors' released code, or with equal budgets and all "
            "tuned alike: text, authors or fair.  [default: text; with --all each]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random.")] = 0,
    trials: Annotated[int | None, typer.Option(help="How many.  [default: by scale]")] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Of a table only the parts with these words in their names, such as 'seed 0'."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep it; with --all the folder of all of them.  "
            "[default: runs/NAME-SCALE-PRESET-SEED]"
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compute a figure of a paper again: what the paper claims beside what is found.

    Writes the figure (PNG, SVG), a table (CSV, Markdown) and all results with settings and provenance (JSON)
    to a folder. Every finished point is kept there, and the same command continues where it stopped.
    """
    with clear_errors(), stoppable(lambda: "finished points are kept; the same command goes on.") as stop:
        from coterie import papers  # takes a moment, which other commands need not spend
        from coterie.papers.progress import bar, lines

        console = Console(stderr=True)
        progress = partial(_ending, stop, partial(bar if console.is_terminal else lines, console))
        if all_:
            if name is not None or trials is not None or only is not None:
                raise ConfigError(
                    "--all computes everything: give no name, no --trials and no --only with it."
                )
            _everything(scale, preset, seed, out, progress, json_)
            return
        if name is None or list_:
            _list(papers.FIGURES, json_)
            return
        found = papers.reproduce(name, scale, preset or "text", seed, out, progress, trials, only)
        if json_:
            print(json.dumps(found))
        else:
            _show(Console(), found)


@contextmanager
def _ending(stop: Stop, progress: Any, name: str, steps: int) -> Iterator[Any]:
    """Progress that is shown until Ctrl-C is pressed."""
    with progress(name, steps) as show:

        def shown(done: int, said: str | None) -> None:
            show(done, said)
            stop.now()

        yield shown


def _list(figures: Any, json_: bool) -> None:
    if json_:
        print(json.dumps([{"name": f.name, "title": f.title} for f in figures.values()]))
        return
    width = max(map(len, figures))
    for figure in figures.values():
        print(f"{figure.name:<{width}}  {figure.title}")


def _everything(
    scale: str, preset: str | None, seed: int, out: Path | None, progress: Any, json_: bool
) -> None:
    """Say what is missing and how long it takes, then compute it, whatever becomes of the one before."""
    from coterie import papers
    from coterie.papers.everything import default_folder, duration, outcome, tasks

    todo = tasks(scale, preset, seed, out)
    table = Table(title=f"Missing at scale {scale}", title_justify="left", box=SIMPLE_HEAD)
    for column in ("experiment", "preset", "points", "takes", "measured on"):
        table.add_column(column, justify="left" if column in ("experiment", "preset") else "right")
    for task in todo:
        if task.missing:
            points = f"{task.missing} of {task.points}"
            table.add_row(task.name, task.preset, points, duration(task.seconds), task.device or "–")
    console = Console(stderr=json_)  # where a program reads, only what it asked for
    if table.row_count:
        console.print(table)
        for device in sorted({task.device for task in todo if task.device}):
            seconds = sum(task.seconds or 0 for task in todo if task.device == device)
            console.print(f"In all {duration(seconds)}, measured on {device}.")
    finished, failed = [], []
    for task in todo:
        folder = default_folder(task.name, task.scale, task.preset, seed, out)
        if not task.missing and (outcome(task.name, folder) / "results.json").exists():
            continue
        try:
            papers.reproduce(task.name, task.scale, task.preset, seed, folder, progress)
            finished.append(str(folder))
        except CoterieError as error:
            failed.append(f"{task.name}, {task.preset}: {error}")
            print(f"error: {failed[-1]}", file=sys.stderr)
    if json_:
        print(json.dumps({"finished": finished, "failed": failed}))
    else:
        done = len(todo) - len(failed)
        console.print(f"{done} of {count(len(todo), 'experiment')} are in {out or 'runs'}.")
    if failed:
        raise typer.Exit(2)


def _show(console: Console, found: dict[str, Any]) -> None:
    from coterie.papers.reproduce import cell, verdict

    table = Table(title=found["title"], title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(found["overview"][0]):
        table.add_column(column, justify="right" if number else "left")
    for row in found["overview"]:
        table.add_row(*map(cell, row.values()))
    console.print(table)
    for note in found["notes"]:
        print(_wrapped("note:  ", note))
    for finding in found["findings"]:
        print()
        print(_wrapped("paper: ", finding["paper"]))
        print(_wrapped("found: ", finding["found"] + verdict(finding).replace("*", "")))
    print(f"\nThe figure, the table and all results are in {found['folder']}.")


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=head, subsequent_indent=" " * len(head))
