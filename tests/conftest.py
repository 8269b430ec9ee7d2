"""Every test process has three JAX devices, so that clients are spread unevenly, and a cache of its own."""

import gc
import mmap
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

# compiled programs are shared by all test processes: most of the time of a small test is compilation
cache = os.environ.setdefault("COTERIE_CACHE", tempfile.mkdtemp(prefix="coterie-tests-"))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(cache, "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")

# and two thirds of that is saved by XLA's older way to make code for a CPU, in one piece
FASTER = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}


def known(flag):
    """Whether this version of XLA has a flag: it ends the process at one that it does not know."""
    library = Path(find_spec("jaxlib").origin).with_name("libjax_common.so")
    if not library.exists():
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(flag.encode()) >= 0


set_already = os.environ.get("XLA_FLAGS", "")
more = [f"--{flag}={value}" for flag, value in FASTER.items() if flag not in set_already and known(flag)]
os.environ["XLA_FLAGS"] = " ".join([set_already, *more]).strip()

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 3)

# tracing makes very many objects, none of which needs to be looked for
gc.freeze()
gc.set_threshold(200_000, 20, 20)

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


# what is seen of the code by these, others see too: the tracer of coverage slows Python down by a quarter
UNTRACED = {"benchmarks", "parity", "recovery", "theory"}


def folder_of(path):
    return path.relative_to(Path(__file__).parent).parts[0]


def pytest_collection_modifyitems(items):
    for item in items:
        if folder_of(item.path) in UNTRACED:
            item.add_marker("no_cover")


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request):
    """Slower programs, made in less time, for tests with small ones."""
    jax.config.update("jax_disable_most_optimizations", folder_of(request.path) in QUICKLY_COMPILED)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Let go of compiled programs in time: each holds memory maps, of which a process may have 65,530."""
    yield
    if len(Path("/proc/self/maps").read_text().splitlines()) > 30_000:
        jax.clear_caches()
