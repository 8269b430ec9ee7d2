"""Power: what lies along the axes, and what is made of it."""

import numpy as np
import pytest
from support.planted_table import planted

from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.ours.power import BASE, NAMES, population


@pytest.mark.parametrize("kind", NAMES)
def test_every_axis_changes_one_thing(kind):
    for place, axis in enumerate(find(NAMES[kind], "full", "text").axes):
        assert BASE[kind] in axis
        for settings in axis:
            changed = [i for i in range(3) if settings[i] != BASE[kind][i]]
            assert changed in ([], [place])


@pytest.mark.parametrize("kind", NAMES)
def test_clients_are_what_they_are_called(kind):
    apart, examples, clients = settings = BASE[kind]
    data, alike = population(kind, settings).make(3), population(kind, (0, examples, clients)).make(3)
    assert data.train.sizes.tolist() == [examples] * clients
    assert np.bincount(data.truth).tolist() == [clients // 2] * 2 and not alike.truth.any()
    if kind == "regressions":
        far = [np.linalg.norm(np.diff(population(kind, settings).make(i).models, axis=0)) for i in range(20)]
        assert np.mean(far) == pytest.approx(apart, rel=0.15)
    else:  # the first halves of both are the same but for the angle
        first = [next(iter(one.train))[0] for one in (data, alike)]
        assert first[0].shape == first[1].shape and not np.allclose(*first)


def test_often_enough_is_decided_by_an_interval():
    alike, far = find("ours/power", "full", "text").claims()
    assert alike.judge(np.ones(40)) == ("40 of 40, 95 % interval 91.2% to 100.0%.", True)
    assert alike.judge(np.array([1.0] * 39 + [0]))[1] is None
    assert alike.judge(np.array([1.0] * 30 + [0] * 10))[1] is False
    assert far.judge(np.array([1.0] * 38 + [0] * 2))[1] is True


def test_lines_are_shares_and_differences_to_the_oracle():
    table = find("ours/power-digits", "small", "text")
    found = planted(
        table,
        accuracy=lambda name, trial: {"oracle": 0.95, "discover": 0.93}.get(
            name.split(": ")[1].split()[0], 0.9
        ),
        right=lambda name, trial: float(trial < 4) if "discover" in name or "srfca" in name else None,
    )
    row = next(row for row in table.table(found) if row["method"] == "Discover")
    assert row["right"] == 0.8 and row["low"] < 0.8 < row["high"]
    axes = table.draw(found).axes
    assert len(axes) == 6
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), 0.8)
    np.testing.assert_allclose(axes[3].lines[0].get_ydata(), 2)


def test_it_runs(tmp_path):
    found = reproduce("ours/power", scale="smoke", out=tmp_path, only="0 apart, 20 examples, 40 clients")
    rows = [row for row in found["table"] if row["seeds"]]
    assert [row["method"] for row in rows] == ["Discover", "Global", "oracle"]
    assert rows[0]["right"] in (0, 1) and rows[1]["right"] is None
    assert (tmp_path / "figure.png").exists()
