"""Are there groups: the test, against all pairings, and what it says of clients that are known."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import t

import coterie as ct
from coterie.errors import DataError, SettingError
from coterie.evaluate.groups import Gain, Groups, _half, _Judged, _p_value

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
SETTINGS = {"rounds": 5, "algorithm": ct.IFCA(2, rounds=5), "permutations": 499}


def judged(group, seed, k=2):
    m = len(group)
    losses = np.random.default_rng(seed).random((m, k))
    return _Judged(np.asarray(group), losses, np.zeros(m), np.zeros(m))


def share(first, second, allowed):
    """Of all pairings, those under which groups fit as well as they do."""

    def fit(pairing):
        return sum(
            first.losses[j, first.group[i]] + second.losses[i, second.group[j]] for i, j in enumerate(pairing)
        )

    m = len(first.group)
    sums = [
        fit(pairing)
        for pairing in permutations(range(m))
        if all(allowed(i, j) for i, j in enumerate(pairing))
    ]
    return np.mean(np.array(sums) <= fit(range(m)) + 1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_p_value_is_the_share_of_pairings_that_fit_as_well(seed):
    first, second = judged([0, 1, 1, 0, 0], seed), judged([1, 0, 1, 1, 2], seed + 50, k=3)
    wanted = share(first, second, lambda i, j: True)
    assert _p_value(first, second, np.full(5, 7), seed, 20_000) == pytest.approx(wanted, abs=0.02)


def test_halves_are_exchanged_among_clients_of_like_sizes_only():
    sizes = np.array([3, 2, 20, 30, 3])
    first, second = judged([0, 1, 1, 0, 0], 1), judged([1, 0, 1, 0, 0], 2)
    wanted = share(first, second, lambda i, j: np.log2(sizes[i]) // 1 == np.log2(sizes[j]) // 1)
    assert wanted != share(first, second, lambda i, j: True)
    assert _p_value(first, second, sizes, 0, 20_000) == pytest.approx(wanted, abs=0.02)


def test_one_group_on_both_halves_is_no_evidence_and_on_one_of_them_is_some():
    one = judged([0] * 8, 0, k=1)
    assert _p_value(one, one, np.full(8, 5), 0, 99) == 1
    clear = _Judged(np.arange(8) % 2, 1.0 - np.eye(2)[np.arange(8) % 2], np.zeros(8), np.zeros(8))
    assert _p_value(one, clear, np.full(8, 5), 0, 999) == pytest.approx(1 / 35, abs=0.02)  # 2 4! 4! of 8!


def test_halves_share_no_example_and_have_equally_many():
    x = [np.arange(n, dtype=float)[:, None] for n in (2, 5, 9, 40)]
    whole = ct.Shards.from_lists(x, [a[:, 0] for a in x])
    for number in (0, 1):
        for (a, _), n in zip(_half(whole, number), (2, 5, 9, 40), strict=True):
            assert a[:, 0].tolist() == list(range(number, n, 2))[: n // 2]


def test_the_interval_is_student_s():
    each = np.array([0.3, 0.1, 0.4, 0.2])
    gain = Gain.of(each)
    low, high = t.interval(0.95, 3, each.mean(), each.std(ddof=1) / 2)
    assert gain == pytest.approx((0.25, low, high))


def test_groups_are_seen_where_there_are_some_and_a_client_gains_by_them():
    data = ct.data.mixed_regression(k=2, clients=16, examples=30, dim=3, noise=0.3, scale=2.0, seed=0)
    found = ct.groups(data.train, LEARNER, **SETTINGS)
    assert found.any and found.p == pytest.approx(1 / 500) and found.found == (2, 2)
    # of two equal groups one model is the mean, and misses each by half of their difference
    wanted = np.square(np.subtract(*data.models)).sum() / 4
    assert found.loss.low < wanted < found.loss.high and found.accuracy is None
    assert str(found).startswith("There are groups (2): p = 0.002, a client gains ")
    again = ct.groups(data.train, LEARNER, **SETTINGS)
    assert again == found


@pytest.mark.slow
def test_clients_that_are_alike_are_seldom_called_groups():
    """60 draws with 5 in a hundred expected: more than 8 would be one chance in a hundred."""
    called = []
    for seed in range(60):
        data = ct.data.mixed_regression(k=1, clients=12, examples=16, dim=3, noise=1.0, seed=seed)
        called.append(ct.groups(data.train, LEARNER, seed=seed, **SETTINGS).p <= 0.05)
    assert sum(called) <= 8


WORDS = {
    "No groups: on either half of the examples all clients were found to be one.": (1.0, 0.0, (1, 1)),
    "There are groups (2): p = 0.001, a client gains 0.5 of loss (95 %: 0.4 to 0.6).": (0.001, 0.5, (2, 2)),
    "Clients are not all alike (p = 0.001), but groups (3 on one half of the examples, 2 on the other) are "
    "not worth it: a client gains -0.5 of loss (95 %: -0.6 to -0.4).": (0.001, -0.5, (3, 2)),
    "No groups are seen (of 2): p = 0.6, a client gains 0.5 of loss (95 %: 0.4 to 0.6).": (0.6, 0.5, (2, 2)),
}


@pytest.mark.parametrize("says", WORDS)
def test_it_says_in_words_what_it_found(says):
    p, gain, found = WORDS[says]
    result = Groups(p, Gain(gain, round(gain - 0.1, 3), round(gain + 0.1, 3)), None, found)
    assert str(result) == says
    assert result.any == says.startswith("There are groups")


def test_what_cannot_be_tested_is_said_in_a_sentence():
    data = ct.data.mixed_regression(k=1, clients=3, examples=[1, 1, 8], dim=2, seed=0)
    with pytest.raises(DataError, match="fewer than two clients have two examples or more"):
        ct.groups(data.train, LEARNER)
    with pytest.raises(SettingError, match=r"needs Shards \(such as data\.train\), not Simulation"):
        ct.groups(ct.Simulation(data.train), LEARNER)
    for name in ("rounds", "permutations"):
        with pytest.raises(SettingError, match=f"{name} must be a whole number from 1 up, not 0"):
            ct.groups(data.train, LEARNER, **{name: 0})


@pytest.mark.slow
def test_who_has_one_example_is_left_out():
    sizes = [1, *[20] * 8]
    data = ct.data.mixed_regression(k=2, clients=9, examples=sizes, dim=2, seed=0)
    found = ct.groups(data.train, LEARNER, **SETTINGS)
    rest = ct.groups(data.train[1:], LEARNER, **SETTINGS)
    assert found == rest
