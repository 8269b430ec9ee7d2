"""What a node holds, as its SuperNode was told: files, or a client of the experiment's data set."""

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file
from support.in_process import InProcessGrid

from coterie.data.shards import Spec
from coterie.errors import ConfigError, CoterieError, DataError, FederationError
from coterie.flower import FlowerFederation, client_for
from coterie.flower.node import own_data
from coterie.run.config import Experiment

FILES = Experiment.read({"data": {"name": "nodes"}})
EXPERIMENT = Experiment.read({"data": {"name": "mixed-regression", "clients": 4, "dim": 3, "examples": 6}})
DIGITS = Experiment.read({"data": {"name": "rotated-digits", "clients": 8, "unseen": 0}})
X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0.5, 1.5, -2.0, 3.0], np.float32)


@pytest.fixture
def files(tmp_path):
    """One file of each kind, good and bad."""
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
    frame.to_csv(tmp_path / "good.csv", index=False)
    frame.to_parquet(tmp_path / "good.parquet")
    np.savez(tmp_path / "good.npz", x=X, y=Y)
    save_file({"x": X, "y": Y}, tmp_path / "good.safetensors")
    frame[::2].to_csv(tmp_path / "test.csv", index=False)
    frame.assign(city="Bern").to_csv(tmp_path / "text.csv", index=False)
    frame.assign(a=np.nan).to_csv(tmp_path / "gaps.csv", index=False)
    frame.assign(y=[0, 1, 2, 1]).to_csv(tmp_path / "labels.csv", index=False)
    (tmp_path / "notes.txt").write_text("notes")
    np.savez(tmp_path / "pickle.npz", x=X, y=np.array([{}] * 4, object))
    return tmp_path


def sentence(config, experiment, kind=CoterieError):
    with pytest.raises(kind) as raised:
        own_data(config, experiment)
    message = str(raised.value)
    assert message.endswith(".") and "\n" not in message
    return message


def grid_of(folder, experiment, configs):
    (folder / "experiment.toml").write_text(experiment.to_toml())
    app = client_for(folder / "experiment.toml")
    return InProcessGrid([app] * len(configs), configs)


def ids(grid, **settings):
    return FlowerFederation(grid, **({"min_clients": 2, "wait": 0.2, "poll": 0.01} | settings)).ids.tolist()


# -- a file of its own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["good.csv", "good.parquet", "good.npz", "good.safetensors"])
def test_a_node_holds_what_is_in_its_file(name, files):
    own = own_data({"client-id": "hospital", "data": str(files / name)}, FILES)
    assert own.id == "hospital" and own.train.ids.tolist() == ["hospital"] and own.test is None
    x, y = own.train.client(0)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert own.train.spec == Spec((3,), "float32", (), "float32")  # whatever the kind of file


def test_a_node_may_hold_out_examples_in_another_file(files):
    config = {"client-id": "h", "data": str(files / "good.npz"), "test-data": str(files / "test.csv")}
    own = own_data(config, FILES)
    np.testing.assert_array_equal(own.test.client(0)[1], Y[::2])
    np.testing.assert_array_equal(own.train.client(0)[1], Y)


def test_the_target_may_have_another_name(files):
    config = {"client-id": "h", "data": str(files / "good.csv")}
    renamed = Experiment.read({"data": {"name": "nodes", "target": "b"}})
    for own in (own_data({**config, "target": "b"}, FILES), own_data(config, renamed)):
        np.testing.assert_array_equal(own.train.client(0)[1], X[:, 1])
        np.testing.assert_array_equal(own.train.client(0)[0], np.stack([X[:, 0], X[:, 2], Y], axis=1))
    # what a node says of its own file goes before what the experiment says of all
    np.testing.assert_array_equal(own_data({**config, "target": "y"}, renamed).train.client(0)[1], Y)


def test_the_number_of_classes_is_the_experiments(files):
    config = {"client-id": "h", "data": str(files / "labels.csv"), "test-data": str(files / "labels.csv")}
    assert own_data(config, FILES).train.spec.classes == 3
    own = own_data(config, Experiment.read({"data": {"name": "nodes", "classes": 10}}))
    assert own.train.spec.classes == own.test.spec.classes == 10
    fewer = Experiment.read({"data": {"name": "nodes", "classes": 2}})
    assert "label 2 is outside the classes 0 to 1" in sentence(config, fewer, DataError)
    real = {"client-id": "h", "data": str(files / "good.csv")}
    assert "classes=2 is given but the targets are float32" in sentence(real, fewer, DataError)


WHICH_FILE = "does not say what data it holds"
NO_CLIENT = "--node-config 'partition-id=0'"


@pytest.mark.parametrize(
    "experiment, config, words",
    [
        (
            FILES,
            {"data": "a.csv"},
            ("does not say whose data it holds", "--node-config", "client-id=", "data="),
        ),
        (FILES, {"client-id": "h"}, (WHICH_FILE, "--node-config", "client-id=", "data=")),
        (FILES, {}, (WHICH_FILE,)),
        (FILES, {"partition-id": 0}, (WHICH_FILE,)),
        (
            EXPERIMENT,
            {"client-id": "h", "data": "a.csv", "partition-id": 1},
            ("the experiment is about mixed-regression", 'name = "nodes"'),
        ),
        (EXPERIMENT, {}, (NO_CLIENT,)),
        (EXPERIMENT, {"client-id": "a"}, (NO_CLIENT,)),
        (EXPERIMENT, {"partition_id": 1}, (NO_CLIENT,)),
        *(
            (EXPERIMENT, {"partition-id": i}, (f"partition-id={i}", "4 clients", "give a number from 0 to 3"))
            for i in (-1, 4, "1", 1.0)
        ),
    ],
)
def test_a_node_that_does_not_say_what_it_holds_is_told_what_to_say(experiment, config, words):
    message = sentence(config, experiment, ConfigError)
    assert all(word in message for word in words)


def test_data_that_is_with_the_nodes_cannot_be_simulated():
    with pytest.raises(DataError, match="the data of this experiment is with the nodes"):
        FILES.make_data()


BAD_FILES = {
    "another kind": ({"data": "notes.txt"}, "notes.txt is not a file of examples"),
    "not there": ({"data": "gone.csv"}, "gone.csv cannot be read"),
    "no such column": ({"data": "good.csv", "target": "z"}, "has no column 'z'; its columns are a, b, c, y"),
    "no such array": ({"data": "good.npz", "target": "z"}, "has no array 'z'; its arrays are x, y"),
    "text": ({"data": "text.csv"}, "column 'city' holds"),
    "gaps": ({"data": "gaps.csv"}, "client h: features of example 0 contain nan"),
    "a pickle": ({"data": "pickle.npz"}, "pickle.npz cannot be read"),
    "held-out examples not there": ({"data": "good.csv", "test-data": "gone.npz"}, "gone.npz cannot be read"),
}


def bad(kind, files):
    names, what = BAD_FILES[kind]
    paths = {key: value if key == "target" else str(files / value) for key, value in names.items()}
    return {"client-id": "h", **paths}, what


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_cannot_be_used_is_named(kind, files):
    config, what = bad(kind, files)
    assert what in sentence(config, FILES, DataError)


# -- a client of the experiment's data set ----------------------------------------------------------------


def test_a_partition_is_that_client_of_the_data_set():
    data = EXPERIMENT.make_data()
    own = own_data({"partition-id": 2, "num-partitions": 4}, EXPERIMENT)
    assert own.id == "2"
    assert own_data({"partition-id": 0, "client-id": 7}, EXPERIMENT).id == "7"  # or a name of its own
    for mine, theirs in ((own.train, data.train), (own.test, data.test)):
        np.testing.assert_array_equal(mine.client(0)[0], theirs.client(2)[0])
        np.testing.assert_array_equal(mine.client(0)[1], theirs.client(2)[1])


def test_a_partition_of_a_table_holds_out_its_own_rows_if_it_has_enough(tmp_path):
    frame = pd.DataFrame({"who": list("abbbbbcccc"), "x": np.arange(10.0), "y": np.arange(10.0) % 3})
    frame.to_csv(tmp_path / "table.csv", index=False)
    source = {"name": "table", "source": str(tmp_path / "table.csv"), "client": "who", "label": "y"}
    experiment = Experiment.read({"data": source})
    data = experiment.make_data()
    a, b, c = (own_data({"partition-id": i}, experiment) for i in range(3))
    assert (a.id, b.id, c.id) == ("a", "b", "c") and a.test is None
    for own, place in ((b, 0), (c, 1)):
        np.testing.assert_array_equal(own.test.client(0)[0], data.test.client(place)[0])


def test_partitions_agree_on_the_number_of_classes():
    specs = {own_data({"partition-id": i}, DIGITS).train.spec for i in (0, 5)}
    assert len(specs) == 1 and specs.pop().classes == 10


def test_what_is_wrong_with_nodes_reaches_the_server(tmp_path, files):
    configs = [{}, {"partition-id": 9}, {"data": "a.csv"}, {"partition-id": 1}]
    with pytest.raises(FederationError) as raised:
        ids(grid_of(tmp_path, EXPERIMENT, configs), min_clients=4)
    message = str(raised.value)
    assert "only 1 of the 4 clients" in message
    good = {"client-id": "good", "data": str(files / "good.csv")}
    config, what = bad("text", files)
    grid = grid_of(files, FILES, [good, config])
    with pytest.raises(FederationError, match=f"only 1 of the 2 clients.*{what}"):
        ids(grid)
    assert ids(grid, min_clients=1) == ["good"]
    for what in ("does not say which client", "partition-id=9 is not among", "has a file of its own"):
        assert what in message
    assert "\n" not in message


def test_an_experiment_that_a_node_cannot_read_reaches_the_server(tmp_path):
    (tmp_path / "broken.toml").write_text("[data")
    gone, broken = client_for(tmp_path / "gone.toml"), client_for(tmp_path / "broken.toml")
    with pytest.raises(FederationError) as raised:
        ids(InProcessGrid([gone, broken], [{"partition-id": 0}, {"partition-id": 1}]), min_clients=1)
    assert "gone.toml cannot be read" in str(raised.value)
    assert "broken.toml is not valid TOML" in str(raised.value)
