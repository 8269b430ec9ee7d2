"""What a user did wrong, in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from coterie.errors import CoterieError


@contextmanager
def clear_errors() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 2, never a traceback."""
    try:
        yield
    except CoterieError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except OSError as error:
        if error.filename is None:
            raise
        # a path that may not even be looked at
        print(f"error: {error.filename}: {error.strerror}.", file=sys.stderr)
        raise typer.Exit(2) from None
