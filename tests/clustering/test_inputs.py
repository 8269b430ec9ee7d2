"""Clients without labels, put into the group whose inputs theirs are most like."""

import warnings

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from support.in_process import InProcessGrid, apps_of

import coterie as ct
from coterie.clustering.inputs import LEAST, POOLED, Inputs
from coterie.errors import DataError, SettingError
from coterie.flower import FlowerFederation
from coterie.learn.inputs import WIDTH

LEARNER = ct.Learner(ct.models.Linear(bias=True), local=ct.SGD(lr=0.1, steps=5))
UPPER = np.triu_indices(WIDTH)


@pytest.fixture(scope="module")
def digits():
    return ct.data.rotated_digits(clients=16, rotations=(0, 90), unseen=16, seed=0, examples=30)


@pytest.fixture(scope="module")
def found(digits):
    return ct.Oracle(digits.truth, rounds=8).fit(digits.train, LEARNER, seed=0)


@pytest.fixture(scope="module")
def described(found, digits):
    return found.describe(digits.train)


def test_it_finds_the_groups_that_labels_find_and_never_looks_at_labels(digits, described):
    by_labels = described.assign(digits.unseen)
    np.testing.assert_array_equal(by_labels, digits.unseen_truth)
    xs, ys = zip(*digits.unseen, strict=True)
    blank = ct.Shards.from_lists(xs, [0 * y for y in ys], digits.unseen.ids.tolist())
    for clients in (digits.unseen, blank):
        np.testing.assert_array_equal(described.assign(clients, labels=False), by_labels)
    assert described.inputs.agreement == 1


def test_it_is_a_gaussian_of_each_group_s_features():
    """Against scipy's density, example by example."""
    rng = np.random.default_rng(0)

    def client(mean):
        vectors = mean + 0.1 * rng.standard_normal((8, WIDTH))
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def moments(vectors):
        return np.concatenate([vectors.mean(0), (vectors.T @ vectors / len(vectors))[UPPER]])

    centres = 0.3 * rng.standard_normal((3, WIDTH))
    clients = [client(centres[g]) for g in (0, 0, 0, 1, 1, 2, 2)]
    group = np.array([0, 0, 0, 1, 1, 3, 3])  # nobody is in group 2
    described = Inputs.of(np.stack(list(map(moments, clients))), group, 4, 0, 0.0)
    assert np.isnan(described.moments[2]).all()
    own = {g: np.concatenate([clients[i] for i in np.flatnonzero(group == g)]) for g in (0, 1, 3)}
    covariances = {g: np.cov(of.T, bias=True) for g, of in own.items()}
    pooled = np.mean(list(covariances.values()), axis=0)
    least = LEAST * np.trace(pooled) / WIDTH * np.eye(WIDTH)
    likely = {
        g: multivariate_normal(of.mean(0), (1 - POOLED) * covariances[g] + POOLED * pooled + least)
        for g, of in own.items()
    }
    strangers = [client(0.5 * (centres[a] + centres[b])) for a in range(3) for b in range(3)]
    wanted = [max(likely, key=lambda g: likely[g].logpdf(vectors).mean()) for vectors in strangers]
    assert len(set(wanted)) == 3
    assert described.nearest(np.stack(list(map(moments, strangers)))).tolist() == wanted


def test_noise_costs_agreement_and_some_of_it_little(found, digits):
    little = found.describe(digits.train, noise=0.001)
    with pytest.warns(UserWarning, match="cannot be told apart"):
        much = found.describe(digits.train, noise=10.0)
    assert (little.assign(digits.unseen, labels=False) == digits.unseen_truth).mean() > 0.9
    assert (much.assign(digits.unseen, labels=False) == digits.unseen_truth).mean() < 0.9
    assert np.abs(much.inputs.moments).max() > 1


@pytest.mark.slow
def test_groups_that_differ_in_their_labels_alone_are_no_groups_of_inputs():
    data = ct.data.mixed_regression(k=2, clients=20, examples=20, dim=5, seed=0)
    learner = ct.Learner(ct.models.Linear(), "squared")
    found = ct.Oracle(data.truth, rounds=2).fit(data.train, learner, seed=0)
    with pytest.warns(UserWarning, match=r"clients without labels cannot be told apart"):
        described = found.describe(data.train)
    assert described.inputs.agreement < 0.8
    one = ct.Global(rounds=1).fit(data.train, learner, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(one.describe(data.train).assign(data.train, labels=False)) == {0}


def test_it_is_kept_with_the_clustering(described, digits, tmp_path):
    described.save(tmp_path)
    again = ct.load(tmp_path)
    assert again.inputs.agreement == 1 and again.inputs.draw == described.inputs.draw
    np.testing.assert_array_equal(
        again.assign(digits.unseen, labels=False), described.assign(digits.unseen, labels=False)
    )


def test_some_clients_may_speak_for_all_and_strangers_for_nobody(found, digits):
    some = found.describe(digits.train[::2])
    assert (some.assign(digits.unseen, labels=False) == digits.unseen_truth).all()
    with pytest.raises(DataError, match="none of these clients belongs to a cluster"):
        found.describe(digits.unseen)


def test_who_does_not_answer_has_no_group(described, digits):
    clients = ct.Simulation(digits.unseen, drop=0.5)
    groups = described.assign(clients, labels=False)
    assert set(groups) == {-1, 0, 1} and (groups == digits.unseen_truth)[groups >= 0].all()


def test_what_cannot_be_asked_is_said_in_a_sentence(found, digits):
    with pytest.raises(SettingError, match=r"found = found\.describe\(data\.train\)"):
        found.assign(digits.unseen, labels=False)
    for noise in (-1.0, float("nan"), "much"):
        with pytest.raises(SettingError, match="noise must be a standard deviation from 0 up"):
            found.describe(digits.train, noise=noise)


def test_flower_and_simulation_agree_but_for_noise_that_no_server_knows(found, described, digits):
    grid = InProcessGrid(apps_of(LEARNER, digits))
    federation = FlowerFederation(grid, min_clients=len(digits.train), poll=0.001)
    real = found.describe(federation)
    np.testing.assert_allclose(real.inputs.moments, described.inputs.moments, atol=1e-6)
    noisy = [found.describe(federation, noise=0.01).inputs.moments for _ in range(2)]
    simulated = found.describe(digits.train, noise=0.01).inputs.moments
    again = found.describe(digits.train, noise=0.01).inputs.moments
    np.testing.assert_array_equal(simulated, again)
    for other in (noisy[1], simulated):
        assert (noisy[0] != other).mean() > 0.99
