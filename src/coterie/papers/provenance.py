"""How results were computed, to be kept with them."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jax

import coterie


def provenance(precision: str) -> dict[str, Any]:
    """Device, precision and versions."""
    devices = jax.local_devices()
    return {
        "device": devices[0].device_kind,
        "devices": len(devices),
        "precision": precision,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "coterie": coterie.__version__,
        "commit": commit(),
    }


@cache
def commit() -> str | None:
    """The commit that this code is of, "+ changes" where files differ from it; None outside a checkout.

    Where the code was copied without its history, COTERIE_COMMIT tells.
    """
    if told := os.environ.get("COTERIE_COMMIT"):
        return told
    package = Path(coterie.__file__).parent
    # an environment may lie inside somebody's checkout of something else
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    number, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", ".")
    return number and number + (" + changes" if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
