"""Real processes over loopback: a SuperLink, SuperNodes, TLS, keys, kills and restarts."""

import json
import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from support.in_process import InProcessGrid

import coterie as ct
from coterie.flower import FlowerFederation, client_for
from coterie.flower.deployment import Deployment
from coterie.flower.keys import make_node_key
from coterie.flower.new import new_project
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import RunFolder

PATIENCE = 400  # seconds for a run; these machines may be slow and busy
EXPERIMENT = """
seed = 4
baselines = []

[data]
name = "mixed-regression"
k = 2
clients = {clients}
examples = 20
dim = 4

[model]
name = "linear"

[local]
name = "sgd"
lr = 0.05
steps = 3

[algorithm]
name = "ifca"
k = 2
rounds = {rounds}
n_init = 2

[flower]
min_clients = {clients}
min_replies = 0.5
deadline = {deadline}
wait = 120.0
"""


def project_of(folder, clients, rounds, deadline=120.0):
    new_project(folder, nodes=clients)
    text = EXPERIMENT.format(clients=clients, rounds=rounds, deadline=deadline)
    (folder / "experiment.toml").write_text(text)
    return folder


def experiment_of(folder, **algorithm):
    content = Experiment.from_file(folder / "experiment.toml")
    return Experiment.read({**content, "algorithm": content["algorithm"] | algorithm})


def partitions(count):
    return {f"node-{i}": {"partition-id": i} for i in range(count)}


def rounds_in(folder):
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(condition, what, patience=PATIENCE):
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {patience} s"
        time.sleep(0.2)


def assert_same(found, wanted):
    assert found.ids.tolist() == list(map(str, wanted.ids))
    np.testing.assert_array_equal(found.assignment, wanted.assignment)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found.models, wanted.models
    )


def server_process(deployment):
    """The process of the ServerApp that is running, if there is one."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            home = f"FLWR_HOME={deployment.home / 'processes' / 'superlink'}".encode()
            if any(word.endswith(b"flwr-serverapp") for word in words) and home in (
                entry / "environ"
            ).read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    return None


@pytest.fixture(scope="module", autouse=True)
def unmeasured():
    """Coverage makes every start of a process far slower, and there are hundreds of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
            patch.delenv(name)
        yield


@pytest.mark.slow  # before `secure` is there: both at once would take too much memory
def test_two_of_four_nodes_are_killed_in_a_round_and_one_comes_back(tmp_path):
    project = project_of(tmp_path / "study", clients=4, rounds=4)
    out = project / "runs" / "faults"
    with Deployment(project, secure=False) as deployment:
        deployment.start()
        deployment.start_nodes(partitions(4))
        run = deployment.run({"out": "runs/faults"})
        wait_until(lambda: len(rounds_in(out)) >= 1, "the first round")
        time.sleep(0.5)  # into the next one
        deployment.kill("node-1")
        deployment.kill("node-3")
        # back while the round still waits for both: it is greeted in the next one and takes part from then on
        deployment.start_node("node-3", {"partition-id": 3})
        status, details = deployment.wait_for(run, PATIENCE)
    assert status == "finished:completed", details
    found = ct.load(out)
    missing = [{name for names in r.missing.values() for name in names} for r in found.history]
    assert [r.answered for r in found.history] == [4 - len(names) for names in missing]
    assert missing[0] == set() and {"1", "3"} in missing
    assert missing[-1] == {"1"}, "one is still away, the other is back"
    assert found.ids.tolist() == ["0", "1", "2", "3"] and (found.assignment >= 0).all()
    # whoever was left out, and nobody else, made the difference: the same rounds replayed in this process
    grid = InProcessGrid(
        [client_for(project / "experiment.toml")] * 4, [{"partition-id": i} for i in range(4)]
    )
    away = [*missing, missing[-1], missing[-1]]
    everybody = list(grid.nodes)
    grid.get_node_ids = lambda: [node for node in everybody if str(node - 1) not in away[grid.asks()]]
    experiment = experiment_of(project)
    federation = FlowerFederation(grid, min_clients=4, poll=0.001)
    replayed = experiment.make_algorithm().fit(
        federation, experiment.decided(federation.spec).make_learner(), seed=experiment.seed
    )
    assert_same(found, replayed)


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A SuperLink with TLS and two SuperNodes with keys."""
    project = project_of(tmp_path_factory.mktemp("secure") / "study", clients=2, rounds=2)
    with Deployment(project) as deployment:
        deployment.start()
        deployment.start_nodes(partitions(2))
        yield deployment


def assert_as_simulated(out, experiment, path):
    """What a run has left is what a simulation of the experiment finds."""
    simulated = execute(experiment, RunFolder(path))
    found = ct.load(out)
    assert_same(found, simulated)
    assert [(r.round, r.answered) for r in found.history] == [(r.round, 2) for r in simulated.history]
    assert found.provenance["federation"] == "flower"
    evaluated = json.loads((out / "evaluation.json").read_text())
    theirs = simulated.evaluate(experiment.make_data().test, "train")
    assert evaluated["test"]["loss"] == pytest.approx(theirs.loss, rel=1e-4)


def test_a_run_with_tls_and_keys_agrees_with_the_simulation(secure, tmp_path):
    # a process starts for every message: one round is enough
    out = secure.project / "runs" / "whole"
    run = secure.run({"out": "runs/whole", "set": "algorithm.rounds=1 algorithm.n_init=1"})
    until = time.monotonic() + 30
    while not (out / "evaluation.json").exists() and time.monotonic() < until:
        time.sleep(0.1)  # to ask Flower would take a second of computing each time
    assert secure.wait_for(run, PATIENCE)[0] == "finished:completed"
    experiment = experiment_of(secure.project, rounds=1, n_init=1)
    assert_as_simulated(out, experiment, tmp_path / "simulated")


@pytest.mark.slow
def test_a_run_whose_server_was_killed_goes_on_and_agrees_with_the_simulation(secure, tmp_path):
    out = secure.project / "runs" / "killed"
    secure.run({"out": "runs/killed"})
    wait_until(lambda: len(rounds_in(out)) >= 1, "the first round")
    server = server_process(secure)
    assert server is not None
    os.kill(server, signal.SIGKILL)
    done = len(rounds_in(out))
    assert done < 2 and not (out / "clustering.json").exists()
    again = secure.run({"out": "runs/killed"})
    assert secure.wait_for(again, PATIENCE)[0] == "finished:completed"
    assert_as_simulated(out, experiment_of(secure.project), tmp_path / "simulated")


@pytest.mark.slow
@pytest.mark.parametrize("key", ["none", "unregistered"])
def test_a_node_without_a_registered_key_is_refused(secure, key):
    name = f"stranger-with-{key}"
    if key == "unregistered":
        make_node_key(secure.keys, name)
    before = secure.online()
    secure.start_node(name, {"partition-id": 0})
    wait_until(lambda: name not in secure.running(), "the stranger's end", 120)
    said = (secure.logs / f"{name}.log").read_text()
    assert (
        "SuperNode authentication is enabled" if key == "none" else "Failed to activate SuperNode"
    ) in said
    assert secure.online() == before
    secure.kill(name)  # what it may have started
