"""Every test process has three JAX devices, so that clients are spread unevenly, and a cache of its own."""

import os
import tempfile
from pathlib import Path

# compiled programs are shared by all test processes: most of the time of a small test is compilation
cache = os.environ.setdefault("COTERIE_CACHE", tempfile.mkdtemp(prefix="coterie-tests-"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(cache, "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 3)

# where tests compile far longer than they compute
QUICKLY_COMPILED = {
    "aggregate",
    "algorithms",
    "federation",
    "flower",
    "initialise",
    "learn",
    "models",
    "parity",
    "pytorch",
}


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request):
    """Slower programs, made in less time, for tests with small ones."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    jax.config.update("jax_disable_most_optimizations", folder in QUICKLY_COMPILED)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Let go of a file's compiled programs: each holds memory maps, of which a process may have 65,530."""
    yield
    jax.clear_caches()
