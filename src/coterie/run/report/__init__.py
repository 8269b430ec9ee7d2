"""The report of a run: one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from coterie import storage
from coterie.run.contents import read
from coterie.run.report.page import render

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a finished run and return its path.

    The page depends on the folder's contents alone: the same run gives the same bytes.
    """
    path = Path(folder) / "report.html"
    storage.write_text(path, render(read(Path(folder))))
    return path
