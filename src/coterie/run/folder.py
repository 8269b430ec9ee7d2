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

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from coterie import storage
from coterie.algorithms.observer import Moment, Observer, Place, Saved
from coterie.clustering import result
from coterie.clustering.history import Record, from_line
from coterie.data.shards import Spec
from coterie.errors import ConfigError, RunFolderError
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


# before the last word of an experiment that has begun; what is not a folder's own may be changed
SEAL = "# A run has begun with this. Copy it to change it: "


class RunFolder:
    """A run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def experiment(self) -> Experiment:
        """The experiment that the folder belongs to."""
        file = self.path / EXPERIMENT
        if not file.exists():
            raise RunFolderError(f"{self.path} holds no run ({EXPERIMENT} is missing).")
        try:
            found = Experiment.read(Experiment.from_file(file))
        except ConfigError as error:
            raise RunFolderError(f"{file} is damaged: {error}") from error
        content, seal, written = file.read_text("utf-8").rpartition(SEAL)
        if seal and storage.digest(content.encode()) != written.strip():
            raise RunFolderError(
                f"{file} was changed after the run began: undo that, or run a copy of it with another --out."
            )
        return found

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
            content = experiment.to_toml() + "\n"
            storage.write_text(self.path / EXPERIMENT, f"{content}{SEAL}{storage.digest(content.encode())}\n")

    @contextmanager
    def claimed(self, experiment: Experiment, resume: bool, overwrite: bool) -> Iterator[None]:
        """The folder as this experiment's, in which no other process computes meanwhile; see `claim`."""
        if not self.path.exists():
            with storage.writing(self.path):
                self.path.mkdir(parents=True)
        with _locked(self.path):
            self.claim(experiment, resume, overwrite)
            yield

    def check(self, experiment: Experiment) -> None:
        """See that the run in the folder is of this experiment."""
        unlike = difference(self.experiment(), experiment)
        if unlike:
            raise RunFolderError(
                f"{self.path} belongs to another experiment: {unlike}. "
                "Choose another --out, or replace it with --overwrite."
            )

    def began_with(self) -> tuple[np.ndarray, Spec] | None:
        """The ids of the clients at the last checkpoint, and the shape of an example."""
        saved = _checkpoint(self.path / CHECKPOINT)
        return None if saved is None else saved[:2]

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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by this process alone, which needs no file: the system lets go when a process ends, however."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    number = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"another process computes in {path}: wait until it has ended, or choose another --out."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(number)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class _Lines(NamedTuple):
    """Of the file of rounds: what it held at some moment."""

    number: int
    digest: str


def _checkpoint(path: Path) -> tuple[np.ndarray, Spec, Place, _Lines] | None:
    """What a checkpoint says of itself: clients, shape of an example, where the run stands, lines so far."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            words = file.metadata() or {}
        ids, spec = np.array(json.loads(words["clients"])), Spec.from_json(json.loads(words["spec"]))
        done, first, last, ended = json.loads(words["place"])
        place = Place(int(done), int(first), int(last), bool(ended))
        return ids, spec, place, _Lines(int(words["lines"]), words["rounds"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} does not fit this experiment ({str(error).rstrip('.')}): start again with --overwrite."
        ) from error


class Recorder(Observer):
    """Writes a run down as it happens, and restores it.

    A line per round is flushed at once. The state is kept every `every` seconds: rounds after the last
    checkpoint are computed again on resuming, with the same result.
    """

    def __init__(self, folder: RunFolder, every: float = 5.0) -> None:
        self._rounds = folder.path / result.ROUNDS
        self._checkpoint = folder.path / CHECKPOINT
        self._every = every
        self._saved = time.monotonic()
        self._lines: int | None = None  # that the file of rounds holds; None while they are not this run's
        self._written = hashlib.blake2b(digest_size=16)  # of these

    def saved(self) -> Saved | None:
        """The run at the last checkpoint; see `Observer`."""
        found = _checkpoint(self._checkpoint)
        if found is None:
            return None
        ids, spec, place, lines = found
        arrays, records = storage.read_arrays(self._checkpoint), self._kept_records(lines)
        return Saved(arrays, place, ids, spec, records, str(self._checkpoint))

    def resumed(self, moment: Moment) -> None:
        """What is written down is what led there; see `Observer`."""
        content = "".join(record.to_line() + "\n" for record in moment.new)
        storage.write_text(self._rounds, content)
        self._written = hashlib.blake2b(content.encode(), digest_size=16)
        self._lines = len(moment.new)

    def _kept_records(self, kept: _Lines) -> list[Record]:
        # lines after the checkpoint, the last perhaps torn, belong to rounds that are computed again
        content = self._rounds.read_bytes() if self._rounds.exists() else b""
        lines = content.splitlines(keepends=True)[: kept.number]
        try:
            records = [from_line(line.decode()) for line in lines]
        except (LookupError, TypeError, ValueError) as error:
            raise RunFolderError(
                f"{self._rounds} is damaged ({error!r}): start again with --overwrite."
            ) from error
        if len(records) < kept.number:
            raise RunFolderError(
                f"{self._rounds} lacks rounds that were computed: start again with --overwrite."
            )
        if storage.digest(b"".join(lines)) != kept.digest:
            raise RunFolderError(f"{self._rounds} was changed: start again with --overwrite.")
        return records

    def wants_states(self) -> bool:
        """When the last checkpoint is old enough; see `Observer`."""
        return time.monotonic() - self._saved >= self._every

    def after(self, moment: Moment) -> None:
        """Something happened; see `Observer`."""
        if self._lines is None:
            storage.write_text(self._rounds, "")
        content = "".join(record.to_line() + "\n" for record in moment.new).encode()
        with storage.writing(self._rounds), open(self._rounds, "ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._written.update(content)
        self._lines = (self._lines or 0) + len(moment.new)
        if moment.states is not None and self.wants_states():
            metadata = {
                "place": json.dumps(moment.place),
                "lines": str(self._lines),
                "rounds": self._written.hexdigest(),
                "clients": json.dumps(moment.ids.tolist()),
                "spec": json.dumps(asdict(moment.spec)),
            }
            storage.write_arrays(self._checkpoint, stacked.named(moment.states), metadata)
            self._saved = time.monotonic()
