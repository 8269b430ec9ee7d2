"""The Flower app of an experiment file, from the first greeting to the report."""

import json
import sys
import tomllib

import jax
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from support.in_process import InProcessGrid
from support.references import local_update, loss

import coterie as ct
from coterie.errors import ConfigError, FederationError, RunFolderError, SettingError
from coterie.flower import client_for, server_for
from coterie.run.config import Experiment
from coterie.run.folder import RunFolder
from coterie.run.report import write_report

# minibatches, restarts and partial participation: randomness in every place where a run has it
CONTENT = """
seed = 3
baselines = ["local"]

[data]
name = "mixed-regression"
clients = 5
examples = 10
dim = 3

[local]
name = "sgd"
lr = 0.05
epochs = 1
batch_size = 4

[algorithm]
name = "ifca"
k = 2
rounds = 3
n_init = 2
participation = 0.8

[flower]
min_clients = 5
poll = 0.001
wait = 5
"""
PARTS = ("", "baselines/local")


@pytest.fixture(autouse=True)
def tracebacks(monkeypatch):
    """The server shortens tracebacks for the rest of its process; here that is ours."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("experiment") / "experiment.toml"
    path.write_text(CONTENT)
    return path


def grid_for(file, config, nodes=range(5)):
    return InProcessGrid(
        [client_for(file) for _ in nodes], [{"partition-id": node} for node in nodes], run_config=config
    )


def serve(file, grid, config):
    server_for(file)(grid, Context(1, 0, {}, RecordDict(), config))


def run(file, out, **config):
    config = {"out": str(out), **config}
    grid = grid_for(file, config)
    serve(file, grid, config)
    return grid


@pytest.fixture(scope="module")
def finished(file, tmp_path_factory):
    """A run that was left alone, and the grid it was made on."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, run(file, out)


def same(out, other):
    for part in PARTS:
        mine, theirs = ct.load(out / part), ct.load(other / part)
        assert mine.ids.tolist() == theirs.ids.tolist()
        np.testing.assert_array_equal(mine.assignment, theirs.assignment)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), mine.models, theirs.models
        )
        np.testing.assert_allclose(mine.history.restarts, theirs.history.restarts, rtol=1e-5)
        assert mine.history.assignments().tolist() == theirs.history.assignments().tolist()
        assert [r.answered for r in mine.history] == [r.answered for r in theirs.history]
        one, two = (json.loads((path / part / "evaluation.json").read_text()) for path in (out, other))
        assert one["test"]["loss"] == pytest.approx(two["test"]["loss"], rel=1e-5)


# -- a run ------------------------------------------------------------------------------------------------


def test_a_run_leaves_all_that_a_simulated_one_does(finished):
    out, _ = finished
    for part in PARTS:
        names = {path.name for path in (out / part).iterdir() if path.is_file()}
        assert {
            "experiment.toml",
            "rounds.jsonl",
            "checkpoint.safetensors",
            "clustering.json",
            "models.safetensors",
            "evaluation.json",
        } <= names
        lines = map(json.loads, (out / part / "rounds.jsonl").read_text().splitlines())
        assert [line["round"] for line in lines if "round" in line] == [0, 1, 2]
    assert not list(out.rglob("*.part"))


def test_the_run_says_that_its_clients_were_real(finished):
    out, _ = finished
    content = json.loads((out / "clustering.json").read_text())
    assert content["provenance"]["federation"] == "flower"
    assert {"flwr", "jax"} <= content["provenance"].keys()
    assert content["ids"] == ["0", "1", "2", "3", "4"]
    assert content["learner"]["model"]["name"] == "linear" and content["learner"]["loss"] == "squared"
    written = tomllib.loads((out / "experiment.toml").read_text())
    assert written["flower"]["wait"] == 5 and written["loss"] == "squared"


@pytest.mark.parametrize("part", PARTS)
def test_held_out_examples_are_evaluated_where_they_are(part, finished, file):
    out, grid = finished
    content = json.loads((out / part / "evaluation.json").read_text())
    assert content["truth"] is None and content["misclustering"] is None  # of real clients nobody knows
    found, test = ct.load(out / part), content["test"]
    assert test["per_client"]["id"] == ["0", "1", "2", "3", "4"]
    assert test["per_client"]["cluster"] == found.assignment.tolist() and test["chosen_by"] == "train"
    thetas = np.asarray(found.models.layers[0].weight)[:, 0, :]
    held_out = Experiment.read(Experiment.from_file(file)).make_data().test
    losses = [loss(thetas[j], x, y) for j, (x, y) in zip(found.assignment, held_out, strict=True)]
    np.testing.assert_allclose(test["per_client"]["loss"], losses, rtol=1e-4)
    assert test["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    asked = [m.content["ask"]["split"] for m in grid.nodes[1].heard if "ask" in m.content]
    assert asked.count("test") == 2  # once for each method


@pytest.mark.slow
def test_a_report_can_be_written_though_clients_joined_late_and_were_missing(file, tmp_path):
    settings = "flower.min_clients=3 flower.min_replies=1 algorithm.participation=1.0 algorithm.rounds=5"
    config = {"out": str(tmp_path / "run"), "set": f'{settings} baselines=["local"]'}
    grid = grid_for(file, config)
    grid.nodes[5].online = grid.nodes[4].online = False

    def happens(kind):
        if grid.asks() == 1:
            grid.nodes[4].online, grid.nodes[2].online = True, False
        if grid.asks() == 3:
            grid.nodes[2].online = True

    grid.before_push = happens
    serve(file, grid, config)
    found, local = ct.load(tmp_path / "run"), ct.load(tmp_path / "run" / "baselines" / "local")
    assert found.ids.tolist() == local.ids.tolist() == ["0", "1", "2", "3"]
    assert [r.asked for r in found.history] == [3, 3, 3, 4, 4]
    assert [r.answered for r in found.history] == [3, 2, 2, 3, 4]
    missing = [list(r.missing.items()) for r in found.history]
    assert missing[1] == [("lost its connection", ("1",))]
    assert missing[2] == missing[3] == [("not connected", ("1",))]
    page = write_report(tmp_path / "run").read_text()
    assert "IFCA" in page and "Local" in page


def test_the_rounds_are_shown_with_who_was_left_out(file, tmp_path, capsys):
    config = {"out": str(tmp_path / "run"), "set": "baselines=[] algorithm.participation=1.0"}
    grid = grid_for(file, config)

    def fails(content):
        raise RuntimeError("out of memory")

    grid.before_push = lambda kind: setattr(grid.nodes[3], "twist", fails if grid.asks() == 1 else None)
    serve(file, grid, config)
    shown = capsys.readouterr().out
    for t in (1, 2, 3):
        assert f"ifca: round {t}/3, loss" in shown
    assert "left out: 2 (error at the client: RuntimeError: out of memory)" in shown
    assert shown.count("left out") == 1
    assert f"The run is in {(tmp_path / 'run').resolve()}." in shown


def with_files(folder, holding_out):
    """Three nodes with files of their own, of whom some hold out examples."""
    rng = np.random.default_rng(0)
    mine = CONTENT.replace("min_clients = 5", "min_clients = 3").replace('["local"]', "[]")
    start, end = mine.index("[data]"), mine.index("[local]")
    (folder / "experiment.toml").write_text(f'{mine[:start]}[data]\nname = "nodes"\n\n{mine[end:]}')
    configs = []
    for name in "abc":
        for part in ("train", "test"):
            x, y = rng.normal(size=(10, 3)).astype(np.float32), rng.normal(size=10)
            np.savez(folder / f"{name}-{part}.npz", x=x, y=y)
        configs.append({"client-id": name, "data": str(folder / f"{name}-train.npz")})
        if name in holding_out:
            configs[-1]["test-data"] = str(folder / f"{name}-test.npz")
    return folder / "experiment.toml", configs


@pytest.mark.parametrize("holding_out", ["a", "ac"])
def test_clients_are_evaluated_if_enough_of_them_hold_out_examples(holding_out, tmp_path):
    file, configs = with_files(tmp_path, holding_out)
    config = {"out": str(tmp_path / "run")}
    serve(file, InProcessGrid([client_for(file) for _ in configs], configs, config), config)
    found = ct.load(tmp_path / "run")
    assert found.ids.tolist() == ["a", "b", "c"] and len(found.history) == 3
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert evaluation["data"] == "the nodes' own data"
    if len(holding_out) < 2:  # of three
        assert evaluation["test"] is None
    else:
        assert evaluation["test"]["per_client"]["id"] == list(holding_out)
        thetas = np.asarray(found.models.layers[0].weight)[:, 0, :]
        for name, told in zip(holding_out, evaluation["test"]["per_client"]["loss"], strict=True):
            with np.load(tmp_path / f"{name}-test.npz") as held_out:
                theta = thetas[found.assignment["abc".index(name)]]
                assert told == pytest.approx(loss(theta, held_out["x"], held_out["y"]), rel=1e-4)
    write_report(tmp_path / "run")


# -- settings ---------------------------------------------------------------------------------------------


def test_set_reaches_both_sides(tmp_path):
    file = tmp_path / "experiment.toml"
    steps = CONTENT.replace("epochs = 1", "steps = 2").replace("batch_size = 4", "")
    file.write_text(steps.replace('["local"]', "[]"))
    options = "local.lr=0.02 local.steps=3 algorithm.rounds=2 algorithm.participation=1.0"
    grid = run(file, tmp_path / "run", set=options)
    written = Experiment.read(Experiment.from_file(tmp_path / "run" / "experiment.toml"))
    assert written.local == {"name": "sgd", "lr": 0.02, "steps": 3} and written.algorithm["rounds"] == 2
    assert len(ct.load(tmp_path / "run").history) == 2
    # the clients trained as it says
    for (x, y), node in zip(written.make_data().train, grid.nodes.values(), strict=True):
        ask, reply = node.heard[1].content, node.said[1]["reply"]
        models = ask["everybody"]["models:layers.0.weight"].numpy()[:, :, 0]
        for r, cluster in enumerate(reply["cluster"].numpy()):
            expected = local_update(models[r, cluster], x, y, 0.02, 3)
            trained = reply["value:layers.0.weight"].numpy()[r, 0]
            np.testing.assert_allclose(trained, expected, rtol=1e-4, atol=1e-6)


def test_a_server_may_be_told_to_have_no_limits(file, tmp_path):
    run(file, tmp_path, set="baselines=[] flower.max_norm=Infinity flower.wait=Infinity")
    assert RunFolder(tmp_path).finished
    write_report(tmp_path)


BAD = {
    "no folder": ({"out": ""}, ConfigError, "lacks out, the folder to write the run to"),
    "no such setting": ({"set": "local.speed=3"}, ConfigError, "local.speed: there is no such setting"),
    "no such algorithm": (
        {"set": "algorithm.name=magic"},
        ConfigError,
        "algorithm.name: there is no 'magic'",
    ),
    "no setting": ({"set": "faster"}, ConfigError, "a setting is given as KEY=VALUE"),
    "an open quote": ({"set": "local.lr='0.1"}, ConfigError, "local.lr: input should be a valid number"),
    "impossible settings": ({"set": "flower.deadline=0"}, SettingError, "deadline must be positive"),
    "too many clusters": (
        {"set": "algorithm.k=6"},
        SettingError,
        "k=6 clusters need at least as many clients",
    ),
    "too few clients": (
        {"set": "flower.min_clients=6 flower.wait=0.2"},
        FederationError,
        "only 5 of the 6 clients",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_configuration_is_one_sentence_and_a_failed_run(kind, file, tmp_path, capsys):
    config, error, what = BAD[kind]
    with pytest.raises(error) as raised:
        run(file, **({"out": tmp_path / "run"} | config))
    assert what in str(raised.value)
    shown = capsys.readouterr().err
    assert shown == f"error: {raised.value}\n" and "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_an_experiment_file_that_is_not_there_is_one_sentence(tmp_path, capsys):
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        serve(tmp_path / "gone.toml", grid_for(tmp_path / "gone.toml", {}), {"out": str(tmp_path / "run")})
    assert capsys.readouterr().err.startswith("error: ")


def test_a_node_that_cannot_understand_the_settings_says_so(file, tmp_path):
    config = {"out": str(tmp_path / "run"), "set": "flower.wait=0.2"}
    grid = grid_for(file, config | {"set": "local.speed=3"})
    with pytest.raises(
        FederationError, match=r"only 0 of the 5 clients.*local.speed: there is no such setting"
    ):
        serve(file, grid, config)


@pytest.mark.parametrize(
    "setting, unlike",
    [("seed=4", "its seed is 3, here it is 4"), ("data.dim=4", "its data.dim is 3, here it is 4")],
)
def test_another_experiments_folder_is_left_alone(setting, unlike, finished, file):
    out, _ = finished
    before = (out / "clustering.json").read_bytes()
    with pytest.raises(RunFolderError, match=unlike):
        run(file, out, set=f"{setting} flower.wait=1")
    assert (out / "clustering.json").read_bytes() == before


# -- again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", ["", "flower.deadline=7 flower.min_replies=1"])
def test_a_finished_run_is_not_run_again_on_the_same_or_other_terms(terms, finished, file, capsys):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert run(file, out, set=terms).asks() == 0
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed <= {"batch.json"} | ({"experiment.toml"} if terms else set())
    assert "The run is in" in capsys.readouterr().out


def test_a_finished_run_is_replaced_when_that_is_wanted(file, tmp_path):
    first = run(file, tmp_path, set="baselines=[]")
    again = run(file, tmp_path, set="baselines=[] seed=4", overwrite=True)
    assert first.asks() == again.asks() > 0
    assert ct.load(tmp_path).seed == 4


class Killed(BaseException):
    """Stands for the end of the server's process: nothing of ours catches it."""


def interrupted(file, out, at):
    """A run whose server is gone just before something is pushed for the `at`-th time."""
    config = {"out": str(out)}
    grid = grid_for(file, config)

    def check(kind):
        if len(grid.exchanges) == at:
            raise Killed

    grid.before_push = check
    with pytest.raises(Killed):
        serve(file, grid, config)
    return grid


@pytest.mark.slow
def test_a_run_whose_server_was_interrupted_ends_as_if_it_had_not_been(finished, file, tmp_path):
    whole, grid = finished
    total = len(grid.exchanges)
    # a greeting; 3 rounds and a last exchange, and one for local training; 2 evaluations
    assert total == 1 + 4 + 1 + 2
    for at in range(total):
        out = tmp_path / str(at)
        interrupted(file, out, at)
        again = run(file, out)
        same(out, whole)
        # nothing is asked twice that was answered before, but for what was on its way
        assert again.asks() == total - max(at, 1)


def test_a_run_that_was_interrupted_again_and_again_ends_the_same(finished, file, tmp_path):
    whole, _ = finished
    for asks in (1, 2, 2):  # between rounds, before the last exchange, before local training
        interrupted(file, tmp_path, 1 + asks)  # each time there is a greeting first
    assert run(file, tmp_path).asks() == 4 + 1 + 2 - (1 + 2 + 2)
    same(tmp_path, whole)


def test_a_run_interrupted_between_an_answer_and_the_disk_asks_once_more(finished, file, tmp_path):
    whole, _ = finished
    config = {"out": str(tmp_path)}
    grid = grid_for(file, config)
    pull = grid.pull_messages

    def pulled(ids):
        messages = pull(ids)
        if messages and grid.asks() == 2:
            raise Killed
        return messages

    grid.pull_messages = pulled
    with pytest.raises(Killed):
        serve(file, grid, config)
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1
    run(file, tmp_path)
    same(tmp_path, whole)
