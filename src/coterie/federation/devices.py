"""The devices that a simulation spreads its clients over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def use_every_core() -> None:
    """Give JAX one device per CPU core, unless it has started or the user has chosen a number.

    XLA runs the small products of a batch of clients one after another on one core. A device per core runs
    shares of the clients side by side (docs/results/benchmarks.md has both). The number is fixed by the first
    thing that JAX computes: a simulation asks for it when it is made. A program that computes with JAX before
    it makes its first simulation calls this at its top.
    """
    chosen = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen and getattr(jax.config, "jax_num_cpu_devices", 1) == -1:
        with contextlib.suppress(RuntimeError):  # JAX has started already: its devices are what they are
            jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))


def mesh(devices: Sequence[Any]) -> jax.sharding.Mesh | None:
    """A mesh with one axis, `clients`; None for a single device, which needs no partitioning."""
    if len(devices) == 1:
        return None
    return jax.make_mesh((len(devices),), ("clients",), (jax.sharding.AxisType.Auto,), devices=devices)


def spread(array: np.ndarray, *, grid: jax.sharding.Mesh | None, device: Any, fill: int = 0) -> Any:
    """An array of one row per client on the devices; blank rows, of `fill`, make it divide evenly."""
    if grid is None:
        return jax.device_put(np.asarray(array), device)
    blank = -len(array) % grid.size
    padding = np.full((blank, *array.shape[1:]), fill, array.dtype)
    return jax.device_put(np.concatenate([array, padding]), NamedSharding(grid, P("clients")))
