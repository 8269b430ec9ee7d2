"""What methods cost, counted by hand."""

import numpy as np
import pytest

import coterie as ct
from coterie.papers.srfca.costs import cost as cost_of
from coterie.papers.srfca.course import groupings

CLIENTS, ROUNDS, STEPS = 6, 3, 2
DATA = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=60, dim=50, noise=0.1, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=STEPS))


def is_cost(cost, down, up, forward, steps):
    """Whether these are the models each way, with the few numbers that go with each, losses and steps."""
    whole = cost.models_down >= down and cost.models_up >= up
    near = (cost.models_down, cost.models_up) == pytest.approx((down, up), rel=0.12)
    return whole and near and (cost.forward, cost.steps_taken) == (forward, steps)


TRAINED, ALONE = CLIENTS * ROUNDS, CLIENTS * 4  # local updates
COUNTED = CLIENTS * 2 * 3  # two losses before rounds 0 and 2, and at the end
PAIRS = CLIENTS * CLIENTS + 2 * 2 * CLIENTS  # two clusters, in two REFINEs
COSTS = {
    "IFCA: all models down and all losses, in every round of every start": (
        ct.IFCA(3, rounds=ROUNDS, n_init=2),
        (2 * TRAINED * 3, 2 * TRAINED, 2 * TRAINED * 3, 2 * TRAINED),
    ),
    "a one-shot start: a model each way, and training alone": (
        ct.IFCA(2, rounds=ROUNDS, n_init=1, init=ct.OneShot(4)),
        (2 * TRAINED + CLIENTS, TRAINED + CLIENTS, 2 * TRAINED, TRAINED + ALONE),
    ),
    "one shot: clients are not asked for their cluster": (
        ct.OneShotKMeans(2, rounds=ROUNDS, alone=4),
        (TRAINED + CLIENTS, TRAINED + CLIENTS, 0, TRAINED + ALONE),
    ),
    "one shot without rounds": (ct.OneShotKMeans(2, rounds=0, alone=4), (CLIENTS, CLIENTS, 0, ALONE)),
    "known clusters: one model each way": (
        ct.Oracle(DATA.truth, rounds=ROUNDS),
        (TRAINED, TRAINED, 0, TRAINED),
    ),
    "bipartition: one model each way": (ct.CFL(rounds=ROUNDS), (TRAINED, TRAINED, 0, TRAINED)),
    "alone: a model once each way": (ct.Local(rounds=ROUNDS), (CLIENTS, CLIENTS, 0, TRAINED)),
    "soft clusters: all centres and the client's own model": (
        ct.FedSoft(2, rounds=ROUNDS, select=None, interval=2),
        (TRAINED * 3 + COUNTED, TRAINED, COUNTED, TRAINED),
    ),
    "cross losses: a pass per pair and per cluster": (
        ct.SRFCA(rounds=ROUNDS, refines=2, threshold="40%"),
        (CLIENTS + 2 * TRAINED + PAIRS, CLIENTS + 2 * TRAINED, PAIRS, 3 * TRAINED),
    ),
    "Euclidean distances: no pass": (
        ct.SRFCA(rounds=ROUNDS, refines=2, threshold="40%", distance="l2"),
        (CLIENTS + 2 * TRAINED, CLIENTS + 2 * TRAINED, 0, 3 * TRAINED),
    ),
}


@pytest.mark.parametrize("case", COSTS)
def test_the_cost_is_what_can_be_counted_by_hand(case):
    algorithm, (down, up, forward, updates) = COSTS[case]
    assert is_cost(
        cost_of(algorithm.fit(DATA.train, LEARNER, seed=0), STEPS), down, up, forward, updates * STEPS
    )


def test_what_there_is_after_a_refine_is_the_result_of_a_run_that_ends_with_it():
    def fit(refines):
        # four neighbours at most: REFINE has something to do
        algorithm = ct.SRFCA(rounds=ROUNDS, refines=refines, threshold="15%", distance="l2")
        return algorithm.fit(DATA.train, LEARNER, seed=0)

    whole = fit(2)
    shot, first, second = groupings(whole.history)
    assert (shot < 0).any() and (first >= 0).all()
    np.testing.assert_array_equal(first, fit(1).assignment)
    np.testing.assert_array_equal(second, whole.assignment)
