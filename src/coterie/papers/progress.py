"""Points as they are finished: below a progress bar on a terminal, as plain lines when piped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from coterie.papers.reproduce import Show
from coterie.run.progress import live


@contextmanager
def bar(console: Console, name: str, steps: int) -> Iterator[Show]:
    """A live progress bar, and a line for every finished point."""
    with live(console) as progress:
        task = progress.add_task(name, total=steps)

        def show(done: int, said: str | None) -> None:
            progress.update(task, completed=done)
            if said is not None:
                progress.console.print(said, highlight=False, markup=False)

        yield show


@contextmanager
def lines(console: Console, name: str, steps: int) -> Iterator[Show]:
    """A plain line for every finished point."""

    def show(done: int, said: str | None) -> None:
        if said is not None:
            console.print(f"{name}: {done}/{steps}, {said}", soft_wrap=True, highlight=False, markup=False)

    yield show
