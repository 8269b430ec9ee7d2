"""An experiment file whose model is a PyTorch module: clients train the module itself, in PyTorch."""

import sys

import jax
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from support.in_process import InProcessGrid

import coterie as ct
from coterie.errors import LearnerError
from coterie.flower import client_for, server_for

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CONTENT = """
seed = 1
baselines = []

[data]
name = "rotated-digits"
clients = 4
rotations = [0, 90]
unseen = 0

[model]
name = "torch"
make = "support.torch_nets:ConvNet"

[local]
name = "sgd"
lr = 0.1
epochs = 1
batch_size = 32

[algorithm]
name = "ifca"
k = 2
rounds = 3
n_init = 2

[flower]
min_clients = 4
poll = 0.001
"""


def test_the_app_of_an_experiment_with_a_torch_model(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(CONTENT)
    config = {"out": str(tmp_path / "run")}
    grid = InProcessGrid(
        [client_for(file) for _ in range(4)], [{"partition-id": i} for i in range(4)], run_config=config
    )
    server_for(file)(grid, Context(1, 0, {}, RecordDict(), config))
    found = ct.load(tmp_path / "run")
    assert len(set(found.assignment[:2])) == len(set(found.assignment[2:])) == 1 and found.k == 2
    # only a module in train mode moves the statistics of its batch norm: so clients train the module itself
    names = set(found.models)
    assert {"features.1.running_mean", "classifier.weight"} <= names
    assert np.abs(np.asarray(found.models["features.1.running_mean"])).max() > 0.01
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.models))
    assert found.learner.model.make == "support.torch_nets:ConvNet"


def test_an_augmentation_in_jax_is_refused_before_the_run_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)  # which the server changes
    file = tmp_path / "experiment.toml"
    file.write_text(CONTENT + '[augment]\nname = "crop"\npad = 1\n')
    config = {"out": str(tmp_path / "run")}
    grid = InProcessGrid(
        [client_for(file) for _ in range(4)], [{"partition-id": i} for i in range(4)], run_config=config
    )
    with pytest.raises(
        LearnerError, match="Crop is for models in JAX: clients with a PyTorch module augment"
    ):
        server_for(file)(grid, Context(1, 0, {}, RecordDict(), config))
    assert not (tmp_path / "run").exists()
