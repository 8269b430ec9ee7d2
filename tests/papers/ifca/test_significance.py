"""Intervals and trends of success counts."""

import numpy as np
import pytest

from coterie.papers.ifca import significance


def test_interval_is_wilsons():
    low, high = significance.interval(0, 40)
    # z^2 / (n + z^2) for no success at all
    assert low == 0 and high == pytest.approx(1.959964**2 / (40 + 1.959964**2), rel=1e-5)
    low, high = significance.interval(20, 40)
    assert low + high == pytest.approx(1) and low == pytest.approx(0.352, abs=5e-4)


def first(count, trials=40):
    return np.arange(trials) < count


def test_a_rise_beyond_chance_agrees_and_a_fall_disagrees():
    rising = significance.trend([(first(0), first(40)), (first(10), first(12)), (first(5), first(5))])
    assert (rising.rose, rising.stayed, rising.fell, rising.fell_beyond_chance) == (2, 1, 0, 0)
    assert (rising.gaining, rising.losing, rising.agrees) == (40, 0, True)
    # one clear fall is enough, whatever rises elsewhere
    mixed = significance.trend([(first(0), first(40)), (first(0), first(40)), (first(40), first(0))])
    assert (mixed.gaining, mixed.losing, mixed.fell_beyond_chance, mixed.agrees) == (40, 0, 1, False)
    assert "(1 fall beyond chance); 40 trials gain by it and 0 lose (" in str(mixed)
    one = significance.trend([(first(0, 3), np.array([True, False, False])), (first(0, 3), first(0, 3))])
    assert "(0 falls beyond chance); 1 trial gains by it and 0 lose (" in str(one)
    assert "0 trials gain by it and 1 loses (" in str(significance.trend([(first(1, 3), first(0, 3))]))


def test_many_small_falls_disagree_too():
    # each trial is lost in one pair of many: no pair falls clearly, all of them together do
    falling = significance.trend([(np.arange(40) == t, first(0)) for t in range(12)])
    assert falling.fell_beyond_chance == 0 and falling.losing == 12 and falling.agrees is False


def test_what_chance_explains_decides_nothing():
    nothing = significance.trend([(first(7), first(7))])
    assert nothing.agrees is None and "p = 1)" in str(nothing)
    # 4 of 4 are not beyond chance (1/16), 5 of 5 are (1/32)
    assert significance.trend([(first(3), first(7))]).agrees is None
    assert significance.trend([(first(3), first(8))]).agrees is True
    # one fall alone would be beyond chance; as one of many comparisons it is not
    same = [(first(3), first(3))] * 9
    assert significance.trend([(first(8), first(3))]).fell_beyond_chance == 1
    assert significance.trend([(first(8), first(3)), *same]).fell_beyond_chance == 0
