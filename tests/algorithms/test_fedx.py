"""FedX against a NumPy reference of the paper's Phase 2, and what it is for."""

import numpy as np
import pytest
from support.references import fedx

import coterie as ct
from coterie import keys
from coterie.models import stacked

DIM, K = 5, 3
SIZES = [5, 9, 3, 20, 7, 12, 2, 8, 15, 1]
ETA, S, ROUNDS = 0.1, 3, 6


def population(seed=0):
    return ct.data.mixed_regression(
        k=K, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.3, scale=2.0, seed=seed
    )


def learner(eta=ETA, s=S):
    return ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(lr=eta, steps=s))


def start(seed=0):
    return np.random.default_rng(seed).standard_normal((K, DIM)).astype(np.float32)


def matrix(found):
    return np.asarray(stacked.to_matrix(found.models), float)


def clients_of(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("settings", "prox"),
    [
        ({}, False),  # as it is printed
        ({}, True),
        ({"normalise": "cluster", "participation": 6, "weight": "clients"}, False),
        pytest.param({"normalise": "cluster", "participation": 3}, True, marks=pytest.mark.slow),
    ],
)
def test_agrees_with_the_paper_line_by_line(seed, settings, prox):
    data, local = population(seed), ct.Proximal(lr=0.3) if prox else ct.SGD(lr=ETA, steps=S)
    algorithm = ct.FedX(k=K, rounds=ROUNDS, init=start(seed), **settings)
    found = algorithm.fit(data.train, ct.Learner(ct.models.Linear(), "half_squared", local), seed=seed)
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(SIZES))
    drawn = [keys.participants(seed, t, tokens, count) for t in range(ROUNDS)]
    thetas = fedx(
        clients_of(data),
        start(seed).astype(float),
        0.3 if prox else ETA,
        S,
        drawn,
        by_examples="weight" not in settings,
        per_cluster="normalise" in settings,
        prox=prox,
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_clusters_from_a_start_near_them(seed):
    data = ct.data.mixed_regression(k=3, clients=60, examples=15, dim=10, noise=0.2, scale=2.0, seed=seed)
    near = data.models + 0.2 * np.random.default_rng(seed).standard_normal(data.models.shape)
    found = ct.FedX(k=3, rounds=60, init=near.astype(np.float32)).fit(data.train, learner(eta=0.2, s=5))
    assert ct.metrics.parameter_distance(found.models, data.models) < 0.1
    assert ct.metrics.misclustering(found.assignment, data.truth) < 0.05
    one = ct.Global(rounds=60).fit(data.train, learner(eta=0.2, s=5))
    assert one.evaluate(data.train).loss > 5 * found.evaluate(data.train).loss


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("normalise", "weight", "prox"),
    [("participants", "examples", False), pytest.param("cluster", "clients", True, marks=pytest.mark.slow)],
)
def test_soft_labels_agree_with_the_paper(seed, normalise, weight, prox):
    data = population(seed)
    local = ct.Proximal(lr=0.3) if prox else ct.SGD(lr=0.3, steps=S)
    found = ct.FedX(
        k=K, rounds=ROUNDS, init=start(seed), normalise=normalise, weight=weight, temperature=0.7
    ).fit(data.train, ct.Learner(ct.models.Linear(), "half_squared", local), seed=seed)
    thetas = fedx(
        clients_of(data),
        start(seed).astype(float),
        0.3,
        S,
        [range(len(SIZES))] * ROUNDS,
        by_examples=weight == "examples",
        per_cluster=normalise == "cluster",
        prox=prox,
        temperature=0.7,
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


def test_soft_labels_become_hard_ones_as_it_gets_cold():
    data = population()
    hard = ct.FedX(k=K, rounds=ROUNDS, init=start()).fit(data.train, learner())
    cold = ct.FedX(k=K, rounds=ROUNDS, init=start(), temperature=1e-6).fit(data.train, learner())
    np.testing.assert_allclose(matrix(cold), matrix(hard), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(cold.assignment, hard.assignment)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"k": None}, r"k must be given, unless init=Components\(\) finds it"),
        ({"init": ct.Components()}, r"Components\(\) finds the number of clusters: leave k out"),
        ({"normalise": "all"}, "normalise must be 'cluster' or 'participants'"),
        ({"normalise": "clients"}, "normalise must be 'cluster' or 'participants', not 'clients'"),
        ({"temperature": -1.0}, "temperature must be 0 or a positive number"),
        ({"temperature": float("inf")}, "temperature must be 0 or a positive number"),
        ({"temperature": float("nan")}, "temperature must be a number, not nan"),
        ({"temperature": 1.0, "aggregate": ct.Median()}, "only a mean can weigh: leave aggregate out"),
        ({"temperature": 1.0, "aggregate": ct.FedAvgM()}, "only a mean can weigh: leave aggregate out"),
    ],
)
def test_impossible_settings_are_refused(settings, sentence):
    with pytest.raises(ct.errors.SettingError, match=sentence):
        ct.FedX(**{"k": 2, "rounds": 1, **settings}).fit(population().train, learner())
