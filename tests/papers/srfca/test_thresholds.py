"""On mixtures whose distances overlap there are thresholds with which SR-FCA finds the true clusters."""

import pytest

import coterie as ct
from coterie.papers.srfca.populations import POPULATIONS, CoinFlips


@pytest.mark.parametrize("share", ["2%", "40%"])
def test_a_wide_range_of_thresholds_parts_equal_clients(share):
    data = POPULATIONS["equal"].make(100, 0)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=5))
    found = ct.SRFCA(rounds=30, distance="l2", threshold=share).fit(data.train, learner, seed=0)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


def test_a_cross_loss_parts_the_released_mixture():
    data = POPULATIONS["released"].make(50, 0)
    learner = ct.Learner(CoinFlips(), "squared", ct.SGD(lr=0.02, steps=5))
    found = ct.SRFCA(rounds=56, threshold=350.0).fit(data.train, learner, seed=0)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
