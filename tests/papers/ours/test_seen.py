"""How often groups are seen: what is drawn, and what is made of it."""

import numpy as np

from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.ours.seen import ALIKE, CLIENTS, EXAMPLES, FEWEST, MOST, UNEVEN

EXPERIMENT = find("ours/groups", "full", "text")


def test_clients_are_what_they_are_called():
    alike, uneven, apart = (
        EXPERIMENT._drawn(who, 3) for who in (ALIKE, UNEVEN, f"two groups, scale {EXPERIMENT.scales[0]:g}")
    )
    assert len(alike.models) == len(uneven.models) == 1 and len(apart.models) == 2
    assert set(alike.train.sizes) == {EXAMPLES} == set(apart.train.sizes)
    sizes = uneven.train.sizes
    assert sizes.min() >= FEWEST and sizes.max() <= MOST and len(set(sizes)) > 10
    assert len(alike.train) == len(uneven.train) == CLIENTS


def test_more_than_chance_explains_is_too_often():
    few, many, in_doubt = np.full(4, 0.04), np.full(4, 0.14), np.full(1, 0.04)
    assert EXPERIMENT._seldom(few) == ("8 of 200.", True)
    assert EXPERIMENT._seldom(many) == ("28 of 200.", False)
    assert EXPERIMENT._seldom(in_doubt)[1] is None


def test_it_runs(tmp_path):
    found = reproduce("ours/groups", scale="smoke", out=tmp_path)
    seen = {(row["clients"], row["groups found by"]): row["seen (%)"] for row in found["table"]}
    assert seen[("two groups, scale 1", "IFCA, k = 2")] == 100 and len(seen) == 3
    assert all(row["gain"] is not None for row in found["table"])
    assert (tmp_path / "figure.png").exists()
