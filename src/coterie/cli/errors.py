"""What a user did wrong, in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from coterie.errors import CoterieError


@contextmanager
def clear_errors(speaker: str = "", silent: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 2, never a traceback.

    `speaker` tells who says it, where there are several; some errors are left for others to say.
    """
    try:
        yield
    except (CoterieError, OSError) as error:
        sentence = str(error)
        if isinstance(error, OSError):  # a path that may not even be looked at
            if error.filename is None:
                raise
            sentence = f"{error.filename}: {error.strerror}."
        if not isinstance(error, silent):
            print(f"error: {speaker}{sentence}", file=sys.stderr)
        raise typer.Exit(2) from None
