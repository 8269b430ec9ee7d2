"""What is timed is timed once and remembered, and only when it is asked for."""

import json
import time

import jax
import numpy as np
import pytest

import coterie as ct
from coterie.federation import batches, tuning
from coterie.learn.tasks import MeasureLosses


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_chosen", {})


def candidates_taking(seconds, calls):
    def run(candidate):
        def once():
            calls.append(candidate)
            time.sleep(seconds[candidate])

        return once

    return run


def test_the_fastest_is_chosen_and_remembered_across_processes(monkeypatch):
    calls = []
    run = candidates_taking({1: 0.02, 4: 0.001, 16: 0.03}, calls)
    assert tuning.fastest("question", (1, 4, 16), run) == 4
    assert set(calls) == {1, 4, 16}
    calls.clear()
    assert tuning.fastest("question", (1, 4, 16), run) == 4
    monkeypatch.setattr(tuning, "_chosen", {})  # as a new process starts
    assert tuning.fastest("question", (1, 4, 16), run) == 4
    assert calls == []
    tuning.fastest("another question", (1, 4), run)
    assert calls != []


def test_a_run_keeps_its_own_choices(tmp_path):
    calls = []
    run = candidates_taking({1: 0.0, 4: 0.02}, calls)
    note = tmp_path / "run" / "batch.json"
    with tuning.remembered_in(note):
        assert tuning.fastest("q", (1, 4), run) == 1
    content = json.loads(note.read_text())
    note.write_text(json.dumps(dict.fromkeys(content, 4)))
    with tuning.remembered_in(note):
        assert tuning.fastest("q", (1, 4), run) == 4


def test_a_damaged_or_unwritable_cache_costs_time_only(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "batch.json").write_text("{nonsense")
    run = candidates_taking({1: 0.0, 4: 0.02}, [])
    assert tuning.fastest("q", (1, 4), run) == 1
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tuning, "_chosen", {})
    assert tuning.fastest("q", (1, 4), run) == 1


def measured(simulation):
    """An ask as a compiled round asks it."""
    one = simulation._learner.shapes(simulation.spec)
    models = jax.tree.map(lambda a: np.ones((2, *a.shape), np.float32), one)
    return jax.jit(lambda clients, models: clients.ask(MeasureLosses(models)).report.losses)(
        simulation, models
    )


def simulated(**settings):
    data = ct.data.mixed_regression(k=2, clients=12, examples=5, dim=4, seed=0)
    return ct.Simulation(data.train, **settings).with_learner(ct.Learner(ct.models.Linear(), "squared"))


def test_tuning_times_the_program_itself_even_while_rounds_are_traced(monkeypatch):
    monkeypatch.setattr(batches, "TUNED_ON_CPU", (1, 2))
    timed = measured(simulated(batch="tune"))
    assert len(tuning._chosen) == 1 and set(tuning._chosen.values()) <= {1, 2}
    np.testing.assert_allclose(timed, measured(simulated(batch=4)), rtol=1e-6)


def test_nothing_is_timed_unless_it_is_asked_for():
    measured(simulated())
    assert tuning._chosen == {}
