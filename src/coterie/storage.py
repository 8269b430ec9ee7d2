"""Files that are either whole or not there: written beside, synced, then moved into place. No pickles.

What a run goes on from says what it was when it was written (a digest), so that a disk's error, or somebody's
hand, is an error message and not another result.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from coterie.errors import RunFolderError, StorageError

DIGEST = "digest"  # the name under which a file has it


def cache() -> Path:
    """Where we keep what only saves time when it is there."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("COTERIE_CACHE") or Path(user) / "coterie")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an operating-system error while writing into one clear sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"cannot write {path}: {reason}. What was written before is intact; make room or choose another "
            "folder, and continue with --resume."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers, and a crash at any moment, see the old or the new one."""
    beside = path.with_name(f".{path.name}.part")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def digest(content: bytes) -> str:
    """What tells whether a content is still what it was."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def write_arrays(path: Path, arrays: Mapping[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Named arrays as a safetensors file."""
    plain = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    metadata = metadata or {}
    write_bytes(path, to_bytes(plain, {**metadata, DIGEST: _digest_of(plain, metadata)}))


def _digest_of(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    found = hashlib.blake2b(digest_size=16)
    words = {name: word for name, word in metadata.items() if name != DIGEST}
    shapes = {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}
    found.update(json.dumps([words, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file by name."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
        arrays = dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}.") from error
    if DIGEST in metadata and metadata[DIGEST] != _digest_of(arrays, metadata):
        raise RunFolderError(f"{path} is damaged: it does not hold what was written to it.")
    return arrays
