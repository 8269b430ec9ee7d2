"""Compiled programs are kept on disk, so that a later process can begin at once."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
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
        warnings.warn(
            f"compiled programs are not kept for later: {folder} cannot be used ({error.strerror}). "
            "COTERIE_CACHE names another folder; JAX_ENABLE_COMPILATION_CACHE=false keeps none.",
            stacklevel=3,
        )
        config.update("jax_enable_compilation_cache", False)
        return
    config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's default: small programs are many
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # something may have been compiled before


def _make_room(folder: Path) -> None:
    """Delete the oldest programs where there are too many."""
    files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    size = sum(size for _, size, _ in files)
    for _, own, path in files:
        if size <= MOST_BYTES:
            break
        Path(path).unlink(missing_ok=True)
        size -= own
