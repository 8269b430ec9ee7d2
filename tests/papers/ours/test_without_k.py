"""Discover beside others: the populations are what they are called, and a comparison says what it found."""

import numpy as np
import pytest

from coterie.papers import reproduce
from coterie.papers.ours.populations import DIGITS, REGRESSIONS
from coterie.papers.ours.without_k import FRESH, WithoutK, drawn

POPULATIONS = {**DIGITS, **REGRESSIONS}


@pytest.mark.parametrize("name", POPULATIONS)
def test_populations_have_the_groups_that_they_are_said_to_have(name):
    population = POPULATIONS[name]
    data = population.make(3)
    assert data.test.ids.tolist() == data.train.ids.tolist()
    if population.groups is not None:
        assert len(np.unique(data.truth)) == population.groups
    again = population.make(3)
    for (x, y), (same, labels) in zip(data.train, again.train, strict=True):
        np.testing.assert_array_equal(x, same)
        np.testing.assert_array_equal(y, labels)


def test_strangers_are_permuted_alike_in_training_and_test():
    whole, odd = DIGITS["2 rotations x 12"], DIGITS["2 x 12 and 8 permuted"].make(1)
    assert whole.make(1).train.sizes.tolist() == [50] * 24
    sizes = np.bincount(odd.truth)
    assert sizes.tolist() == [12, 12, *[1] * 8]


def test_nothing_that_was_looked_at_is_drawn_again():
    a, b = drawn("regressions", "weak separation", 0), REGRESSIONS["weak separation"].make(0)
    assert not np.array_equal(a.models, b.models)
    np.testing.assert_array_equal(a.models, REGRESSIONS["weak separation"].make(FRESH).models)


def test_a_method_may_be_so_far_behind_and_no_further():
    of = WithoutK("digits", ("2 rotations x 12",), ("discover", "global", "oracle"), 2, 3, "full")
    ours, other = np.array([0.91, 0.92, 0.93]), np.array([0.912, 0.922, 0.932])
    assert of._near(False, ["global"], ours, other)[1] is True  # 0.2 points, of 0.5
    assert of._near(False, ["global"], ours, other + 0.01)[1] is False  # 1.2 points
    of = WithoutK("regressions", ("10 groups of 6",), ("discover", "global", "oracle"), 2, 3, "full")
    assert of._near(False, ["global"], 1.02 * other, other)[1] is True  # 2 % of the loss, of 3 %
    assert of._near(False, ["global"], 1.05 * other, other)[1] is False
    assert of._near(True, ["oracle"], 1.05 * other, other)[1] is True  # of 6 %, where others are told


@pytest.mark.parametrize("name", ["ours/without-k", "ours/without-k-regressions"])
def test_it_runs(name, tmp_path):
    found = reproduce(name, scale="smoke", out=tmp_path)
    assert [row["method"] for row in found["table"]] == ["Discover", "Global", "oracle"]
    assert all(row["steps"] > 0 and row["models moved"] > 0 for row in found["table"])
    assert {finding["agrees"] for finding in found["findings"]} == {None}
    assert (tmp_path / "figure.png").exists()
