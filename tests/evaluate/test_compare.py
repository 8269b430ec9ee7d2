"""Several methods on one population: what is chosen, computed, kept and said."""

import json

import numpy as np
import optax
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms.algorithm import Algorithm
from coterie.cli.main import app
from coterie.errors import LearnerError, RunFolderError, SettingError, diverged
from coterie.evaluate import compare
from coterie.evaluate.compare import _company, usual_methods
from coterie.evaluate.comparison import Comparison, Row
from coterie.evaluate.groups import Gain, Groups
from coterie.evaluate.kept import FILE
from coterie.evaluate.trials import Tried, simplest, with_smaller_steps

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=5))
METHODS = {"ifca": ct.IFCA(k=2, rounds=4, n_init=3), "cfl": ct.CFL(rounds=4)}


def population(k, seed=0):
    return ct.data.mixed_regression(k=k, clients=12, examples=30, dim=3, noise=0.3, scale=2.0, seed=seed)


# -- what is said --------------------------------------------------------------------------------------------


def made_up(any_=True, local=0.05, groups=2):
    """A comparison of which it is given what came out."""
    none, gain = Gain(0.0, 0.0, 0.0), Gain(0.1, 0.06, 0.14)
    alone = Gain(local, local - 0.02, local + 0.02)
    over_local = Gain(0.1 - local, 0.08 - local, 0.12 - local)
    minus = Gain(-local, -local - 0.02, -local + 0.02)

    def row(name, groups, accuracy, over_global, over_local):
        return Row(
            name, groups, 1 - accuracy, accuracy, 0.01, over_global, over_local, None, 0.3, 0.1, 9, 8, 7
        )

    rows = (
        row("global", 1, 0.8, none, minus),
        row("local", 4, 0.8 + local, alone, none),
        row("ifca", groups, 0.9, gain, over_local),
    )
    each = pd.DataFrame(
        {
            "client": ["a", "b", "c", "d"],
            "group": [0, 0, 1, 1],
            "margin": [0.5, -0.1, np.nan, 0.2],
            "company": [1.0, 0.5, np.nan, 1.0],
            "loss": [0.1, 0.2, 0.3, 0.4],
            "global": [0.6, 0.6, 0.6, 0.6],
            "local": [0.7, 0.7, 0.7, 0.7],
        }
    )
    seen = Groups(0.001 if any_ else 0.6, gain if any_ else none, gain if any_ else none, (2, 2))
    return Comparison("things", rows, "ifca", "ifca", seen, None, "linear", each)


@pytest.mark.parametrize(
    ("comparison", "sentences"),
    [
        (
            made_up(),
            "There are groups (p = 0.001): ifca finds 2. A client gains 10.0 points (95 %: 6.0 to 14.0) over "
            "one model for all, and 5.0 points (95 %: 3.0 to 7.0) over training alone.",
        ),
        (made_up(local=0.1), "; over training alone it is 0.0 points (95 %: -2.0 to 2.0), which is within"),
        (
            made_up(local=0.2),
            ", but training alone is better still: -10.0 points (95 %: -12.0 to -8.0) over it.",
        ),
        (
            made_up(any_=False, local=-0.05),
            "No groups are seen (of 2): p = 0.6, a client gains 0 of loss (95 %: 0 to 0) and 0.0 points of "
            "accuracy (95 %: 0.0 to 0.0). One model serves everyone: the best grouping, ifca, gains 10.0 "
            "points (95 %: 6.0 to 14.0).",
        ),
        (made_up(any_=False, local=-0.05, groups=1), "0.0 to 0.0). One model serves everyone."),
        (
            made_up(any_=False),
            "Each is served best by a model of its own: it gains 5.0 points (95 %: 3.0 to 7.0)",
        ),
    ],
)
def test_what_came_out_is_said_in_words(comparison, sentences):
    assert sentences in str(comparison)


def test_a_client_is_explained():
    found = made_up()
    assert found.explain("a") == (
        "a is in group 0, with 1 other (ifca). On its held-out examples the loss is 0.1 under the model of "
        "its group, 0.6 under that of the next best, 0.6 under one model for all, 0.7 under its own. From "
        "seed to seed 100% of its company is the same."
    )
    assert "So another group's model serves it better." in found.explain("b")
    assert "next best" not in found.explain("c") and "company" not in found.explain("c")
    with pytest.raises(SettingError, match="there is no client 'e' that was judged"):
        found.explain("e")


def test_the_table_goes_into_files(tmp_path):
    found = made_up()
    found.to_csv(tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert table.loc["ifca", "accuracy"] == 0.9 and table.loc["ifca", "over_global_low"] == 0.06
    text = found.to_latex(tmp_path / "table.tex")
    assert (tmp_path / "table.tex").read_text() == text
    assert "ifca & $90.0 \\pm 1.0$ & 10.0 & 5.0 & 2 \\\\" in text
    assert "global & $80.0 \\pm 1.0$ & -- & -5.0 & 1 \\\\" in text
    assert text.count("\\\\\n") == 4 and text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert found["local"].groups == 4
    with pytest.raises(SettingError, match="'cfl' was not compared; global, local, ifca were"):
        found["cfl"]


# -- how it is chosen ----------------------------------------------------------------------------------------


def test_of_methods_that_are_as_good_the_one_with_fewer_groups_is_taken():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, 50)
    tried = {
        "five": Tried(1 + noise, 5),
        "three": Tried(1.01 + noise + rng.normal(0, 0.1, 50), 3),  # within chance of it
        "two": Tried(1.2 + noise, 2),  # surely worse, client by client, though less so than clients differ
        "one": Tried(np.full(50, np.inf), 1),
    }
    assert simplest(tried) == "three"
    assert simplest({"one": tried["one"], "two": tried["two"]}) == "two"


def test_company_is_what_share_of_a_group_stays_together():
    same, other = np.array([0, 0, 1, 1, 1]), np.array([1, 1, 0, 0, 1])
    assert _company(same, 1 - same).tolist() == [1.0] * 5
    assert _company(same, other).tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2 / 3, 1 / 5])
    assert _company(np.array([-1, 0]), np.array([0, 0])).tolist() == pytest.approx([1 / 2, 1 / 2])


def test_usual_methods_take_about_as_many_local_updates():
    methods = usual_methods(30, 60)
    assert list(methods)[:3] == ["global", "local", "discover"]
    assert {f"ifca, k={k}" for k in (2, 3, 4, 5)} | {"srfca", "cfl"} == set(list(methods)[3:])
    assert "ifca, k=3" not in usual_methods(30, 3)
    assert set(methods) - set(usual_methods(30, 10_000)) == {"srfca", "cfl"}  # they look at all pairs
    assert all(isinstance(method, Algorithm) for method in methods.values())


# -- all of it -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_are_found_judged_and_kept(tmp_path):
    data, told = population(2), []
    found = ct.compare(
        data, LEARNER, methods=METHODS, rounds=4, seeds=2, folder=tmp_path, progress=told.append
    )
    assert found.groups.any and found.grouping in METHODS and found[found.grouping].groups == 2
    assert ct.metrics.misclustering(found.found.assignment, data.truth) == 0
    assert [row.method for row in found.rows] == ["global", "local", "ifca", "cfl"]
    assert found["ifca"].loss < found["global"].loss and found["ifca"].over_global.low > 0
    assert found["ifca"].agreement == 1.0 and found["global"].agreement is None
    assert found["global"].over_global == (0, 0, 0) and found["ifca"].accuracy is None
    # what is told of clients is what their held-out examples say
    each = found.per_client.set_index("client")
    loss = found.found.evaluate(data.test, "train").per_client.set_index("id").loss
    np.testing.assert_allclose(each.loss, loss, rtol=1e-5)
    assert (each.margin > 0).all() and (each.company == 1).all()
    # the best step size is within those that were tried, and judged by examples that nothing was trained on
    tried = json.loads((tmp_path / FILE).read_text())["tried"]
    assert all(len(one["each"]) == 12 for one in tried.values())
    assert found["ifca"].validation == pytest.approx(
        min(np.mean(one["each"]) for name, one in tried.items() if name.startswith("ifca"))
    )
    assert told[-1] == "are there groups"

    again = []
    other = ct.compare(
        data, LEARNER, methods=METHODS, rounds=4, seeds=2, folder=tmp_path, progress=again.append
    )
    assert again == [] and str(other) == str(found)
    pd.testing.assert_frame_equal(other.per_client, found.per_client)
    with pytest.raises(RunFolderError, match="holds another comparison \\(of another data\\)"):
        ct.compare(population(2, 1), LEARNER, methods=METHODS, rounds=4, seeds=2, folder=tmp_path)


def test_where_a_step_size_makes_training_diverge_a_smaller_one_is_taken():
    tried = []

    def computed(learner, most=0.02):
        tried.append(getattr(learner.local, "lr", None))
        if tried[-1] is None or tried[-1] > most:
            raise diverged("as it was told to")
        return "done"

    assert with_smaller_steps(computed, LEARNER) == "done"
    assert tried == pytest.approx([0.1, 0.1 / 3, 0.1 / 9])
    with pytest.raises(LearnerError):
        with_smaller_steps(lambda one: computed(one, most=1e-6), LEARNER)
    assert len(tried) == 3 + 4
    without = ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=2))
    with pytest.raises(LearnerError):
        with_smaller_steps(computed, without)
    assert len(tried) == 3 + 4 + 1


def test_what_cannot_be_written_down_is_kept_in_no_folder(tmp_path):
    without = ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=2))
    with pytest.raises(SettingError, match="parts of your own making cannot be written down"):
        ct.compare(population(2), without, methods=METHODS, folder=tmp_path)
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(RunFolderError, match="holds another comparison"):
        ct.compare(population(2), LEARNER, methods=METHODS, folder=tmp_path)


@pytest.mark.slow
def test_clients_that_are_alike_are_served_by_one_model():
    found = ct.compare(population(1), LEARNER, methods=METHODS, rounds=4, seeds=1)
    assert not found.groups.any and "One model serves everyone" in str(found)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(SettingError, match="methods must name one, at least, that finds groups"):
        ct.compare(population(2), LEARNER, methods={"global": ct.Global(rounds=2)})
    with pytest.raises(SettingError, match="seeds must be a whole number from 1 up, not 0"):
        ct.compare(population(2), LEARNER, seeds=0)
    single = ct.Shards.from_lists([np.eye(1)] * 3, [np.ones(1, np.float32)] * 3)
    with pytest.raises(SettingError, match="fewer than two clients have two examples"):
        ct.compare(ct.data.Federated(single, single), LEARNER)


@pytest.mark.slow
def test_one_command_from_a_table_to_an_answer(tmp_path, monkeypatch):
    few = usual_methods(6, 10)
    few = {name: few[name] for name in ("global", "local", "ifca, k=2")}  # most of it is compiling
    monkeypatch.setattr(compare, "usual_methods", lambda rounds, clients: few)
    one = {"linear": compare.usual_learners(True)["linear"]}
    monkeypatch.setattr(compare, "usual_learners", lambda classifies: one)
    rng = np.random.default_rng(0)
    heat = rng.normal(60, 8, 600)
    machine = np.repeat(np.arange(10), 60)
    bad = (np.where(machine % 2, 1, -1) * (heat - 60) / 4 + rng.normal(size=600)) > 0
    pd.DataFrame({"machine": machine, "heat": heat, "fault": np.where(bad, "yes", "no")}).to_csv(
        tmp_path / "readings.csv", index=False
    )
    options = ["compare", "--data", tmp_path / "readings.csv", "--client", "machine", "--label", "fault"]
    options += ["--rounds", 6, "--seeds", 1, "--out", tmp_path / "out"]
    more = ["--explain", 3, "--csv", tmp_path / "a.csv", "--latex", tmp_path / "a.tex"]
    answer = CliRunner().invoke(app, list(map(str, options + more)), env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.stdout.split())
    assert "There are groups" in said and " points (95 %" in said
    assert "Who belongs together" in said and "3 is in group" in said
    assert "choosing settings: global, linear, step size 0.1" in answer.stderr
    assert (tmp_path / "a.csv").exists() and (tmp_path / "a.tex").exists()
    plain = json.loads(CliRunner().invoke(app, [*map(str, options), "--json"]).stdout)
    assert plain["groups"]["any"] and plain["says"].startswith("There are groups")
    assert len({plain["assignment"][str(m)] for m in range(0, 10, 2)}) == 1
