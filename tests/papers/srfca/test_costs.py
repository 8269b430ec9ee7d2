"""What methods cost, counted by hand."""

import numpy as np
import pytest

import coterie as ct
from coterie.papers.srfca import costs
from coterie.papers.srfca.course import groupings

CLIENTS, ROUNDS, STEPS = 6, 3, 2
DATA = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=60, dim=50, noise=0.1, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=STEPS))
SIZE = 4 * 50


def run(count, algorithm):
    found = algorithm.fit(DATA.train, LEARNER, seed=0)
    cost = count(found, algorithm, STEPS)
    # models are most of what travels; some numbers go with them
    for models, bytes_ in ((cost.models_down, cost.bytes_down), (cost.models_up, cost.bytes_up)):
        assert SIZE * models <= bytes_ <= 1.3 * SIZE * models
    return found, cost


def four(cost):
    return cost.models_down, cost.models_up, cost.forward, cost.steps_taken


@pytest.mark.parametrize("k, restarts", [(2, 1), (3, 2)])
def test_ifca_sends_all_models_and_computes_all_losses_in_every_round(k, restarts):
    _, cost = run(costs.alternating, ct.IFCA(k, rounds=ROUNDS, n_init=restarts))
    trained = CLIENTS * ROUNDS * restarts
    assert four(cost) == (trained * k, trained, trained * k, trained * STEPS)


def test_a_one_shot_start_costs_a_model_each_way_and_training_alone():
    _, cost = run(costs.alternating, ct.IFCA(2, rounds=ROUNDS, n_init=1, init=ct.OneShot(4)))
    trained = CLIENTS * ROUNDS
    assert four(cost) == (
        2 * trained + CLIENTS,
        trained + CLIENTS,
        2 * trained,
        (trained + 4 * CLIENTS) * STEPS,
    )
    _, cost = run(costs.one_shot, ct.OneShotKMeans(2, rounds=ROUNDS, alone=4))
    assert four(cost) == (trained + CLIENTS, trained + CLIENTS, 0, (trained + 4 * CLIENTS) * STEPS)


def test_one_model_each_way_where_clients_are_not_asked_for_their_cluster():
    trained = CLIENTS * ROUNDS
    for algorithm in (ct.Global(rounds=ROUNDS), ct.Oracle(DATA.truth, rounds=ROUNDS), ct.CFL(rounds=ROUNDS)):
        assert four(run(costs.averaging, algorithm)[1]) == (trained, trained, 0, trained * STEPS)


def test_clients_that_train_alone_send_their_model_once():
    _, cost = run(costs.alone, ct.Local(rounds=ROUNDS))
    assert four(cost) == (0, CLIENTS, 0, CLIENTS * ROUNDS * STEPS)


def test_soft_clusters_cost_all_centres_and_the_clients_own_model():
    _, cost = run(costs.soft, ct.FedSoft(2, rounds=ROUNDS, select=None, interval=2))
    trained, counted = CLIENTS * ROUNDS, CLIENTS * 2 * 3  # before rounds 0 and 2, and at the end
    assert four(cost) == (trained * 3 + counted, trained, counted, trained * STEPS)


@pytest.mark.parametrize("threshold, clusters", [("100%", 1), ("40%", 2)])
def test_cross_losses_cost_a_pass_per_pair_and_per_cluster(threshold, clusters):
    found, cost = run(costs.successive, ct.SRFCA(rounds=ROUNDS, refines=2, threshold=threshold))
    assert found.k == clusters
    trained, losses = CLIENTS * ROUNDS * 2, CLIENTS * CLIENTS + 2 * clusters * CLIENTS
    alone = CLIENTS * ROUNDS
    assert four(cost) == (
        CLIENTS + trained + losses,
        CLIENTS + trained,
        losses,
        (alone + trained) * STEPS,
    )


def test_euclidean_distances_cost_no_pass():
    _, cost = run(costs.successive, ct.SRFCA(rounds=ROUNDS, refines=2, threshold="40%", distance="l2"))
    trained = CLIENTS * ROUNDS * 2
    assert cost.forward == 0 and cost.models_down == cost.models_up == CLIENTS + trained


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
