"""`coterie reproduce`: the papers' figures and tables, computed again."""

from __future__ import annotations

import json
import textwrap
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coterie.cli.errors import clear_errors


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="What to reproduce, such as ifca/fig2a; all are listed without it.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds), small (minutes on two cores), and paper or full: the largest of a figure."
        ),
    ] = "small",
    preset: Annotated[
        str,
        typer.Option(help="After the paper's text, or after the authors' released code: text or authors."),
    ] = "text",
    seed: Annotated[int, typer.Option(help="Everything random.")] = 0,
    trials: Annotated[int | None, typer.Option(help="How many.  [default: by scale]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to keep it.  [default: runs/NAME-SCALE-PRESET-SEED]")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Compute a figure of a paper again: what the paper claims beside what is found.

    Writes the figure (PNG, SVG), a table (CSV, Markdown) and all results with settings and provenance (JSON)
    to a folder. Every finished point is kept there, and the same command continues where it stopped.
    """
    with clear_errors():
        from coterie import papers  # takes a moment, which other commands need not spend
        from coterie.papers.progress import bar, lines

        if name is None or list_:
            _list(papers.FIGURES, json_)
            return
        console = Console(stderr=True)
        found = papers.reproduce(
            name,
            scale,
            preset,
            seed,
            out,
            progress=partial(bar if console.is_terminal else lines, console),
            trials=trials,
        )
        if json_:
            print(json.dumps(found))
        else:
            _show(Console(), found)


def _list(figures: Any, json_: bool) -> None:
    if json_:
        print(json.dumps([{"name": f.name, "title": f.title} for f in figures.values()]))
        return
    width = max(map(len, figures))
    for figure in figures.values():
        print(f"{figure.name:<{width}}  {figure.title}")


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
