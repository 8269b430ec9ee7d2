"""The devices that a simulation spreads its clients over."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PyTree

UNKNOWN_MEMORY = 2**32  # bytes that a device is taken to have if it does not say


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


def memory(devices: Sequence[Any]) -> int:
    """Bytes that one of the devices has: the least of what any process knows of its own."""
    own = [device for device in devices if device.process_index == jax.process_index()]
    told = [(device.memory_stats() or {}).get("bytes_limit", UNKNOWN_MEMORY) for device in own]
    least = min(told, default=UNKNOWN_MEMORY)
    if jax.process_count() > 1:  # in units that fit in 32 bits
        least = int(multihost_utils.process_allgather(np.uint32(least >> 10)).min()) << 10
    return least


def physical_memory() -> int:
    """Bytes of memory of this machine; a lot where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def mesh(devices: Sequence[Any]) -> jax.sharding.Mesh | None:
    """A mesh with one axis, `clients`; None for a single device, which needs no partitioning."""
    if len(devices) == 1:
        return None
    return jax.make_mesh((len(devices),), ("clients",), (jax.sharding.AxisType.Auto,), devices=devices)


def spread(
    array: np.ndarray, *, grid: jax.sharding.Mesh | None, device: Any, fill: int = 0, dtype: Any = None
) -> Any:
    """An array of one row per client on the devices; blank rows, of `fill`, make it divide evenly.

    Of an array that is mapped into memory, a process reads the rows of its own devices alone.
    """
    if grid is None:
        return jax.device_put(np.asarray(array, dtype), device)
    rows = len(array) + -len(array) % grid.size

    def own(where: Any) -> np.ndarray:
        start, stop, _ = where[0].indices(rows)
        mine = np.asarray(array[start:stop], dtype)
        blank = stop - start - len(mine)
        if not blank:  # else a large array would be copied for nothing
            return mine
        return np.concatenate([mine, np.full((blank, *array.shape[1:]), fill, mine.dtype)])

    return jax.make_array_from_callback((rows, *array.shape[1:]), NamedSharding(grid, P("clients")), own)


def copied(tree: PyTree, *, grid: jax.sharding.Mesh | None, device: Any) -> PyTree:
    """What the server has, which all processes know alike, on every device."""
    if grid is None or not grid.is_multi_process:
        return jax.device_put(tree, device if grid is None else NamedSharding(grid, P()))

    def one(leaf: Any) -> Any:
        # not `device_put`, which compares what the processes give, and holds no number for another no number
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, NamedSharding(grid, P()), host.__getitem__)

    return jax.tree.map(one, tree)


def everywhere(grid: jax.sharding.Mesh | None, tree: PyTree) -> PyTree:
    """Inside a program over the devices of several processes: what every one of them is to know."""
    if grid is None or not grid.is_multi_process:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(grid, P()))


def on_the_host(array: Any) -> np.ndarray:
    """An array of the devices of all processes, in every process."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
