"""Clients without labels: what is measured, and that it is so on MNIST."""

import os

import numpy as np
import pytest
from support.small_sets import write_femnist, write_mnist

from coterie.data import mnist
from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.ours import unlabelled

EXPERIMENT = find("ours/unlabelled", "small", "text")


@pytest.fixture(autouse=True)
def forget():
    """No clients of another test."""
    yield
    unlabelled._rotations.cache_clear()
    unlabelled._writers.cache_clear()


def test_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "MD5", {})
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "sets"))
    write_mnist(tmp_path / "sets" / "mnist", train=240, test=240)
    write_femnist(tmp_path / "sets", sizes=[30] * 14)
    for some in ("*: 50 images seed*", "*2 groups*"):  # others are the same with other numbers
        found = reproduce("ours/unlabelled", scale="smoke", out=tmp_path / "run", only=some)
    rotated = [row for row in found["table"] if row["clients"] == unlabelled.ROTATED]
    assert [row["with"] for row in rotated] == list(unlabelled.ROWS[unlabelled.ROTATED])
    (fifty,) = (row for row in rotated if row["seeds"])
    assert fifty["largest group"] <= 1 and 0 <= fifty["right"] <= 1
    assert sum(row["seeds"] for row in found["table"]) >= 2
    assert {row["right"] for row in found["table"] if row["clients"] == unlabelled.WRITERS} == {None}
    assert (tmp_path / "run" / "figure.png").exists()


def test_enough_is_decided_by_an_interval():
    enough = EXPERIMENT._enough
    assert enough(np.array([0.97, 0.98, 0.975]))[1] is True
    assert enough(np.array([0.90, 0.91, 0.905]))[1] is False
    assert enough(np.array([0.94, 0.97, 0.96]))[1] is None


@pytest.mark.data
@pytest.mark.skipif(
    os.environ.get("COTERIE_DATA") is None, reason="COTERIE_DATA names no folder with the data sets"
)
def test_fifty_images_without_labels_are_enough_for_rotations():
    small = unlabelled.Unlabelled(24, 8, 10, 1, "small")
    (values,) = (e.values for e in small.entries() if e.name == f"{unlabelled.ROTATED}: 50 images")
    found = small.one(values, 5, lambda done: None)
    assert found["agreement"] >= 0.95 and found["largest group"] == 0.25
