"""The devices that a simulation spreads its clients over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax


def local_devices() -> list[Any]:
    """The accelerators there are or, on a CPU, one JAX device per core.

    XLA runs the small products of a batch of clients one after another on one core. A device per core runs
    shares of the clients side by side: `benchmarks/cohort.py` prints what that gains. The number can only be
    set before JAX has started; a number that the user has set is left alone.
    """
    chosen = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen and getattr(jax.config, "jax_num_cpu_devices", 1) == -1:
        with contextlib.suppress(RuntimeError):  # JAX has started already: its devices are what they are
            jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
    return list(jax.local_devices())


def mesh(devices: Sequence[Any]) -> jax.sharding.Mesh | None:
    """A mesh with one axis, `clients`; None for a single device, which needs no partitioning."""
    if len(devices) == 1:
        return None
    return jax.make_mesh((len(devices),), ("clients",), (jax.sharding.AxisType.Auto,), devices=devices)
