"""Clients spread over the devices of several processes answer as those of one process do."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from support import several, several_runs

import coterie as ct
from coterie.errors import FederationError, SettingError

TESTS = Path(__file__).parent.parent


def in_processes(call, processes=2):
    """What each of some processes gives for a call of `several_runs`."""
    code = f"sys.path.insert(0, {str(TESTS)!r})\nimport json\nfrom support import several_runs\n"
    said = several.script(f"{code}print('told', json.dumps(several_runs.{call}()))", processes)
    lines = [line for output in said for line in output.splitlines() if line.startswith("told ")]
    return [json.loads(line.removeprefix("told ")) for line in lines]


@pytest.mark.slow
def test_two_processes_find_what_one_finds():
    alone, (first, second) = several_runs.told(), in_processes("told")
    assert first == second  # to the last digit: they must never part
    for name, values in alone.items():
        for mine, theirs in zip(values, first[name], strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_each_process_reads_and_holds_its_own_clients_alone():
    for rank, told in enumerate(in_processes("rows_read")):
        assert told == {"read": list(range(6 * rank, 6 * rank + 6)), "held": 6, "all": 2}


def test_what_processes_could_not_agree_on_is_refused(monkeypatch):
    shards = ct.data.mixed_regression(k=2, clients=4, examples=2, dim=2).train
    simulation = ct.Simulation(shards, devices=jax.devices()[:1])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(SettingError, match="would choose otherwise in each process"):
        ct.Simulation(shards, batch="tune")
    with pytest.raises(FederationError, match=r"of process 0 has too little memory .* batch="):
        simulation.halve_batch()
