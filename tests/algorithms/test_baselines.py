"""FedAvg and local training against NumPy references."""

import numpy as np
import pytest
from references import gradient, ifca, local_update

import coterie as ct
from coterie.models import stacked

DIM = 4
SIZES = [5, 9, 3, 17, 7]


@pytest.fixture(scope="module")
def data():
    return ct.data.mixed_regression(k=2, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.3, seed=0)


def learner(**local):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(**{"lr": 0.05, "steps": 3, **local}))


def clients_of(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


def initial(algorithm, data):
    """The models of the first round: those that a run of one round with a tiny step ends with."""
    still = algorithm(rounds=1).fit(data.train, learner(lr=1e-12), seed=0)
    return np.asarray(stacked.to_matrix(still.models), float)


@pytest.mark.parametrize("weight", ["clients", "examples"])
def test_global_is_federated_averaging(data, weight):
    found = ct.Global(rounds=6, weight=weight).fit(data.train, learner(), seed=0)
    everyone = [range(len(SIZES))] * 6
    expected, _, losses = ifca(
        clients_of(data), initial(ct.Global, data), 0.05, 3, everyone, 1.0, weight == "examples"
    )
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-4)
    assert found.k == 1 and (found.assignment == 0).all()


def test_a_proximal_term_makes_it_fedprox(data):
    mu = 0.7
    found = ct.Global(rounds=2).fit(data.train, learner(proximal=mu), seed=0)
    theta = initial(ct.Global, data)[0]
    for _ in range(2):
        replies = []
        for x, y in clients_of(data):
            w = theta.copy()
            for _ in range(3):
                w = w - 0.05 * (gradient(w, x, y) + mu * (w - theta))
            replies.append(w)
        theta = np.mean(replies, axis=0)
    np.testing.assert_allclose(stacked.to_matrix(found.models)[0], theta, rtol=1e-4, atol=1e-5)


def test_local_trains_each_client_alone(data):
    found = ct.Local(rounds=4).fit(data.train, learner(), seed=0)
    first = initial(ct.Local, data)
    assert (first == first[0]).all()  # all start from the same model
    expected = [local_update(first[0], x, y, 0.05, 12) for x, y in clients_of(data)]
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.assignment, np.arange(len(SIZES)))
    assert found.k == len(SIZES)


def test_local_training_sends_nothing(data):
    found = ct.Local(rounds=2).fit(data.train, learner(), seed=0)
    assert all(r.bytes_down == r.bytes_up == 0 for r in found.history)


def test_local_clients_that_are_not_drawn_or_do_not_answer_keep_their_model(data):
    found = ct.Local(rounds=1, participation=2).fit(data.train, learner(), seed=0)
    first = initial(ct.Local, data)[0]
    moved = np.abs(np.asarray(stacked.to_matrix(found.models)) - first).max(axis=1) > 1e-4
    assert moved.sum() == 2
    dropped = ct.Local(rounds=1).fit(ct.Simulation(data.train, drop=0.6), learner(), seed=3)
    still = ct.Local(rounds=1).fit(data.train, learner(lr=1e-12), seed=3)
    gap = np.asarray(stacked.to_matrix(dropped.models)) - np.asarray(stacked.to_matrix(still.models))
    assert (np.abs(gap).max(axis=1) > 1e-4).sum() == dropped.history[0].answered < len(SIZES)


def test_evaluation_of_local_models_uses_each_clients_own(data):
    found = ct.Local(rounds=3).fit(data.train, learner(), seed=0)
    result = found.evaluate(data.test)
    models = np.asarray(stacked.to_matrix(found.models), float)
    expected = [np.mean((y - x @ theta) ** 2) for (x, y), theta in zip(data.test, models, strict=True)]
    np.testing.assert_allclose(result.per_client["loss"], expected, rtol=1e-4)
    assert np.isnan(result.accuracy)


def test_what_local_training_sends_counts_in_a_clients_first_round():
    # one exchange carries all rounds; clients begin in different ones
    data = ct.data.mixed_regression(clients=10, dim=5, examples=6, seed=1)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=1))
    rounds = 4
    found = ct.Local(rounds=rounds, participation=0.3).fit(
        ct.Simulation(data.train, resident=False), learner, seed=2
    )
    sent = 5 * 4 + rounds * 4 + rounds  # model, the rounds' numbers, takes_part
    known = (found.history.assignments() >= 0).sum(axis=1)
    new = np.diff(known, prepend=0)
    assert [round_.bytes_down for round_ in found.history] == (new * sent).tolist()
    assert [round_.bytes_up for round_ in found.history] == (new * (5 * 4 + rounds * 4)).tolist()
    assert 3 < known[-1] < 10
