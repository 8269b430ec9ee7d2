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


@pytest.mark.parametrize(
    "before, environment, expected",
    [
        ("pass", None, CORES),
        ("jax.config.update('jax_num_cpu_devices', 5)", None, 5),
        ("pass", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
        ("jax.devices()", None, 1),
    ],
    ids=["by default", "set", "forced", "JAX has started"],
)
def test_number_of_cpu_devices(before, environment, expected):
    assert devices(before, LEARN_FIRST, SIMULATE, environment=environment) == expected


@pytest.mark.parametrize(
    "line, expected",
    [
        (LEARN_FIRST, 1),
        ("from coterie.federation.devices import use_every_core; use_every_core()", CORES),
    ],
    ids=["without a simulation", "asked for"],
)
def test_jax_is_left_alone_until_clients_are_simulated_or_it_is_asked_for(line, expected):
    assert devices(line) == expected
