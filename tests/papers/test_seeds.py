"""Tables of numbers over seeds."""

import numpy as np
import pytest
from support.coins import computed

from coterie.papers import reproduce
from coterie.papers.seeds import above


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
