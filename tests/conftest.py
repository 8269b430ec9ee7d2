"""Every test process has three JAX devices, so that clients are spread unevenly, and little memory."""

import ctypes
import gc
import os
from pathlib import Path

# compiled programs are kept for all test processes and for the next run: most of a small test is compilation
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "coterie"
os.environ.setdefault("COTERIE_CACHE", str(CACHE))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 3)

MOST_BYTES = 800_000_000  # of memory that a process keeps: two of them, and what they start, fit in 4 GB
MOST_MAPS = 30_000  # memory maps, of which a process may have 65,530: each compiled program holds some


# statistics, whole experiments, other programs, what the documentation shows: for `make test-all`
SLOW = {"benchmarks", "browser", "docs", "papers", "pytorch", "recovery", "theory"}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW:
            item.add_marker("slow")
    # real deployments wait for other programs most of the time: first, while there is other work to do
    items.sort(key=lambda item: item.path.name != "test_deployment.py")


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """Let go of compiled programs in time."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    if pages * os.sysconf("SC_PAGE_SIZE") > MOST_BYTES or maps > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
