"""A CPU's cores are all used, and a user's own choice is left alone."""

import os
import subprocess
import sys

import pytest

CORES = len(os.sched_getaffinity(0))
LEARN_FIRST = "ct.Learner(ct.models.MLP(), 'squared').for_data(ct.data.Spec((2,), 'float32', (), 'float32'))"
SIMULATE = "ct.Simulation(ct.data.mixed_regression(clients=7, examples=2, dim=2).train)"


def devices(*lines, environment=None):
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    code = "; ".join(["import jax", "import coterie as ct", *lines, "print(jax.local_device_count())"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | (environment or {}),
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


ANOTHER = pytest.mark.slow  # process that starts JAX


@pytest.mark.parametrize(
    "lines, environment, expected",
    [
        pytest.param([LEARN_FIRST, SIMULATE], None, CORES, id="by default"),
        pytest.param(
            ["jax.config.update('jax_num_cpu_devices', 5)", SIMULATE], None, 5, id="set", marks=ANOTHER
        ),
        pytest.param(
            [SIMULATE],
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"},
            3,
            id="forced",
            marks=ANOTHER,
        ),
        pytest.param(["jax.devices()", SIMULATE], None, 1, id="JAX has started", marks=ANOTHER),
        pytest.param([LEARN_FIRST], None, 1, id="without a simulation", marks=ANOTHER),
        pytest.param(["ct.use_every_core()"], None, CORES, id="asked for", marks=ANOTHER),
    ],
)
def test_number_of_cpu_devices(lines, environment, expected):
    assert devices(*lines, environment=environment) == expected
