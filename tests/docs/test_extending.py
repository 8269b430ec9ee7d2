"""The files of `docs/extending.md`, as they stand there: from Python, from a file, over Flower."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from support.in_process import InProcessGrid

import coterie as ct
from coterie import papers
from coterie.federation.exchange import Server
from coterie.flower import FlowerFederation, client_for
from coterie.initialise.random import fresh_models
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)
MODULES = ("fairness", "offices", "wide", "noise", "gain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extended")
    for name, content in BLOCK.findall(PAGE.read_text()):
        (folder / name).write_text(content)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_page_has_a_file_for_everything_that_can_be_added(folder):
    assert {path.stem for path in folder.iterdir()} == {*MODULES, "experiment"}


@pytest.fixture(scope="module")
def from_file(folder):
    experiment = Experiment.read(Experiment.from_file(folder / "experiment.toml"))
    return execute(experiment, RunFolder(folder / "run"))


def test_an_augmentation_is_seen_in_training_and_nowhere_else(folder):
    noise, offices = (importlib.import_module(name) for name in ("noise", "offices"))
    data = offices.two_offices(clients=4, seed=0)
    section = {"name": "noise.Noise", "level": 2.0}
    experiment = Experiment.read({"augment": section, "local": {"name": "sgd", "lr": 0.05, "steps": 200}})
    noisy = experiment.decided(data.train.spec).make_learner()
    assert noisy.augment == noise.Noise(2.0)
    found, plain = (
        ct.Oracle(data.truth, rounds=1).fit(data.train, learner, seed=0)
        for learner in (noisy, replace(noisy, augment=None))
    )
    # noise of variance v in the features of a regression shrinks its coefficients by 1 + v
    with_noise, without = (np.asarray(f.models.layers[0].weight)[:, 0, 0] for f in (found, plain))
    np.testing.assert_allclose(with_noise, np.array([1, -1]) / (1 + 2.0**2), atol=0.1)
    np.testing.assert_allclose(without, [1, -1], atol=0.1)
    kept = replace(found, learner=plain.learner)
    assert kept.evaluate(data.test).loss == found.evaluate(data.test).loss


def test_from_python_and_from_a_file_it_is_the_same(folder, from_file):
    fairness, offices, wide = (importlib.import_module(name) for name in ("fairness", "offices", "wide"))
    data = offices.two_offices(clients=6, seed=0)
    learner = ct.Learner(wide.Wide(16), "squared", ct.SGD(lr=0.05, steps=2))
    found = fairness.FairAverage(q=2.0, rounds=5).fit(data.train, learner, seed=0)
    np.testing.assert_array_equal(found.models, from_file.models)
    assert found.algorithm == {"name": "fairness.FairAverage", "rounds": 5, "participation": 1.0, "q": 2.0}
    # against the formula: w = sum_i F_i^q w_i / sum_i F_i^q
    losses = found.history[1].loss
    assert losses < found.history[0].loss and len(found.history) == 5


def test_a_high_loss_counts_more(folder):
    fairness = importlib.import_module("fairness")
    x = np.ones((2, 4, 1), np.float32)
    data = ct.Shards.from_lists(list(x), [np.full(4, 1.0, np.float32), np.full(4, 3.0, np.float32)])
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=1))
    start = ct.Global(rounds=1).fit(data, learner, seed=0)
    for q in (0.0, 2.0):
        found = fairness.FairAverage(q=q, rounds=1).fit(data, learner, seed=0)
        theta = _start_of(learner, data)
        loss = np.array([(1 - theta) ** 2, (3 - theta) ** 2])
        trained = np.array([theta + 0.2 * (target - theta) for target in (1, 3)])
        assert float(_only(found.models)) == pytest.approx(np.average(trained, weights=loss**q), rel=1e-5)
        if q == 0:
            assert float(_only(found.models)) == pytest.approx(float(_only(start.models)), rel=1e-5)


def _only(models):
    (leaf,) = jax.tree.leaves(models)
    return np.asarray(leaf).ravel()[0]


def _start_of(learner, data):
    """The fresh model that both begin with."""
    simulation = ct.Simulation(data)
    server = Server.of(simulation, learner.for_data(simulation.spec), 0)
    return float(_only(fresh_models(server, server.start_key(0), 1)))


def test_a_run_can_be_loaded_with_model_and_algorithm_of_ones_own(folder, from_file):
    again = ct.load(folder / "run")
    np.testing.assert_array_equal(again.models, from_file.models)
    assert again.algorithm["name"] == "fairness.FairAverage"


@pytest.mark.slow
def test_over_flower_it_is_the_same(folder, from_file):
    app = client_for(folder / "experiment.toml")
    grid = InProcessGrid([app] * 6, [{"partition-id": i} for i in range(6)])
    experiment = Experiment.read(Experiment.from_file(folder / "experiment.toml"))
    federation = FlowerFederation(grid, min_clients=6, poll=0.001)
    found = execute(experiment, RunFolder(folder / "flower"), federation=federation)
    np.testing.assert_allclose(found.models, from_file.models, rtol=1e-5, atol=1e-6)
    assert sorted(found.ids) == sorted(from_file.ids)


@pytest.mark.slow
def test_an_experiment_of_ones_own_is_reproduced(folder):
    result = papers.reproduce("gain.FIGURE", scale="smoke", out=folder / "gain")
    assert result["findings"][0]["agrees"] and (folder / "gain" / "figure.png").exists()
