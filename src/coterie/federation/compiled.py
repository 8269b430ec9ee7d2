"""Compiled programs are kept on disk, so that a later process can begin at once."""

from __future__ import annotations

import contextlib
import glob
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax._src.compilation_cache
from jax.experimental.compilation_cache import compilation_cache

from coterie import storage

MOST_BYTES = 2**30  # on disk; what was compiled first goes first


def keep_compiled_programs() -> None:
    """Have JAX keep what it compiles in our cache folder, unless the user has said where, or not to.

    It is JAX's own cache: `JAX_ENABLE_COMPILATION_CACHE=false` turns it off, `JAX_COMPILATION_CACHE_DIR` puts
    it elsewhere. A folder that cannot be used costs time, never a result.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return
    folder = storage.cache() / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # it can be written to
        _make_room(folder)
    except OSError as error:
        _say_not_kept(folder, error)
        config.update("jax_enable_compilation_cache", False)
        return
    config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's default: small programs are many
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # something may have been compiled before
    _forgive(folder)


def _say_not_kept(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"compiled programs are not kept for later: {folder} cannot be used ({error.strerror}). "
        "COTERIE_CACHE names another folder; JAX_ENABLE_COMPILATION_CACHE=false keeps none.",
        stacklevel=4,
    )


def _forgive(folder: Path) -> None:
    """Have JAX do without entries that cannot be read or written, with one warning in all.

    By itself it warns for each program, and leaves a damaged entry where it is for good, since it never
    writes one that is there. It has no setting for that, so the functions by which it reads and writes an
    entry are wrapped; a version without them does as it does.
    """
    entries: Any = jax._src.compilation_cache
    read = getattr(entries, "get_executable_and_time", None)
    write = getattr(entries, "put_executable_and_time", None)
    if read is None or write is None:
        return
    said = {"damaged": False, "full": False}

    def remove(key: str) -> None:
        for entry in folder.glob(f"{glob.escape(key)}*"):
            with contextlib.suppress(OSError):
                entry.unlink()

    def reading(key: str, *rest: Any, **more: Any) -> Any:
        try:
            return read(key, *rest, **more)
        except Exception as error:  # whatever a decompressor or XLA makes of it
            remove(key)
            if not said["damaged"]:
                said["damaged"] = True
                warnings.warn(
                    f"programs in {folder} are damaged and compiled again ({type(error).__name__}: {error}).",
                    stacklevel=2,
                )
            return None, None

    def writing(key: str, *rest: Any, **more: Any) -> None:
        if said["full"]:
            return
        try:
            write(key, *rest, **more)
        except OSError as error:
            remove(key)  # it may be half written
            said["full"] = True
            _say_not_kept(folder, error)

    entries.get_executable_and_time, entries.put_executable_and_time = reading, writing


def _make_room(folder: Path) -> None:
    """Delete the oldest programs where there are too many."""
    files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    size = sum(size for _, size, _ in files)
    for _, own, path in files:
        if size <= MOST_BYTES:
            break
        Path(path).unlink(missing_ok=True)
        size -= own
