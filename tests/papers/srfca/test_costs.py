"""What methods cost, counted by hand."""

import numpy as np
import pytest

import coterie as ct
from coterie.papers.srfca.costs import cost as cost_of
from coterie.papers.srfca.course import groupings

CLIENTS, ROUNDS, STEPS = 6, 3, 2
DATA = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=60, dim=50, noise=0.1, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=STEPS))


def run(algorithm):
    found = algorithm.fit(DATA.train, LEARNER, seed=0)
    return found, cost_of(found, STEPS)


def is_cost(cost, down, up, forward, steps):
    """Whether these are the models each way, with the few numbers that go with each, losses and steps."""
    whole = cost.models_down >= down and cost.models_up >= up
    near = (cost.models_down, cost.models_up) == pytest.approx((down, up), rel=0.12)
    return whole and near and (cost.forward, cost.steps_taken) == (forward, steps)


@pytest.mark.parametrize("k, restarts", [(2, 1), (3, 2)])
def test_ifca_sends_all_models_and_computes_all_losses_in_every_round(k, restarts):
    _, cost = run(ct.IFCA(k, rounds=ROUNDS, n_init=restarts))
    trained = CLIENTS * ROUNDS * restarts
    assert is_cost(cost, trained * k, trained, trained * k, trained * STEPS)


def test_a_one_shot_start_costs_a_model_each_way_and_training_alone():
    _, cost = run(ct.IFCA(2, rounds=ROUNDS, n_init=1, init=ct.OneShot(4)))
    trained = CLIENTS * ROUNDS
    steps = (trained + 4 * CLIENTS) * STEPS
    assert is_cost(cost, 2 * trained + CLIENTS, trained + CLIENTS, 2 * trained, steps)
    _, cost = run(ct.OneShotKMeans(2, rounds=ROUNDS, alone=4))
    assert is_cost(cost, trained + CLIENTS, trained + CLIENTS, 0, steps)
    _, cost = run(ct.OneShotKMeans(2, rounds=0, alone=4))
    assert is_cost(cost, CLIENTS, CLIENTS, 0, 4 * CLIENTS * STEPS)


def test_one_model_each_way_where_clients_are_not_asked_for_their_cluster():
    trained = CLIENTS * ROUNDS
    for algorithm in (ct.Global(rounds=ROUNDS), ct.Oracle(DATA.truth, rounds=ROUNDS), ct.CFL(rounds=ROUNDS)):
        assert is_cost(run(algorithm)[1], trained, trained, 0, trained * STEPS)


def test_clients_that_train_alone_are_sent_a_model_once_and_send_it_back():
    _, cost = run(ct.Local(rounds=ROUNDS))
    assert is_cost(cost, CLIENTS, CLIENTS, 0, CLIENTS * ROUNDS * STEPS)


def test_soft_clusters_cost_all_centres_and_the_clients_own_model():
    _, cost = run(ct.FedSoft(2, rounds=ROUNDS, select=None, interval=2))
    trained, counted = CLIENTS * ROUNDS, CLIENTS * 2 * 3  # before rounds 0 and 2, and at the end
    assert is_cost(cost, trained * 3 + counted, trained, counted, trained * STEPS)


@pytest.mark.parametrize("threshold, clusters", [("100%", 1), ("40%", 2)])
def test_cross_losses_cost_a_pass_per_pair_and_per_cluster(threshold, clusters):
    found, cost = run(ct.SRFCA(rounds=ROUNDS, refines=2, threshold=threshold))
    assert found.k == clusters
    trained, losses = CLIENTS * ROUNDS * 2, CLIENTS * CLIENTS + 2 * clusters * CLIENTS
    alone = CLIENTS * ROUNDS
    steps = (alone + trained) * STEPS
    assert is_cost(cost, CLIENTS + trained + losses, CLIENTS + trained, losses, steps)


def test_euclidean_distances_cost_no_pass():
    _, cost = run(ct.SRFCA(rounds=ROUNDS, refines=2, threshold="40%", distance="l2"))
    trained = CLIENTS * ROUNDS * 2
    steps = (CLIENTS * ROUNDS + trained) * STEPS
    assert is_cost(cost, CLIENTS + trained, CLIENTS + trained, 0, steps)


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
