"""A CPU's cores are all used, and a user's own choice is left alone."""

import os
import subprocess
import sys

import pytest

LEARN_FIRST = "ct.Learner(ct.models.MLP(), 'squared').for_data(ct.data.Spec((2,), 'float32', (), 'float32'));"


def devices(before, environment=None):
    clean = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    code = f"{before}; import coterie as ct; {LEARN_FIRST} import jax; print(jax.local_device_count())"
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
        ("pass", None, len(os.sched_getaffinity(0))),
        ("import jax; jax.config.update('jax_num_cpu_devices', 5)", None, 5),
        ("pass", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
        ("import jax; jax.devices()", None, 1),
    ],
    ids=["by default", "set", "forced", "JAX has started"],
)
def test_number_of_cpu_devices(before, environment, expected):
    assert devices(before, environment) == expected
