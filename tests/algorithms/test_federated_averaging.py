"""One model for all clients: FedAvg and FedProx against NumPy references."""

import numpy as np
import pytest
from support.observers import Remember
from support.references import gradient, ifca, ifca_gradients

import coterie as ct
from coterie import keys
from coterie.models import stacked

DIM, ROUNDS = 4, 6
SIZES = [5, 9, 3, 17, 7]


@pytest.fixture(scope="module")
def data():
    return ct.data.mixed_regression(k=2, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.3, seed=0)


def learner(**local):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(**{"lr": 0.05, "steps": 3, **local}))


def clients_of(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


def fitted(algorithm, data, local):
    """What it finds, and the model that it started with."""
    watch = Remember()
    found = algorithm.fit(data.train, local, seed=0, observers=[watch])
    first = stacked.take(watch.moments[0].states.models, 0)
    return found, np.asarray(stacked.to_matrix(first), float)


def drawn_by(algorithm, data):
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(SIZES))
    return [keys.participants(0, t, tokens, count) for t in range(ROUNDS)]


@pytest.mark.parametrize(
    ("weight", "participation"), [("examples", 2), pytest.param("clients", 1.0, marks=pytest.mark.slow)]
)
def test_global_is_federated_averaging(data, weight, participation):
    algorithm = ct.Global(rounds=ROUNDS, weight=weight, participation=participation)
    found, first = fitted(algorithm, data, learner())
    expected, _, losses = ifca(
        clients_of(data), first, 0.05, 3, drawn_by(algorithm, data), 1.0, weight == "examples"
    )
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-4)
    assert found.k == 1 and (found.assignment == 0).all()


@pytest.mark.parametrize("normalise", ["clients", pytest.param("cluster", marks=pytest.mark.slow)])
def test_gradients_may_be_averaged_instead(data, normalise):
    algorithm = ct.Global(rounds=ROUNDS, average="gradients", normalise=normalise, participation=2)
    found, first = fitted(algorithm, data, learner(steps=1))
    expected = ifca_gradients(clients_of(data), first, 0.05, drawn_by(algorithm, data), divide_by=normalise)
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_proximal_term_makes_it_fedprox(data):
    mu = 0.7
    found, (theta,) = fitted(ct.Global(rounds=2), data, learner(proximal=mu))
    for _ in range(2):
        replies = []
        for x, y in clients_of(data):
            w = theta.copy()
            for _ in range(3):
                w = w - 0.05 * (gradient(w, x, y) + mu * (w - theta))
            replies.append(w)
        theta = np.mean(replies, axis=0)
    np.testing.assert_allclose(stacked.to_matrix(found.models)[0], theta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", [ct.Global, lambda **given: ct.Oracle([0, 1, 0, 1, 1], **given)])
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"average": "gradients"}, "more than one step of the local update would be ignored"),
        ({"normalise": "clients", "weight": "examples"}, "use normalise='participants'"),
        ({"normalise": "all"}, "normalise must be 'cluster' or 'participants' or 'clients', not 'all'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data, algorithm, settings, sentence):
    with pytest.raises(ct.errors.SettingError, match=sentence):
        algorithm(rounds=1, **settings).fit(data.train, learner())
