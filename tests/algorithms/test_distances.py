"""Distances between models of clients and clusters against Definition 5.1 of the SR-FCA paper, by loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import references_srfca as reference
from support.exchanges import Overheard, alone

import coterie as ct
from coterie.algorithms import distances
from coterie.algorithms.distances import L2, Clusters, CrossLoss
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


NOBODY = None  # who would fail to be asked


def measured(federation, distance, *known):
    return alone(federation, distance.measure(*known))


def looked(federation, distance, *models):
    return alone(federation, distance.look(*models))


def heard(federation, silent=lambda ask: []):
    """The same federation, of which every ask is kept, and `silent(n)` do not answer ask number n."""
    return Overheard(federation, lambda number, name: silent(number), junk=1e6)


def sent(overheard):
    """The models of every ask, and who was sent them."""
    models = [stacked.take(ask.task.models, 0) for ask in overheard.asks]  # of the only start
    return [
        (np.asarray(stacked.to_matrix(m)), ask.clients) for m, ask in zip(models, overheard.asks, strict=True)
    ]


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
    known = measured(federation, distance, own_models, EVERYBODY)
    between = distance.between_clients(known)
    np.testing.assert_allclose(between, reference.between_clients(CLIENTS, own, name), **close)
    np.testing.assert_allclose(between, between.T, rtol=1e-6)
    said = looked(federation, distance, models)
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


def test_clients_may_look_at_a_part_of_their_examples(federation):
    (own, own_models), (centres, models) = models_of(0, len(SIZES)), models_of(1, K)
    number, of = 1, 3
    parts = [(x[number : len(y) // of * of : of], y[number : len(y) // of * of : of]) for x, y in CLIENTS]
    part = np.array([number, of], np.int32)
    known = measured(federation, CrossLoss(), own_models, EVERYBODY, part)
    wanted = reference.between_clients(parts, own, "cross_loss")
    np.testing.assert_allclose(CrossLoss().between_clients(known), wanted, rtol=1e-5)
    said = looked(federation, CrossLoss(), models, part)
    wanted = [[reference.loss(centre, *part) for centre in centres] for part in parts]
    np.testing.assert_allclose(said, wanted, rtol=1e-5)


@pytest.mark.parametrize("distance", [L2(), CrossLoss()])
def test_what_is_not_known_yet_has_the_shape_of_what_will_be(distance, federation):
    known = measured(federation, distance, models_of(0, len(SIZES))[1], EVERYBODY)
    blank = distance.blank(len(SIZES), DIM)
    assert (blank.shape, blank.dtype) == (known.shape, known.dtype)
    assert np.isnan(blank).all()
    assert np.isnan(distance.between_clients(blank)).all()


@pytest.mark.parametrize("distance", [L2(), CrossLoss()])
def test_of_a_client_without_a_model_nothing_is_known(distance, federation):
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    there = EVERYBODY.copy()
    there[[1, 4]] = False
    whole = measured(federation, distance, own_models, EVERYBODY)
    junk = jax.tree.map(lambda a: np.where(stacked.expand(there, a), a, np.nan), own_models)
    known = measured(federation, distance, junk, there)
    between, all_between = distance.between_clients(known), distance.between_clients(whole)
    np.testing.assert_allclose(between[np.ix_(there, there)], all_between[np.ix_(there, there)], rtol=1e-6)
    assert np.isnan(between[~there]).all() and np.isnan(between[:, ~there]).all()
    # of the others' distances to clusters, f_c(w_i) is what those tell of w_i that were there
    said, labels = looked(federation, distance, models), np.where(there, LABELS, -1)
    far = distance.to_clusters(known, Clusters(models, said, LABELS))
    np.testing.assert_allclose(
        far[there], distance.to_clusters(whole, Clusters(models, said, labels))[there], rtol=1e-6
    )
    assert np.isnan(far[~there]).all()


# -- Euclidean --------------------------------------------------------------------------------------------


def test_the_server_finds_euclidean_distances_by_itself():
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    known = measured(NOBODY, L2(), own_models, EVERYBODY)
    assert looked(NOBODY, L2(), models) is None
    assert L2().to_clusters(known, Clusters(models, None, LABELS)).shape == (len(SIZES), K)


def test_all_arrays_of_a_model_count():
    learner = ct.Learner(ct.models.MLP(hidden=(3,)), "squared").for_data(DATA.train.spec)
    one = jax.tree.map(lambda s: jnp.zeros(s.shape), learner.shapes(DATA.train.spec))
    count = sum(leaf.size for leaf in jax.tree.leaves(one))
    both = jax.tree.map(lambda a: jnp.stack([a, a + 2]), one)
    apart = L2().between_clients(measured(NOBODY, L2(), both, np.ones(2, bool)))
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
    known = measured(federation, CrossLoss(), models, np.ones(2, bool))
    np.testing.assert_allclose(known, [[4, 1], [4, 1]], rtol=1e-6)
    np.testing.assert_allclose(CrossLoss().between_clients(known), [[4, 2.5], [2.5, 1]], rtol=1e-6)


def test_a_cluster_loss_is_the_mean_over_clients_and_not_over_examples():
    said = np.array([[1.0], [5.0], [9.0]])
    apart = CrossLoss().between_clusters(
        Clusters({"w": np.zeros((2, 1))}, np.tile(said, (1, 2)), np.array([0, 0, 1]))
    )
    # f_0 is 3 and f_1 is 9 under either model
    np.testing.assert_allclose(apart, [[3, 6], [6, 9]])


@pytest.mark.parametrize(
    ("most_bytes", "blocks"), [(1, [1] * 7), (3 * DIM * 4 + 3, [3, 2, 2]), (100 * DIM * 4, [7])]
)
def test_blocks_of_models_of_any_size_tell_the_same(most_bytes, blocks, federation, monkeypatch):
    """A model that is larger than a block is sent alone."""
    own, own_models = models_of(0, len(SIZES))
    whole = measured(federation, CrossLoss(), own_models, EVERYBODY)
    monkeypatch.setattr(distances, "BLOCK_BYTES", most_bytes)
    overheard = heard(federation)
    np.testing.assert_allclose(measured(overheard, CrossLoss(), own_models, EVERYBODY), whole, rtol=1e-6)
    sent_models = [models for models, _ in sent(overheard)]
    assert list(map(len, sent_models)) == blocks
    np.testing.assert_allclose(np.concatenate(sent_models), own, rtol=1e-6)  # each of them once


def test_only_those_are_asked_whose_model_is_known(federation):
    there = np.array([True, False, True, True, False, True, True])
    overheard = heard(federation)
    own, own_models = models_of(0, len(SIZES))
    measured(overheard, CrossLoss(), own_models, there)
    ((models, asked),) = sent(overheard)
    assert asked.tolist() == [0, 2, 3, 5, 6]
    np.testing.assert_allclose(models, own[there], rtol=1e-6)
    nobody = measured(overheard, CrossLoss(), own_models, ~EVERYBODY)
    assert np.isnan(nobody).all() and len(overheard.asks) == 1


@pytest.fixture(scope="module")
def told(federation):
    """Client 2 tells nothing of clients' models, and 5 and 6 nothing of clusters'."""
    own_models, models = models_of(0, len(SIZES))[1], models_of(1, K)[1]
    overheard = heard(federation, silent=lambda ask: [[2], [5, 6]][ask])
    known = measured(overheard, CrossLoss(), own_models, EVERYBODY)
    return known, looked(overheard, CrossLoss(), models), models


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
    known = measured(federation, CrossLoss(), own_models, EVERYBODY)
    said = looked(federation, CrossLoss(), models)
    without = np.where(np.arange(len(SIZES)) == 1, -1, LABELS)
    far = CrossLoss().to_clusters(known, Clusters(models, said, without))
    apart = CrossLoss().between_clusters(Clusters(models, said, without))
    known[1] = said[1] = junk
    others = np.arange(len(SIZES)) != 1
    np.testing.assert_allclose(
        CrossLoss().to_clusters(known, Clusters(models, said, LABELS))[others], far[others]
    )
    np.testing.assert_allclose(CrossLoss().between_clusters(Clusters(models, said, LABELS)), apart)
