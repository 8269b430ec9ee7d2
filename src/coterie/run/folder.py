"""The run folder: experiment, rounds as they happen, a checkpoint, and in the end the clustering.

experiment.toml         everything that determines the run
batch.json              how clients were batched, so that a resumed run computes exactly the same
rounds.jsonl            one line per round, flushed as it happens
checkpoint.safetensors  the state after some round; replaced in one step
clustering.json, models.safetensors, evaluation.json      the result
baselines/NAME/         the same again for each method it is compared with
report.html             made by `coterie report`
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from coterie import storage
from coterie.algorithms.observer import Arrays
from coterie.algorithms.state import State
from coterie.clustering import result
from coterie.clustering.history import Record, from_line
from coterie.data.shards import Spec
from coterie.errors import ConfigError, RunFolderError, SettingError
from coterie.federation import Federation
from coterie.models import stacked
from coterie.run.config import Experiment, difference

EXPERIMENT, CHECKPOINT, EVALUATION, BATCH, BASELINES = (
    "experiment.toml",
    "checkpoint.safetensors",
    "evaluation.json",
    "batch.json",
    "baselines",
)
# in the order in which they are removed: the experiment last, so that remains never pass for another's run
OURS = (CHECKPOINT, EVALUATION, BATCH, result.FILE, result.MODELS, result.ROUNDS, "report.html", EXPERIMENT)
Show = Callable[[list[Record], int], None]


class RunFolder:
    """A run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def experiment(self) -> Experiment:
        """The experiment that the folder belongs to."""
        if not (self.path / EXPERIMENT).exists():
            raise RunFolderError(f"{self.path} holds no run ({EXPERIMENT} is missing).")
        try:
            return Experiment.read(Experiment.from_file(self.path / EXPERIMENT))
        except ConfigError as error:
            raise RunFolderError(f"{self.path / EXPERIMENT} is damaged: {error}") from error

    @property
    def exists(self) -> bool:
        return (self.path / EXPERIMENT).exists()

    @property
    def finished(self) -> bool:
        return (self.path / result.FILE).exists()

    def claim(self, experiment: Experiment, resume: bool, overwrite: bool) -> None:
        """Make the folder this experiment's, or say why it cannot be."""
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is not a folder: choose another --out.")
        if overwrite:
            self._clear()
        if self.exists:
            self.check(experiment)
            if not resume:
                raise RunFolderError(
                    f"{self.path} already holds this run: "
                    "continue it with --resume or replace it with --overwrite."
                )
        elif any((self.path / name).exists() for name in OURS):
            raise RunFolderError(
                f"{self.path} holds files of a run but no {EXPERIMENT}: "
                "choose another --out, or replace them with --overwrite."
            )
        else:
            storage.write_text(self.path / EXPERIMENT, experiment.to_toml())

    def check(self, experiment: Experiment) -> None:
        """See that the run in the folder is of this experiment."""
        unlike = difference(self.experiment(), experiment)
        if unlike:
            raise RunFolderError(
                f"{self.path} belongs to another experiment: {unlike}. "
                "Choose another --out, or replace it with --overwrite."
            )

    def _clear(self) -> None:
        """Remove what a run has written, and nothing else."""
        baselines = self.path / BASELINES
        for part in filter(Path.is_dir, sorted(baselines.glob("*"))):
            RunFolder(part)._clear()
            _remove_if_empty(part)
        _remove_if_empty(baselines)
        with storage.writing(self.path):
            for name in OURS:
                (self.path / name).unlink(missing_ok=True)

    def baseline(self, name: str) -> RunFolder:
        return RunFolder(self.path / BASELINES / name)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class Recorder:
    """Writes a run down as it happens, and restores it.

    A line per round is flushed at once. The state is kept every `every` seconds: rounds after the last
    checkpoint are computed again on resuming, with the same result.
    """

    def __init__(self, folder: RunFolder, show: Show | None = None, every: float = 5.0) -> None:
        self._rounds = folder.path / result.ROUNDS
        self._checkpoint = folder.path / CHECKPOINT
        self._show = show or (lambda logs, done: None)
        self._every = every
        self._saved = time.monotonic()
        self._lines = 0  # that the file of rounds holds

    def clients(self) -> tuple[np.ndarray, Spec] | None:
        """The ids of the clients at the last checkpoint and the shape of an example; see `Observer`."""
        if not self._checkpoint.exists():
            return None
        try:
            with safe_open(self._checkpoint, framework="numpy") as file:
                metadata = file.metadata()
            return np.array(json.loads(metadata["clients"])), Spec.from_json(json.loads(metadata["spec"]))
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise self._unfit(error) from error

    def resume(self, restored: Callable[[Arrays], State]) -> tuple[State, list[Record]] | None:
        """The state at the last checkpoint, and what led there; see `Observer`."""
        if not self._checkpoint.exists():
            storage.write_text(self._rounds, "")
            return None
        try:
            with safe_open(self._checkpoint, framework="numpy") as file:
                done, kept = (int((file.metadata() or {})[name]) for name in ("rounds", "lines"))
            state = restored(storage.read_arrays(self._checkpoint))
        except (SafetensorError, KeyError, ValueError, SettingError, StopIteration) as error:
            raise self._unfit(error) from error
        # lines after the checkpoint, the last perhaps torn, belong to rounds that are computed again
        lines = self._rounds.read_bytes().splitlines()[:kept] if self._rounds.exists() else []
        try:
            records = [from_line(line.decode()) for line in lines]
        except (LookupError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self._rounds} is damaged ({error!r}): start again with --overwrite."
            ) from error
        if len(records) < kept:
            raise RunFolderError(
                f"{self._rounds} lacks rounds that were computed: start again with --overwrite."
            )
        storage.write_text(self._rounds, "".join(record.to_line() + "\n" for record in records))
        self._lines = kept
        if records:
            self._show(records, done)
        return state, records

    def _unfit(self, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"{self._checkpoint} does not fit this experiment ({str(error).rstrip('.')}): "
            "start again with --overwrite."
        )

    def after(self, state: State, federation: Federation, records: list[Record], done: int) -> None:
        """Something happened; see `Observer`."""
        with storage.writing(self._rounds), open(self._rounds, "a") as file:
            file.writelines(record.to_line() + "\n" for record in records)
            file.flush()
            os.fsync(file.fileno())
        self._lines += len(records)
        if time.monotonic() - self._saved >= self._every:
            metadata = {
                "rounds": str(done),
                "lines": str(self._lines),
                "clients": json.dumps(federation.ids.tolist()),
                "spec": json.dumps(asdict(federation.spec)),
            }
            storage.write_arrays(self._checkpoint, stacked.named(state), metadata)
            self._saved = time.monotonic()
        if records:
            self._show(records, done)
