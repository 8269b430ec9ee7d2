"""New arrays for the examples of clients: in memory, or memory-mapped files of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie import storage

Allocate = Callable[[str, tuple[int, ...], np.dtype[Any]], np.ndarray]


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """A new array in memory, which has no use for a name."""
    return np.empty(shape, dtype)


def in_folder(folder: Path) -> Allocate:
    """Arrays in a folder: each is a new file NAME.npy, memory-mapped, for which there is room on the disk."""
    with storage.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        path = folder / f"{name}.npy"
        with storage.writing(path):
            # a new file, never the old one overwritten: it may be mapped by the very shards that are saved
            path.unlink(missing_ok=True)
            array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            # a full disk should be an error now, not a crash when a page of the map is written
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            return array

    return allocate
