"""A finished run in a few rows."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

import coterie as ct
from coterie import storage
from coterie.clustering import Clustering
from coterie.clustering.history import History, RoundLog
from coterie.data.shards import Spec
from coterie.models import stacked
from coterie.run.contents import Truth
from coterie.run.summary import Row, Summary, human_bytes, summarise
from coterie.run.tables import show_summary


def finished(path, name, assignment, rounds=3, evaluation=None):
    """Write a finished run by hand."""
    k = max(assignment) + 1
    spec = Spec((2,), "float32", (), "float32")
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=1)).for_data(spec)
    logs = [
        RoundLog(
            *(t, [0.5], [0], [[1]], [[]]),
            *(4, 3, 100, 30, 0.5),  # asked, answered, bytes down and up, seconds
            updates=6,
        )
        for t in range(rounds)
    ]
    Clustering(
        ids=np.arange(len(assignment)),
        assignment=np.array(assignment, np.int32),
        models=stacked.from_matrix(np.zeros((k, 2)), learner.shapes(spec)),
        learner=learner,
        spec=spec,
        history=History(logs, len(assignment)),
        algorithm={"name": name},
    ).save(path)
    content = {
        "data": "four clients",
        "truth": [0, 0, 1, 1],
        "misclustering": 0.25,
        "test": scores(0.75, 0.5),
        **(evaluation or {}),
    }
    storage.write_json(path / "evaluation.json", content)
    storage.write_text(path / "experiment.toml", "seed = 0\n")


def scores(accuracy, loss):
    """As `evaluation.json` has them, of four clients that are alike."""
    each = {"id": list(range(4)), "accuracy": [accuracy] * 4, "loss": [loss] * 4}
    return {"accuracy": accuracy, "loss": loss, "per_client": each, "chosen_by": "train"}


@pytest.fixture
def run(tmp_path):
    finished(tmp_path, "ifca", [1, 1, 0, 1])
    return tmp_path


def test_a_row_per_method_and_the_groups_against_the_truth(run):
    regression = {"misclustering": None, "test": {**scores(None, 0.25), "served_by": "own model"}}
    finished(run / "baselines" / "local", "local", [0, 1, 2, 3], rounds=2, evaluation=regression)
    finished(run / "baselines" / "global", "global", [0, 0, 0, 0], evaluation={"test": None})
    summary = summarise(run)
    assert (summary.data, summary.clients) == ("four clients", 4)
    assert summary.rows == (
        Row("ifca", 0.75, 0.5, 0.25, clusters=2, rounds=3, updates=4.5, bytes_moved=390, seconds=1.5),
        Row("global", None, None, 0.25, clusters=1, rounds=3, updates=4.5, bytes_moved=390, seconds=1.5),
        Row("local", None, 0.25, None, 4, 2, updates=3.0, bytes_moved=260, seconds=1.0, own_models=True),
    )
    assert summary.found == (1, 0)
    assert summary.matrix == ((2, 1), (0, 1))
    content = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert content["rows"][0]["accuracy"] == 0.75 and content["matrix"] == [[2, 1], [0, 1]]


def test_two_settings_of_one_algorithm_are_told_apart_by_their_folders(run):
    finished(run / "baselines" / "ifca-of-one-start", "ifca", [0, 0, 0, 0])
    storage.write_text(run / "baselines" / "notes.txt", "")
    assert [row.method for row in summarise(run).rows] == ["ifca", "ifca-of-one-start"]


def test_without_a_truth_there_is_no_matrix(tmp_path):
    finished(tmp_path, "ifca", [2, -1, 0, 2], evaluation={"truth": None, "misclustering": None})
    summary = summarise(tmp_path)
    assert summary.found == (0, 2) and summary.matrix is None
    assert summary.members == (("2",), ("0", "3"))  # where no truth is known, who belongs together is told


@pytest.mark.parametrize(
    "found, truth, order, matrix",
    [
        # the names of clusters say nothing
        ([0, 0, 1, 1], [0, 0, 1, 1], (0, 1), ((2, 0), (0, 2))),
        ([1, 1, 0, 0], [0, 0, 1, 1], (1, 0), ((2, 0), (0, 2))),
        # more found than true
        ([2, 2, 0, 1, 1], [0, 0, 1, 1, 1], (2, 1, 0), ((2, 0), (0, 2), (0, 1))),
        # fewer found than true
        ([0, 0, 0, 1], [0, 1, 1, 2], (0, 1), ((1, 2, 0), (0, 0, 1))),
        ([0, 0, 0], [0, 1, 2], (0,), ((1, 1, 1),)),
        # a cluster without clients has no row, matched or not
        ([2, 2, 0, 0], [0, 0, 1, 1], (2, 0), ((2, 0), (0, 2))),
        ([3, 3, 0, 0], [0, 0, 1, 2], (3, 0), ((2, 0, 0), (0, 1, 1))),
        # clients without a cluster count nowhere
        ([-1, 0, 1, -1], [0, 0, 1, 1], (0, 1), ((1, 0), (0, 1))),
        ([-1, -1], [0, 1], (), ()),
    ],
)
def test_the_best_match_lies_on_the_diagonal(found, truth, order, matrix):
    known = Truth(truth, np.array(found))
    assert known.rows == list(order) and known.table[known.rows].tolist() == list(map(list, matrix))


@pytest.mark.parametrize(
    "count, words",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (277_200, "277.2 kB"),
        (2_500_000, "2.5 MB"),
        (3_000_000_000, "3.0 GB"),
        (4_200_000_000_000, "4.2 TB"),
        (5_000_000_000_000_000, "5000.0 TB"),
    ],
)
def test_bytes_have_a_unit(count, words):
    assert human_bytes(count) == words


def shown(summary):
    out = Console(file=io.StringIO(), width=120, force_terminal=False)
    show_summary(out, summary)
    assert max(map(len, map(str.rstrip, out.file.getvalue().splitlines()))) <= 80
    return [line.split() for line in out.file.getvalue().splitlines() if line.strip()]


def test_a_classification_is_shown_by_its_accuracy():
    rows = (
        Row("ifca", 0.9251, 0.1, 0.0, 2, 60, 300, 1500, 1.25),
        Row("fedsoft", None, 0.2, None, 4, 60, 1.75, 0, 0.5, own_models=True),
    )
    table = shown(Summary("digits", 4, rows, (1, 0), ((2, 0), (1, 1))))
    assert table[0][:2] == ["digits,", "4"] and "accuracy" in table[2] and "loss" not in table[2]
    assert ["ifca", "92.5%", "0.0%", "2", "300", "1.5", "kB", "1.2", "s"] in table
    assert ["fedsoft*", "–", "–", "4", "2", "–", "0.5", "s"] in table
    assert ["*:", "clients", "are", "served", "by", "models", "of", "their", "own"] in table
    assert ["found", "1", "2", "·"] in table and ["found", "0", "1", "1"] in table
    assert ["true", "0", "true", "1"] in table


def test_a_regression_is_shown_by_its_loss():
    table = shown(Summary("x", 4, (Row("ifca", None, 0.1, 0.5, 2, 60, 61, 1, 1.0),), (0, 1), None))
    assert "loss" in table[2] and "accuracy" not in table[2]
    assert ["ifca", "0.1000", "50.0%", "2", "61", "1", "B", "1.0", "s"] in table
    assert not any("*:" in line for line in table)
    assert not any("found" in line for line in table)


def test_a_run_in_which_nobody_answered_is_shown_without_groups():
    table = shown(Summary("x", 4, (Row("ifca", None, None, 1.0, 0, 60, 60, 1, 1.0),), (), ()))
    assert not any("found" in line or "true" in line for line in table)
