"""Tables of numbers over seeds."""

import json

import numpy as np
import pytest
from support.coins import Coin, computed

from coterie.errors import ConfigError
from coterie.papers import reproduce
from coterie.papers.seeds import above, all_of


def test_seed_by_seed_and_beside_what_is_published(tmp_path):
    computed.clear()
    found = reproduce("support.coins.FIGURE", seed=3, out=tmp_path)
    assert computed == [("fair", 3000), ("bent", 3000), ("fair", 3001), ("bent", 3001)]
    fair, bent = found["table"]
    assert fair == {
        "coin": "fair",
        "accuracy (%)": 50.0,
        "standard deviation": 0.0,
        "published": 50.0,
        "published deviation": 1.0,
        "seeds": 2,
        "collapsed": 2,
    }
    assert bent["accuracy (%)"] == pytest.approx(30.0)
    assert bent["standard deviation"] == pytest.approx(10 / 2**0.5)
    assert (bent["published"], bent["collapsed"]) == (None, 1)
    shown = found["overview"]
    assert shown[0]["published"] == "50.00 ± 1.00"
    assert shown[1] == {
        "coin": "bent",
        "accuracy": "30.00 ± 7.07 %",
        "published": None,
        "collapsed": "1 of 2",
    }


@pytest.mark.parametrize(
    "ours, other, by, verdict",
    [
        ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], 0.0, True),
        ([2.0, 2.1, 1.9], [1.0, 1.1, 0.9], 1.5, False),
        ([1.0, 2.0, 0.0], [1.1, 0.9, 1.0], 0.0, None),
        ([2.0], [1.0], 0.0, None),
        ([2.0, 2.1, 1.9], 1.0, 0.5, True),
    ],
)
def test_a_verdict_needs_the_whole_interval(ours, other, by, verdict):
    assert above(np.array(ours), np.array(other), by) is verdict


@pytest.mark.parametrize(
    "verdicts, together",
    [((True, True), True), ((True, None), None), ((False, None), False), ((True, False), False)],
)
def test_several_claims_hold_together_or_one_fails(verdicts, together):
    assert all_of(*verdicts) is together


def test_further_results_are_columns_where_they_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(Coin, "also", ("edge",), raising=False)

    def one(self, values, seed, done):
        more = {"edge": np.array(0.1 * (1 + seed % 10))} if values["coin"] == "bent" else {}
        return {"accuracy": np.array(0.5), **more}

    monkeypatch.setattr(Coin, "one", one)
    fair, bent = reproduce("support.coins.FIGURE", seed=3, out=tmp_path)["table"]
    assert fair["edge"] is None and bent["edge"] == pytest.approx(0.15)
    assert fair["collapsed"] is None


def test_parts_of_a_table(tmp_path):
    computed.clear()
    part = reproduce("support.coins.FIGURE", seed=3, out=tmp_path, only="bent")
    assert computed == [("bent", 3000), ("bent", 3001)]
    fair, bent = part["table"]
    assert (fair["accuracy (%)"], fair["seeds"], bent["seeds"]) == (None, 0, 2)
    assert part["overview"][0]["accuracy"] == "–"
    assert part["findings"][0]["found"] == "not computed." and part["findings"][0]["agrees"] is None
    more = reproduce("support.coins.FIGURE", seed=3, out=tmp_path, only="fair*1")
    assert computed[2:] == [("fair", 3001)] and more["table"][0]["seeds"] == 1
    assert more["findings"][0]["found"] == "0.50 and 0.35", "over the seeds that both have"
    whole = reproduce("support.coins.FIGURE", seed=3, out=tmp_path)
    assert computed[3:] == [("fair", 3000)] and whole["table"][0]["seeds"] == 2
    assert whole["findings"][0]["found"] == "0.50 and 0.30"


def test_what_is_there_is_written_when_interrupted(tmp_path, monkeypatch):
    def stops(self, values, seed, done):
        if values["coin"] == "bent":
            raise KeyboardInterrupt
        return {"accuracy": np.array(0.5)}

    monkeypatch.setattr(Coin, "one", stops)
    with pytest.raises(KeyboardInterrupt):
        reproduce("support.coins.FIGURE", out=tmp_path)
    table = json.loads((tmp_path / "results.json").read_text())["table"]
    assert [row["seeds"] for row in table] == [1, 0]


def test_smoke_decides_nothing(tmp_path):
    assert reproduce("support.coins.FIGURE", "small", out=tmp_path / "a")["findings"][0]["agrees"] is not None
    assert reproduce("support.coins.FIGURE", "smoke", out=tmp_path / "b")["findings"][0]["agrees"] is None


@pytest.mark.parametrize(
    "name, only, said",
    [
        ("support.coins.FIGURE", "silver", "they are called 'fair seed 0' to 'bent seed 1'"),
        ("ifca/fig2a", "R=1", "--only is for tables"),
    ],
)
def test_parts_that_are_not_there(tmp_path, name, only, said):
    with pytest.raises(ConfigError, match=said):
        reproduce(name, "smoke", out=tmp_path, only=only)


@pytest.mark.parametrize(
    "fair, bent, said",
    [(5, 5, "5 seeds"), (1, 1, "1 seed"), (2, 5, "2 to 5 seeds"), (3, 0, "3 seeds"), (0, 0, "0 seeds")],
)
def test_a_caption_tells_of_the_seeds_that_there_are(fair, bent, said):
    table = Coin(trials=5, scale="paper")
    there = [f"{name} seed {i}" for name, number in (("fair", fair), ("bent", bent)) for i in range(number)]
    assert table.how_many({name: {"accuracy": np.array(0.5)} for name in there}) == said
