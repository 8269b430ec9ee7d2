"""An algorithm of the user's own, named by its import path: from an experiment file, resumed, over Flower."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.in_process import InProcessGrid
from support.observers import Kill, Killed
from support.references import gradient
from typer.testing import CliRunner

import coterie as ct
from coterie import keys
from coterie.cli.main import app
from coterie.errors import FederationError
from coterie.flower import FlowerFederation, client_for
from coterie.flower.app import own_tasks
from coterie.learn.catalogue import TASKS
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import Recorder, RunFolder

MODULE = '''
"""Gradient descent to which a client contributes less and less, the more often it was asked."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

import coterie as ct
from coterie.algorithms import algorithm
from coterie.algorithms.algorithm import Result, client_rows, lowest_loss, unknown
from coterie.federation.protocol import Ask
from coterie.learn.task import Reply, Task, per_client
from coterie.learn.tasks import Loss, MeasureLosses
from coterie.models import stacked
from weary_tasks import Greet  # noqa: F401


class Step(Task):
    """The gradient of a model, as far as the client is still at it."""

    model: PyTree
    pace: Float[Array, ""] = per_client()
    sign: int = eqx.field(static=True, default=1)

    def __call__(self, client):
        loss = client.learner.shard_loss(self.model, client.shard)
        gradient = client.learner.gradient(self.model, client.shard, client.key)
        return Reply(Loss(loss), jax.tree.map(lambda a: self.sign * self.pace * a, gradient))


class State(algorithm.State):
    pace: Float[Array, " clients"] | None = client_rows(fill=1.0, default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weary(ct.Algorithm[State]):
    """One model, from nothing."""

    step: float
    tired: float = 0.5

    def start(self, server, key):
        nothing = jax.tree.map(lambda a: jnp.zeros((1, *a.shape)), server.learner.shapes(server.spec))
        return self.state_of(nothing, server.clients)
        yield

    def state_of(self, models, clients):
        return State(models, unknown(clients), jnp.ones(clients))

    def ask(self, state, round):
        return Ask(Step(stacked.take(state.models, 0), state.pace, sign=-1))

    def update(self, state, answers, round):
        share = answers.answered / answers.answered.sum()
        steps = stacked.weighted(answers.value, share[:, None])
        models = jax.tree.map(lambda old, step: old + self.step * step, state.models, steps)
        assignment = answers.updated(state.assignment, jnp.zeros_like(answers.clients))
        pace = answers.updated(state.pace, self.tired * state.pace[answers.clients])
        return State(models, assignment, pace)

    def finish(self, server, state):
        answers = yield Ask(MeasureLosses(state.models))
        losses, told, objective = lowest_loss(answers)
        return Result(np.where(told, 0, -1), state.models, objective, losses)
'''
TASKS_OF_MINE = '''
"""A task in a module of its own."""

from coterie.learn.task import Reply, Task


class Greet(Task):
    def __call__(self, client):
        return Reply(value=client.shard.size)
'''
START = '''
"""A start that asks clients how many examples they have."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp

from coterie.federation.protocol import Ask
from coterie.learn.task import Reply, Task


class Report(eqx.Module):
    size: jax.Array


class Sizes(Task):
    def __call__(self, client):
        return Reply(Report(client.shard.size))


@dataclasses.dataclass(frozen=True)
class BySize:
    """Models of all zeros, of all means of sizes, of twice that, ..."""

    times: float = 1.0

    def __call__(self, server, key, k):
        answers = yield Ask(Sizes())
        level = self.times * answers.report.size.mean() * jnp.arange(k)
        shapes = server.learner.shapes(server.spec)
        return jax.tree.map(
            lambda a: jnp.broadcast_to(level.reshape(-1, *[1] * len(a.shape)), (k, *a.shape)), shapes
        )
'''
EXPERIMENT = """
seed = 4
baselines = ["global"]

[data]
name = "mixed-regression"
clients = 5
examples = 8
dim = 3

[algorithm]
name = "weary.Weary"
rounds = 4
step = 0.1
participation = 3

[local]
name = "sgd"
lr = 0.1
steps = 1
"""
MODULES = {"weary": MODULE, "weary_tasks": TASKS_OF_MINE, "by_size": START}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with modules of the user's own, which is on the Python path, and an experiment."""
    folder = tmp_path_factory.mktemp("own")
    for name, content in MODULES.items():
        (folder / f"{name}.py").write_text(content)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in MODULES:
        sys.modules.pop(name, None)


def experiment_in(folder, **changes):
    return Experiment.read(Experiment.from_file(folder / "experiment.toml") | changes)


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def run(folder):
    """The experiment as `coterie run` runs it."""
    out = folder / "run"
    answer = invoke("run", "--config", folder / "experiment.toml", "--out", out, "--json")
    assert answer.exit_code == 0, answer.output
    return out, json.loads(answer.stdout)


def by_hand(folder):
    """The model, and the losses of each round, of the algorithm as its module has it."""
    clients = list(experiment_in(folder).make_data().train)
    theta, pace, losses = np.zeros(3), np.ones(5), []
    for t in range(4):
        drawn = keys.participants(4, t, keys.tokens(range(5)), 3)
        residuals = [y - x @ theta for x, y in (clients[i] for i in drawn)]
        losses.append(np.mean([np.mean(r**2) for r in residuals]))
        theta = theta - 0.1 * np.mean([pace[i] * gradient(theta, *clients[i]) for i in drawn], axis=0)
        pace[drawn] /= 2
    return theta, losses


def test_it_runs_from_an_experiment_file(folder, run):
    out, summary = run
    found = ct.load(out)
    theta, losses = by_hand(folder)
    np.testing.assert_allclose(np.asarray(found.models.layers[0].weight)[0, 0], theta, rtol=1e-5)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-5)
    assert found.assignment.tolist() == [0] * 5
    settings = {"name": "weary.Weary", "rounds": 4, "participation": 3, "step": 0.1, "tired": 0.5}
    assert found.algorithm == settings
    assert [row["method"] for row in summary["rows"]] == ["weary.Weary", "global"]
    assert ct.load(out / "baselines" / "global").algorithm["rounds"] == 4  # as many as it had


def test_it_is_reported_on(run):
    out, _ = run
    answer = invoke("report", out)
    assert answer.exit_code == 0, answer.output
    assert "weary.Weary" in (out / "report.html").read_text()


def test_it_goes_on_where_it_was_stopped(folder, run, tmp_path):
    out, _ = run
    experiment = experiment_in(folder, baselines=[])
    for moments in (1, 3, 5):
        part = RunFolder(tmp_path / str(moments))
        decided = experiment.decided(experiment.make_data().train.spec)
        part.claim(decided, resume=False, overwrite=False)
        observers = [Recorder(part, every=0.0), Kill(moments)]
        with pytest.raises(Killed):
            experiment.make_algorithm().fit(
                experiment.make_data().train, decided.make_learner(), seed=4, observers=observers
            )
        answer = invoke("run", "--resume", "--out", part.path)
        assert answer.exit_code == 0, answer.output
        for name in ("models.safetensors", "evaluation.json"):
            assert (part.path / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.slow
def test_the_command_finds_it_in_the_folder_where_it_is_given(folder, run, tmp_path):
    out, _ = run
    command = Path(sys.executable).with_name("coterie")
    options = ["--config", "experiment.toml", "--baselines", "none", "--out", str(tmp_path / "run")]
    done = subprocess.run([command, "run", *options], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ct.load(tmp_path / "run").algorithm == ct.load(out).algorithm


# -- over Flower ------------------------------------------------------------------------------------------


def grid_for(file, nodes=5):
    return InProcessGrid([client_for(file)] * nodes, [{"partition-id": i} for i in range(nodes)])


def over_flower(experiment, grid, out):
    federation = FlowerFederation(grid, min_clients=len(grid.nodes), poll=0.001)
    return execute(experiment, RunFolder(out), federation=federation)


def tasks_heard(grid):
    return {m.content["ask"]["task"] for n in grid.nodes.values() for m in n.heard if "ask" in m.content}


def test_over_flower_it_is_the_same(folder, run, tmp_path):
    out, _ = run
    grid = grid_for(folder / "experiment.toml")
    found, simulated = over_flower(experiment_in(folder), grid, tmp_path / "run"), ct.load(out)
    for mine, theirs in ((found, simulated), (ct.load(tmp_path / "run"), simulated)):
        np.testing.assert_allclose(
            mine.models.layers[0].weight, theirs.models.layers[0].weight, rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(
            [r.loss for r in mine.history], [r.loss for r in theirs.history], rtol=1e-5
        )
        assert [r.answered for r in mine.history] == [3] * 4
        assert mine.algorithm == theirs.algorithm
    assert tasks_heard(grid) == {"Step", "ChooseAndTrain", "MeasureLosses", "Evaluate"}


def test_a_node_that_was_not_told_of_the_algorithm_does_nothing_for_it(folder, tmp_path):
    ours = tmp_path / "ours.toml"
    ours.write_text(EXPERIMENT.replace("weary.Weary", "global").replace("step = 0.1\n", "", 1))
    grid = grid_for(ours)
    with pytest.raises(FederationError, match=r"client '\d' does not know the task 'Step'"):
        over_flower(experiment_in(folder), grid, tmp_path / "run")
    said = [set(content) for node in grid.nodes.values() for content in node.said[1:]]
    assert said and all(names == {"refusal"} for names in said)


def test_a_part_of_an_algorithm_may_have_tasks_too(folder, tmp_path):
    section = {"name": "ifca", "k": 2, "rounds": 1, "init": {"name": "by_size.BySize", "times": 0.1}}
    experiment = experiment_in(folder, algorithm=section, baselines=[])
    file = tmp_path / "experiment.toml"
    file.write_text(experiment.to_toml())
    grid = grid_for(file)
    found = over_flower(experiment, grid, tmp_path / "flower")
    simulated = execute(experiment, RunFolder(tmp_path / "simulated"))
    assert found.assignment.tolist() == simulated.assignment.tolist()
    np.testing.assert_allclose(
        found.models.layers[0].weight, simulated.models.layers[0].weight, rtol=1e-5, atol=1e-6
    )
    assert "Sizes" in tasks_heard(grid)
    assert found.algorithm["init"] == {"name": "by_size.BySize", "times": 0.1}


def names_of(tasks):
    return {task.__name__ for task in tasks}


def test_tasks_of_ones_own_are_those_of_the_modules_that_the_experiment_names(folder):
    weary = importlib.import_module("weary")
    found = own_tasks(experiment_in(folder))
    assert weary.Step in found and weary.Greet in found  # made there, or imported
    assert names_of(found) - TASKS.keys() == {"Step", "Greet"}
    ours = {"name": "ifca", "k": 2, "init": "farthest-loss"}
    assert own_tasks(experiment_in(folder, algorithm=ours)) == []
    assert names_of(own_tasks(experiment_in(folder, algorithm={**ours, "init": "by_size.BySize"}))) == {
        "Sizes"
    }
    section = {"name": "weary.Weary", "step": 0.1}
    both = experiment_in(folder, algorithm=section, baselines=["weary.Weary"])
    assert names_of(own_tasks(both)) - TASKS.keys() == {"Step", "Greet"}
