"""Ctrl-C: a sentence instead of a traceback, and never in vain."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from coterie.algorithms.observer import Moment, Observer

INTERRUPTED = 130  # the exit code of what Ctrl-C ended


class Stop(Observer):
    """Ends a run after the round in which Ctrl-C was pressed, if it did not end at once.

    Python drops an exception that is raised while it collects garbage, and XLA has it call back then.
    """

    asked = False

    def after(self, moment: Moment) -> None:
        """Something happened; see `Observer`."""
        self.now()

    def wants_states(self) -> bool:
        """Never; see `Observer`."""
        return False

    def now(self) -> None:
        """End what goes on, if that was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """What the signal calls."""
        self.asked = True
        raise KeyboardInterrupt


@contextmanager
def stoppable(advice: Callable[[], str], speaks: bool = True) -> Iterator[Stop]:
    """Inside, Ctrl-C ends the program with a sentence, which says how to go on, and exit code 130.

    A program that was started to ignore it, in the background of a shell, goes on doing so.
    """
    stop, before = Stop(), signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop.interrupt)
    try:
        yield stop
        stop.now()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again, it would cut the sentence short
        if speaks:  # of several processes one does
            print(f"stopped: {advice()}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, before)
