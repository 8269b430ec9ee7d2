"""Distances between models of clients and clusters against Definition 5.1 of the SR-FCA paper, by loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references_srfca as reference

import coterie as ct
from coterie.clustering import distances
from coterie.clustering.distances import L2, Clusters, CrossLoss
from coterie.models import stacked

SIZES = [5, 7, 6, 8, 12, 10, 9]
DIM, K = 4, 3
LABELS = np.array([0, 1, 0, 2, 1, 1, 0])
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=1, batch_size=3))
DATA = ct.data.mixed_regression(k=2, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.5, seed=0)
CLIENTS = [(np.asarray(x, float), np.asarray(y, float)) for x, y in DATA.train]


@pytest.fixture(scope="module")
def federation():
    return ct.Simulation(DATA.train).with_learner(LEARNER)


class Overheard:
    """A federation of which some do not answer, and every ask is kept: which models were sent to whom.

    `silent(n)` are those that do not answer ask number n. What comes back in their name means nothing.
    """

    def __init__(self, federation, silent=lambda ask: []):
        self._federation, self._silent, self.asks = federation, silent, []

    def ask(self, task, broadcast, *, clients=None):
        answers = self._federation.ask(task, broadcast, clients=clients)
        quiet = np.isin(answers.clients, self._silent(len(self.asks)))
        self.asks.append((np.asarray(stacked.to_matrix(broadcast["models"])), np.asarray(answers.clients)))
        losses = jnp.where(quiet[:, None], 1e6, answers.report["losses"])
        return dataclasses.replace(answers, answered=answers.answered & ~quiet, report={"losses": losses})

    def __getattr__(self, name):
        return getattr(self._federation, name)


class Mute:
    """A federation that cannot be asked."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was wanted of the clients")


def models_of(seed, count):
    """Some models as a matrix, and as they are stacked."""
    matrix = np.random.default_rng(seed).standard_normal((count, DIM))
    return matrix, stacked.from_matrix(matrix, LEARNER.for_data(DATA.train.spec).shapes(DATA.train.spec))


EVERYBODY = np.ones(len(SIZES), bool)


# -- all of them ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["l2", "cross_loss"])
@pytest.mark.parametrize("seed", range(3))
def test_they_are_as_defined(name, seed, federation):
    distance = {"l2": L2(), "cross_loss": CrossLoss()}[name]
    (own, own_models), (centres, models) = models_of(seed, len(SIZES)), models_of(seed + 10, K)
    labels = LABELS if seed else np.array([-1, 1, 0, 2, -1, 1, 0])
    close = {"rtol": 1e-5, "atol": 1e-6}
    known = distance.measure(federation, own_models, EVERYBODY)
    between = distance.between_clients(known)
    np.testing.assert_allclose(between, reference.between_clients(CLIENTS, own, name), **close)
    np.testing.assert_allclose(between, between.T, rtol=1e-6)
    said = distance.look(federation, models)
    np.testing.assert_allclose(
        distance.to_clusters(known, Clusters(models, said, labels)),
        reference.to_clusters(CLIENTS, own, centres, labels.tolist(), name),
        **close,
    )
    apart = distance.between_clusters(Clusters(models, said, labels))
    np.testing.assert_allclose(
        apart, reference.between_clusters(CLIENTS, centres, labels.tolist(), name), **close
    )
    np.testing.assert_allclose(apart, apart.T, rtol=1e-6)


@pytest.mark.parametrize("distance", [L2(), CrossLoss()])
def test_what_is_not_known_yet_has_the_shape_of_what_will_be(distance, federation):
    known = distance.measure(federation, models_of(0, len(SIZES))[1], EVERYBODY)
    blank = distance.blank(len(SIZES), DIM)
    assert (blank.shape, blank.dtype) == (known.shape, known.dtype)
    assert np.isnan(blank).all()
    assert np.isnan(distance.between_clients(blank)).all()


@pytest.mark.parametrize("distance", [L2(), CrossLoss()])
def test_of_a_client_without_a_model_nothing_is_known(distance, federation):
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    there = EVERYBODY.copy()
    there[[1, 4]] = False
    whole = distance.measure(federation, own_models, EVERYBODY)
    junk = jax.tree.map(lambda a: a.at[np.array([1, 4])].set(np.nan), own_models)
    known = distance.measure(federation, junk, there)
    between, all_between = distance.between_clients(known), distance.between_clients(whole)
    np.testing.assert_allclose(between[np.ix_(there, there)], all_between[np.ix_(there, there)], rtol=1e-6)
    assert np.isnan(between[~there]).all() and np.isnan(between[:, ~there]).all()
    # of the others' distances to clusters, f_c(w_i) is what those tell of w_i that were there
    said, labels = distance.look(federation, models), np.where(there, LABELS, -1)
    far = distance.to_clusters(known, Clusters(models, said, LABELS))
    np.testing.assert_allclose(
        far[there], distance.to_clusters(whole, Clusters(models, said, labels))[there], rtol=1e-6
    )
    assert np.isnan(far[~there]).all()


# -- Euclidean --------------------------------------------------------------------------------------------


def test_the_server_finds_euclidean_distances_by_itself():
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    known = L2().measure(Mute(), own_models, EVERYBODY)
    assert L2().look(Mute(), models) is None
    assert L2().to_clusters(known, Clusters(models, None, LABELS)).shape == (len(SIZES), K)


def test_all_arrays_of_a_model_count():
    learner = ct.Learner(ct.models.MLP(hidden=(3,)), "squared").for_data(DATA.train.spec)
    one = jax.tree.map(lambda s: jnp.zeros(s.shape), learner.shapes(DATA.train.spec))
    count = sum(leaf.size for leaf in jax.tree.leaves(one))
    both = jax.tree.map(lambda a: jnp.stack([a, a + 2]), one)
    apart = L2().between_clients(L2().measure(Mute(), both, np.ones(2, bool)))
    np.testing.assert_allclose(apart, [[0, 2 * np.sqrt(count)], [2 * np.sqrt(count), 0]], rtol=1e-6)


def test_small_distances_of_large_models_are_exact():
    # |a|^2 + |b|^2 - 2 <a, b> would lose them
    points = 1e3 + np.array([[0.0, 0, 0], [0.001, 0, 0], [0, 0.002, 0]])
    exact = np.linalg.norm(points[:, None].astype(np.float32) - points[None].astype(np.float32), axis=2)
    models = {"w": jnp.asarray(points, jnp.float32)}
    np.testing.assert_allclose(L2().between_clusters(Clusters(models, None, LABELS)), exact, rtol=1e-5)


# -- cross loss -------------------------------------------------------------------------------------------


def test_cross_losses_are_mean_losses_whatever_the_number_of_examples():
    # the authors' code divides the sum of the batches' means by the number of examples
    x, y = [np.ones((n, DIM)) for n in (3, 50)], [np.full(n, 2.0) for n in (3, 50)]
    federation = ct.Simulation(ct.Shards.from_lists(x, y)).with_learner(LEARNER)
    models = models_of(0, 2)[1]
    models = jax.tree.map(lambda a: jnp.zeros_like(a).at[1].add(1 / DIM), models)  # predict 0, and 1
    known = CrossLoss().measure(federation, models, np.ones(2, bool))
    np.testing.assert_allclose(known, [[4, 1], [4, 1]], rtol=1e-6)
    np.testing.assert_allclose(CrossLoss().between_clients(known), [[4, 2.5], [2.5, 1]], rtol=1e-6)


def test_a_cluster_loss_is_the_mean_over_clients_and_not_over_examples():
    said = np.array([[1.0], [5.0], [9.0]])
    apart = CrossLoss().between_clusters(
        Clusters({"w": np.zeros((2, 1))}, np.tile(said, (1, 2)), np.array([0, 0, 1]))
    )
    # f_0 is 3 and f_1 is 9 under either model
    np.testing.assert_allclose(apart, [[3, 6], [6, 9]])


@pytest.mark.parametrize("at_once", [1, 2, 3, 6, 7, 100])
def test_blocks_of_models_of_any_size_tell_the_same(at_once, federation, monkeypatch):
    own, own_models = models_of(0, len(SIZES))
    whole = CrossLoss().measure(federation, own_models, EVERYBODY)
    monkeypatch.setattr(distances, "BLOCK_BYTES", at_once * DIM * 4 + 3)
    overheard = Overheard(federation)
    np.testing.assert_allclose(CrossLoss().measure(overheard, own_models, EVERYBODY), whole, rtol=1e-6)
    sent = [models for models, _ in overheard.asks]
    assert max(map(len, sent)) <= at_once
    np.testing.assert_allclose(np.concatenate(sent), own, rtol=1e-6)  # each of them once


def test_a_model_larger_than_a_block_is_sent_alone(federation, monkeypatch):
    monkeypatch.setattr(distances, "BLOCK_BYTES", 1)
    overheard = Overheard(federation)
    CrossLoss().measure(overheard, models_of(0, len(SIZES))[1], EVERYBODY)
    assert [len(models) for models, _ in overheard.asks] == [1] * len(SIZES)


def test_only_those_are_asked_whose_model_is_known(federation):
    there = np.array([True, False, True, True, False, True, True])
    overheard = Overheard(federation)
    own, own_models = models_of(0, len(SIZES))
    CrossLoss().measure(overheard, own_models, there)
    ((models, asked),) = overheard.asks
    assert asked.tolist() == [0, 2, 3, 5, 6]
    np.testing.assert_allclose(models, own[there], rtol=1e-6)
    nobody = CrossLoss().measure(overheard, own_models, ~EVERYBODY)
    assert np.isnan(nobody).all() and len(overheard.asks) == 1


@pytest.fixture(scope="module")
def told(federation):
    """Client 2 tells nothing of clients' models, and 5 and 6 nothing of clusters'."""
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    overheard = Overheard(federation, silent=lambda ask: [[2], [5, 6]][ask])
    known = CrossLoss().measure(overheard, own_models, EVERYBODY)
    return known, CrossLoss().look(overheard, models), models


def test_their_rows_are_not_known(told):
    known, said, _ = told
    assert np.isnan(known).all(axis=1).tolist() == [i == 2 for i in range(len(SIZES))]
    assert np.isnan(said).all(axis=1).tolist() == [i in (5, 6) for i in range(len(SIZES))]
    assert np.nanmax(known) < 1e5 and np.nanmax(said) < 1e5
    between = CrossLoss().between_clients(known)
    assert np.isnan(between).tolist() == [
        [i == 2 or j == 2 for j in range(len(SIZES))] for i in range(len(SIZES))
    ]


def test_a_cluster_loss_is_the_mean_over_those_that_told(told):
    known, said, models = told
    own, centres = models_of(0, len(SIZES))[0], models_of(1, K)[0]
    far = CrossLoss().to_clusters(known, Clusters(models, said, LABELS))
    apart = CrossLoss().between_clusters(Clusters(models, said, LABELS))
    for c in range(K):
        of_own = [i for i in reference.members_of(LABELS, c) if i != 2]
        for i in range(len(SIZES)):
            mine = reference.loss(centres[c], *CLIENTS[i])
            wanted = (mine + reference.cluster_loss(CLIENTS, of_own, own[i])) / 2
            assert far[i, c] == pytest.approx(np.nan if i in (5, 6) else wanted, rel=1e-5, nan_ok=True)
        for d in range(K):
            sides = [
                reference.cluster_loss(
                    CLIENTS, [i for i in reference.members_of(LABELS, a) if i not in (5, 6)], centres[b]
                )
                for a, b in ((c, d), (d, c))
            ]
            assert apart[c, d] == pytest.approx(np.mean(sides), rel=1e-5)


def test_a_cluster_of_which_nobody_told_is_at_no_known_distance(told):
    known, said, models = told
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    apart = CrossLoss().between_clusters(Clusters(models, said, labels))
    assert np.isnan(apart).tolist() == [[c == 2 or d == 2 for d in range(3)] for c in range(3)]
    far = CrossLoss().to_clusters(known, Clusters(models, said, np.where(labels == 2, -1, labels)))
    assert np.isnan(far[:5]).tolist() == [[False, False, True]] * 5


@pytest.mark.parametrize("junk", [np.inf, np.nan])
def test_a_client_whose_losses_are_no_numbers_spoils_no_others(junk, federation):
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    known = CrossLoss().measure(federation, own_models, EVERYBODY)
    said = CrossLoss().look(federation, models)
    without = np.where(np.arange(len(SIZES)) == 1, -1, LABELS)
    far = CrossLoss().to_clusters(known, Clusters(models, said, without))
    apart = CrossLoss().between_clusters(Clusters(models, said, without))
    known[1] = said[1] = junk
    others = np.arange(len(SIZES)) != 1
    np.testing.assert_allclose(
        CrossLoss().to_clusters(known, Clusters(models, said, LABELS))[others], far[others]
    )
    np.testing.assert_allclose(CrossLoss().between_clusters(Clusters(models, said, LABELS)), apart)
