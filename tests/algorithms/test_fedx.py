"""FedX against a NumPy reference of the paper's Phase 2, and what it is for."""

import numpy as np
import pytest
from references import fedprox_step, fedx, fedx_soft, loss

import coterie as ct
from coterie import keys
from coterie.models import stacked

DIM, K = 5, 3
SIZES = [5, 9, 3, 20, 7, 12, 2, 8, 15, 1]
ETA, S = 0.1, 3


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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("normalise", [None, "all", "cluster"])
@pytest.mark.parametrize(("participation", "weight"), [(1.0, "examples"), (6, "clients")])
def test_agrees_with_the_paper_line_by_line(seed, normalise, participation, weight):
    data = population(seed)
    algorithm = ct.FedX(
        k=K, rounds=8, init=start(seed), participation=participation, weight=weight, normalise=normalise
    )
    found = algorithm.fit(data.train, learner(), seed=seed)
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(SIZES))
    drawn = [keys.participants(seed, t, tokens, count) for t in range(8)]
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    thetas = fedx(
        clients, start(seed).astype(float), ETA, S, drawn, weight == "examples", normalise == "cluster"
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


def test_weights_are_by_examples_unless_told_otherwise():
    assert ct.FedX(k=2).weight == "examples" and ct.FedX(k=2).normalise is None
    data = population()
    printed = ct.FedX(k=K, rounds=3, init=start()).fit(data.train, learner())
    explicit = ct.FedX(k=K, rounds=3, init=start(), weight="examples", normalise="all").fit(
        data.train, learner()
    )
    np.testing.assert_array_equal(matrix(printed), matrix(explicit))


def test_a_small_cluster_moves_by_its_share_as_printed_and_fully_when_normalised():
    data = population()
    far = start()
    printed, whole = (
        matrix(ct.FedX(k=K, rounds=1, init=far, normalise=normalise).fit(data.train, learner()))
        for normalise in ("all", "cluster")
    )
    sizes = np.array(SIZES)
    found = ct.FedX(k=K, rounds=1, init=far).fit(data.train, learner())
    chosen = found.history.assignments()[0]
    share = np.array([sizes[chosen == j].sum() for j in range(K)]) / sizes.sum()
    np.testing.assert_allclose(printed - far, share[:, None] * (whole - far), rtol=1e-3, atol=1e-5)


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
@pytest.mark.parametrize("normalise", ["all", "cluster"])
def test_fedprox_agrees_with_the_paper(seed, normalise):
    data = population(seed)
    found = ct.FedX(k=K, rounds=6, init=start(seed), normalise=normalise).fit(
        data.train, ct.Learner(ct.models.Linear(), "half_squared", ct.Proximal(lr=0.3)), seed=seed
    )
    thetas = start(seed).astype(float)
    sizes = np.array(SIZES, float)
    for _ in range(6):
        each, labels = [], []
        for x, y in data.train:
            x, y = np.asarray(x, float), np.asarray(y, float)
            z = int(np.argmin([loss(theta, x, y) for theta in thetas]))
            local = thetas.copy()
            local[z] = fedprox_step(local[z], x, y, 0.3)  # line 8
            each.append(local)
            labels.append(z)
        labels = np.array(labels)
        by = [sizes[labels == j].sum() or 1 if normalise == "cluster" else sizes.sum() for j in range(K)]
        thetas = thetas + np.einsum("c,ckd->kd", sizes, np.array(each) - thetas) / np.array(by)[:, None]
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("normalise", "weight"), [("all", "examples"), ("cluster", "clients")])
@pytest.mark.parametrize("prox", [False, True])
def test_soft_labels_agree_with_the_paper(seed, normalise, weight, prox):
    data = population(seed)
    local = ct.Proximal(lr=0.3) if prox else ct.SGD(lr=0.3, steps=S)
    found = ct.FedX(k=K, rounds=5, init=start(seed), normalise=normalise, weight=weight, temperature=0.7).fit(
        data.train, ct.Learner(ct.models.Linear(), "half_squared", local), seed=seed
    )
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    thetas = fedx_soft(
        clients,
        start(seed).astype(float),
        0.3,
        S,
        5,
        0.7,
        weight == "examples",
        normalise == "cluster",
        prox,
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


def test_soft_labels_become_hard_ones_as_it_gets_cold():
    data = population()
    hard = ct.FedX(k=K, rounds=4, init=start()).fit(data.train, learner())
    cold = ct.FedX(k=K, rounds=4, init=start(), temperature=1e-6).fit(data.train, learner())
    np.testing.assert_allclose(matrix(cold), matrix(hard), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(cold.assignment, hard.assignment)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or a positive number"),
        ({"temperature": 1.0, "settle": 2}, "leave settle out"),
        ({"temperature": 1.0, "average": "gradients"}, "leave average='gradients' out"),
        ({"temperature": 1.0, "share": "all but last"}, "leave share out"),
    ],
)
def test_what_soft_labels_do_not_go_with_is_refused(settings, sentence):
    with pytest.raises(ct.errors.SettingError, match=sentence):
        ct.FedX(k=2, rounds=1, **settings).fit(population().train, learner())
