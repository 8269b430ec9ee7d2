"""Only the best of several starts goes on after some rounds."""

import numpy as np
import pytest

import coterie as ct
from coterie.clustering.history import CONTEST
from coterie.models import stacked
from coterie.run.progress import status

K, STARTS, ROUNDS, AFTER = 3, 4, 6, 2
SIZES = [5, 9, 3, 20, 7, 12, 4, 8, 15, 6, 10, 11]
DATA = ct.data.mixed_regression(k=K, clients=len(SIZES), examples=SIZES, dim=4, noise=0.3, seed=2)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=3))


def fit(algorithm=ct.IFCA, rounds=ROUNDS, n_init=STARTS, participation=6, seed=1, **settings):
    if algorithm is ct.FedX:
        participation = 1.0
    settings = {"rounds": rounds, "n_init": n_init, "participation": participation, **settings}
    return algorithm(K, **settings).fit(DATA.train, LEARNER, seed=seed)


def matrix(found):
    return np.asarray(stacked.to_matrix(found.models))


@pytest.mark.parametrize("algorithm", [ct.IFCA, ct.FedX])
def test_the_best_start_goes_on_as_it_would_beside_the_others(algorithm):
    """After the contest it does not depend on the others: nothing here is random but who takes part."""
    seeds_alike = 0
    for seed in range(4):
        whole = fit(algorithm, seed=seed)
        early = fit(algorithm, seed=seed, keep_best_after=AFTER)
        until = fit(algorithm, seed=seed, rounds=AFTER)
        assert early.history.restart == until.history.restart  # the best one then
        mine = early.history.restart
        np.testing.assert_allclose(
            early.history.restarts[:, mine], whole.history.restarts[:, mine], rtol=1e-4
        )
        if whole.history.restart == mine:  # it was the best in the end, too
            seeds_alike += 1
            np.testing.assert_array_equal(early.assignment, whole.assignment)
            np.testing.assert_allclose(matrix(early), matrix(whole), rtol=1e-3, atol=1e-4)
    assert seeds_alike  # or nothing was compared


def test_the_others_end_there():
    found = fit(keep_best_after=AFTER)
    history, mine = found.history, found.history.restart
    others = np.delete(history.restarts, mine, axis=1)
    assert np.isfinite(others[:AFTER]).all() and np.isnan(others[AFTER:]).all()
    assert np.isfinite(history.restarts[:, mine]).all()
    (event,) = [event for event in history.events if event.name == CONTEST]
    assert event.after == AFTER
    assert event.details["start"] == mine == int(np.argmin(event.details["losses"]))
    assert f"start {mine + 1} has the lowest" in event.text
    last = history.logs[-1]
    assert [len(sizes) for sizes in last.sizes] == [K * (start == mine) for start in range(STARTS)]
    assert status(last)[1].startswith("clusters ")  # of the one that goes on
    # everybody is asked for all models' losses once more, and then one start is paid for
    assert history.logs[AFTER].updates * STARTS == history.logs[AFTER - 1].updates
    assert event.losses == STARTS * K * len(SIZES)


@pytest.mark.parametrize("after", [ROUNDS, ROUNDS + 5])
def test_nothing_ends_early_that_has_no_round_left(after):
    found, whole = fit(keep_best_after=after), fit()
    np.testing.assert_array_equal(matrix(found), matrix(whole))
    assert [event.name for event in found.history.events] == [event.name for event in whole.history.events]


def test_a_single_start_needs_no_contest():
    found, alone = fit(n_init=1, keep_best_after=AFTER), fit(n_init=1)
    np.testing.assert_array_equal(matrix(found), matrix(alone))
    assert CONTEST not in [event.name for event in found.history.events]


@pytest.mark.parametrize("wrong", [0, 0.0, 1.5, -3, True])
def test_what_is_no_number_of_rounds_is_refused(wrong):
    with pytest.raises(ct.errors.SettingError, match=f"keep_best_after must be .*, not {wrong!r}"):
        fit(keep_best_after=wrong)


@pytest.mark.parametrize(
    ("after", "rounds", "expected"),
    [(0.25, 100, 25), (0.25, 24, 10), (0.25, 10, 10), (1.0, 100, 100), (7, 100, 7)],
)
def test_a_fraction_is_one_of_the_rounds_and_not_before_the_tenth(after, rounds, expected):
    assert ct.IFCA(K, rounds=rounds, keep_best_after=after).contest == expected
    assert ct.FedX(K, rounds=rounds, keep_best_after=after).contest == expected
