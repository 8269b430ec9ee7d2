"""Rounds as they happen: a progress bar on a terminal, plain lines when piped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from coterie.algorithms.observer import Moment, Observer
from coterie.clustering.history import Event, Record, RoundLog


def status(log: RoundLog) -> tuple[str, str]:
    """Loss and cluster sizes of the best restart so far, in words."""
    going = [restart for restart, sizes in enumerate(log.sizes) if sizes]
    best = min(going, key=lambda r: np.inf if np.isnan(log.loss[r]) else log.loss[r])
    sizes = log.sizes[best]
    shown = f"clusters {' '.join(map(str, sizes))}" if len(sizes) <= 8 else f"{len(sizes)} clusters"
    return f"{log.loss[best]:.4f}", shown


def rate(logs: list[RoundLog]) -> str:
    """Rounds per second of the rounds just computed."""
    seconds = sum(log.seconds for log in logs)
    return f"{len(logs) / seconds:.1f}" if seconds > 0 else "–"


def show_events(console: Console, name: str, records: Sequence[Record]) -> list[RoundLog]:
    """Print what happened between rounds; the records of rounds among these."""
    for event in records:
        if isinstance(event, Event):
            console.print(f"{name}: {event.text}", soft_wrap=True, highlight=False, markup=False)
    return [record for record in records if isinstance(record, RoundLog)]


def live(console: Console, *fields: str) -> Progress:
    """A progress bar as all of ours look, with some fields of its own."""
    return Progress(
        SpinnerColumn(),
        TextColumn("[bold]{task.description:<8}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *map(TextColumn, fields),
        TimeRemainingColumn(compact=True),
        console=console,
    )


class _Shown(Observer):
    """Shows a run that goes on as far as it is."""

    def resumed(self, moment: Moment) -> None:
        self.after(moment)

    def wants_states(self) -> bool:
        return False


@contextmanager
def bar(console: Console, name: str, rounds: int) -> Iterator[Observer]:
    """A live progress bar."""
    fields = ("loss {task.fields[loss]}", "{task.fields[sizes]}", "{task.fields[rate]} rounds/s")
    with live(console, *fields) as progress:
        task = progress.add_task(name, total=rounds or None, loss="–", sizes="clusters –", rate="–")

        class Bar(_Shown):
            def after(self, moment: Moment) -> None:
                logs = show_events(console, name, moment.new)
                if logs:
                    loss, sizes = status(logs[-1])
                    progress.update(
                        task, completed=moment.place.done, loss=loss, sizes=sizes, rate=rate(logs)
                    )

        yield Bar()


@contextmanager
def lines(console: Console, name: str, rounds: int) -> Iterator[Observer]:
    """A plain line for about every tenth of the rounds, and for the last."""
    every = max(1, rounds // 10)

    class Lines(_Shown):
        def after(self, moment: Moment) -> None:
            logs, done = show_events(console, name, moment.new), moment.place.done
            if logs and (done // every > (done - len(logs)) // every or done == rounds):
                loss, sizes = status(logs[-1])
                line = f"{name}: round {done}/{rounds}, loss {loss}, {sizes}, {rate(logs)} rounds/s"
                console.print(line, soft_wrap=True, highlight=False)

    yield Lines()


@contextmanager
def every_round(console: Console, name: str, rounds: int) -> Iterator[Observer]:
    """A plain line for every round, for rounds that take seconds: who was left out, and why."""

    class Rounds(_Shown):
        def after(self, moment: Moment) -> None:
            for log in show_events(console, name, moment.new):
                loss, sizes = status(log)
                line = f"{name}: round {log.round + 1}/{rounds}, loss {loss}, {sizes}, {log.seconds:.1f} s"
                console.print(line, soft_wrap=True, highlight=False, markup=False)
                for reason, clients in log.missing.items():
                    left_out = f"  left out: {', '.join(clients)} ({reason})"
                    console.print(left_out, soft_wrap=True, markup=False)

    yield Rounds()
