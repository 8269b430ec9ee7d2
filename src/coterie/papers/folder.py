"""The out folder: settings, every finished point, and in the end the figure, the table and the results.

settings.json           everything that decides the results; a folder belongs to them
points/NAME.safetensors what a point gave, with its provenance
batch.json              how clients were batched, so that a continued experiment computes exactly the same
figure.png, figure.svg, table.csv, table.md, results.json      the outcome; in a folder of the name of each
                        figure where several share the points
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from coterie import storage
from coterie.errors import RunFolderError
from coterie.papers.experiment import Arrays, Point

SETTINGS, BATCH, POINTS = "settings.json", "batch.json", "points"


class ResultFolder:
    """Where an experiment is kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def claim(self, settings: dict[str, Any], shared: bool = False) -> None:
        """Make the folder that of these settings, or say whose it is.

        Where figures share it, each has settings for what it shows: what two of them have must be the same.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is not a folder: choose another --out.")
        wanted = json.loads(json.dumps(settings))  # JSON has no tuples
        file = self.path / SETTINGS
        if not file.exists():
            if (self.path / POINTS).exists():
                raise RunFolderError(f"{self.path} holds points but no {SETTINGS}: choose another --out.")
            storage.write_json(file, wanted)
            return
        known = storage.read_json(file)
        if not isinstance(known, dict):
            raise RunFolderError(f"{file} is damaged: choose another --out.")
        if shared:
            wanted, known = {**known, **wanted}, {**wanted, **known}
        for name in sorted({*wanted, *known}):
            if wanted.get(name) != known.get(name):
                raise RunFolderError(
                    f"{self.path} holds results of other settings: {name} is {_shown(known.get(name))} there "
                    f"and {_shown(wanted.get(name))} here; choose another --out."
                )
        if shared:
            storage.write_json(file, wanted)

    def file(self, point: Point) -> Path:
        return self.path / POINTS / f"{point.name.replace(' ', '-')}.safetensors"

    def kept(self, point: Point) -> tuple[Arrays, dict[str, Any]] | None:
        """A finished point and how it was computed; None where it is still to be computed."""
        file = self.file(point)
        if not file.exists():
            return None
        try:
            with safe_open(file, framework="numpy") as opened:
                how = json.loads(opened.metadata()["provenance"])
            return storage.read_arrays(file), how
        except (SafetensorError, TypeError, KeyError, ValueError, RunFolderError) as error:
            raise RunFolderError(
                f"{file} is damaged ({error}): remove it, and it is computed again."
            ) from error

    def keep(self, point: Point, result: Arrays, how: dict[str, Any]) -> None:
        storage.write_arrays(self.file(point), result, {"provenance": json.dumps(how)})


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)
