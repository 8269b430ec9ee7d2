"""The generated project: Flower takes it, and nothing secret goes into what it sends."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from coterie.errors import ConfigError
from coterie.flower.keys import KeyFolder, make_certificates, make_node_key
from coterie.flower.new import new_project
from coterie.run.config import Experiment


def build(project, out):
    """The app as Flower would send it: its files."""
    flwr = Path(sys.executable).parent / "flwr"
    done = subprocess.run(
        [flwr, "build", "--app", project],
        cwd=out,
        capture_output=True,
        text=True,
        env={"FLWR_HOME": str(out / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (bundle,) = out.glob("*.fab")
    return set(zipfile.ZipFile(bundle).namelist())


@pytest.mark.slow
@pytest.mark.parametrize("own_data", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_flower_builds_an_app_of_it_without_keys_or_results(tmp_path, own_data):
    project = tmp_path / "My-Study"
    files = new_project(project, nodes=4, own_data=own_data)
    keys = KeyFolder(project / "keys")
    make_certificates(keys, ["localhost"])
    make_node_key(keys, "a")
    (project / ".flwr").mkdir()
    (project / ".flwr" / "config.toml").write_text("[superlink]\n")
    (project / "runs" / "x").mkdir(parents=True)
    (project / "runs" / "x" / "clustering.json").write_text("{}")
    sent = {name for name in build(project, tmp_path) if not name.startswith(".info")}
    assert sent >= {"pyproject.toml", "experiment.toml", "my_study_app.py"}
    assert sent <= {path.name for path in files}


def test_its_experiment_is_one_for_so_many_nodes(tmp_path):
    new_project(tmp_path / "a", nodes=6)
    experiment = Experiment.read(Experiment.from_file(tmp_path / "a" / "experiment.toml"))
    data = experiment.make_data()
    assert len(data.train) == 6 == experiment.flower["min_clients"]
    learner = experiment.decided(data.train.spec).make_learner().for_data(data.train.spec)
    experiment.make_algorithm().check(6, learner)
    new_project(tmp_path / "b", nodes=3, own_data=True)
    experiment = Experiment.read(Experiment.from_file(tmp_path / "b" / "experiment.toml"))
    assert experiment.data == {"name": "nodes", "target": "y"} and experiment.flower["min_clients"] == 3


def test_nothing_in_it_is_left_to_fill_in(tmp_path):
    for path in new_project(tmp_path / "study", nodes=4):
        assert "$" not in path.read_text(), path
    settings = tomllib.loads((tmp_path / "study" / "pyproject.toml").read_text())
    assert settings["tool"]["flwr"]["app"]["config"] == {"out": "runs/study", "overwrite": False, "set": ""}


def test_an_empty_folder_is_taken_and_a_full_one_is_not(tmp_path):
    (tmp_path / "study").mkdir()
    new_project(tmp_path / "study", nodes=2)
    with pytest.raises(ConfigError, match="not empty"):
        new_project(tmp_path / "study", nodes=2)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        new_project(tmp_path / "file", nodes=2)


@pytest.mark.parametrize(
    "name, nodes", [("123", 2), ("---", 2), ("a" * 33, 2), ("a study", 2), ("a_b", 2), ("study", 1)]
)
def test_what_flower_would_not_take_is_refused(tmp_path, name, nodes):
    with pytest.raises(ConfigError):
        new_project(tmp_path / name, nodes)
    assert not (tmp_path / name).exists()
