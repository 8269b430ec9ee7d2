"""SR-FCA with and without held-out examples: what is compared, and how it is judged."""

import numpy as np

from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.ours.populations import DIGITS, REGRESSIONS

EXPERIMENT = find("ours/without-gap", "full", "text")


def test_every_population_is_one_of_those_that_there_are():
    assert set(EXPERIMENT.names) <= {*DIGITS, *REGRESSIONS} and len(set(EXPERIMENT.names)) == 17


def test_a_claim_fails_where_more_are_misplaced_and_is_open_where_that_is_chance():
    fewer, many = EXPERIMENT.claims()[:2]
    none, some = np.zeros(4), np.array([0.1, 0.11, 0.1, 0.12])
    assert fewer.judge(none, some)[1] is True and fewer.judge(some, some)[1] is True
    assert fewer.judge(some, none)[1] is False
    assert fewer.judge(np.array([0, 0, 0, 0.1]), none)[1] is None
    assert many.judge(np.array([4, 4]))[1] is True and many.judge(np.array([4, 3])) == ("4, 3.", False)


def test_it_runs(tmp_path):
    found = reproduce("ours/without-gap", scale="smoke", out=tmp_path)
    assert [row["MERGE by"] for row in found["table"]] == ["held-out examples", "a distance"]
    assert all(row["accuracy"] is None and row["loss"] > 0 for row in found["table"])
    assert (tmp_path / "figure.png").exists()
