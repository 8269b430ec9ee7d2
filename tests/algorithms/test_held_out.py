"""MERGE on held-out examples: against a slow version of it, and what it does for SR-FCA."""

import jax
import numpy as np
import pytest
from support.references_held_out import merged

import coterie as ct
from coterie.algorithms import graph, srfca
from coterie.algorithms.held_out import Merged, merged_held_out
from coterie.algorithms.lockstep import carried_out
from coterie.federation.exchange import Server

GAMMA, TAU, ROUNDS = 0.05, 3, 6
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=GAMMA, steps=TAU))
SIZES = [8, 16, 12, 10, 13, 9, 11, 14, 16, 12, 10, 15]


def population(seed, k, noise, dim=4, sizes=SIZES):
    return ct.data.mixed_regression(
        k=k, clients=len(sizes), examples=list(sizes), dim=dim, noise=noise, scale=2.0, seed=seed
    )


def carried(train, group, by_examples=False, drop=0.0):
    """What becomes of clusters whose models begin at w_0 = 0.1, 0.2, ..."""
    simulation = ct.Simulation(train, devices=jax.local_devices()[:1], drop=drop).with_learner(LEARNER)
    server = Server.of(simulation, LEARNER.for_data(simulation.spec), 0)
    like = server.learner.shapes(simulation.spec)
    w0 = jax.tree.map(
        lambda leaf: 0.1 * (1 + np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape), like
    )
    exchange = merged_held_out(server, w0, np.asarray(group, np.int32), ROUNDS, by_examples)
    return carried_out(simulation, exchange, jax.random.key(0))


# clients in pairs, or dealt out at random: between them they move, merge, and lose by it
@pytest.mark.parametrize(
    ("seed", "k", "noise", "group"),
    [
        pytest.param(1, 3, 0.5, np.arange(12) % 5, marks=pytest.mark.slow),
        pytest.param(3, 3, 1.5, np.arange(12) // 2, marks=pytest.mark.slow),
        pytest.param(4, 4, 0.1, np.arange(12), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("by_examples", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_is_what_a_slow_version_of_it_says(seed, k, noise, group, by_examples):
    train = population(seed, k, noise).train
    found = carried(train, group, by_examples)
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in train]
    clusters = [np.flatnonzero(group == g).tolist() for g in range(group.max() + 1)]
    w0 = 0.1 * np.arange(1, 5)
    wanted, tried, undone = merged(clients, clusters, w0, GAMMA, TAU, ROUNDS, by_examples)
    assert {tuple(np.flatnonzero(found.group == g)) for g in set(found.group)} == set(map(tuple, wanted))
    assert (found.tried, found.undone) == (tried, undone)


@pytest.mark.slow
def test_who_is_in_no_cluster_stays_in_none_and_nothing_is_lost_without_answers():
    group = np.arange(12) // 2
    group[5] = -1
    found = carried(population(0, 2, 0.3).train, group)
    assert found.group[5] == -1 and (np.delete(found.group, 5) >= 0).all()
    assert found.worse.shape == (12, found.group.max() + 1) and not found.worse[5].any()
    unheard = carried(population(0, 2, 0.3).train, group, drop=0.3)
    assert sorted(set(unheard.group) - {-1}) == list(range(unheard.group.max() + 1))


def test_one_cluster_is_left_as_it_is():
    found = carried(population(0, 1, 0.3).train, np.zeros(12))
    assert set(found.group) == {0} and found.tried == 0


@pytest.mark.parametrize("nodes", [np.ones(6, bool), np.array([True, True, True, True, True, False])])
def test_everybody_is_with_the_nearest(nodes):
    for seed in range(30):
        points = np.random.default_rng(seed).standard_normal((6, 2))
        distances = np.linalg.norm(points[:, None] - points[None], axis=2)
        labels = graph.with_nearest(distances, nodes)
        own = np.flatnonzero(nodes)
        linked = {i: min((j for j in own if j != i), key=lambda j: distances[i, j]) for i in own}
        for i, j in linked.items():
            assert labels[i] == labels[j] >= 0
        assert (labels[~nodes] == -1).all()
        # and nobody else: as many edges as nodes, but for those that are each other's nearest
        mutual = sum(linked[j] == i for i, j in linked.items()) // 2
        assert labels.max() + 1 == mutual


# -- what it does for SR-FCA ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_srfca_sees_groups_in_which_nobody_has_examples_enough_to_train_alone(k):
    data = ct.data.mixed_regression(k=k, clients=30, examples=10, dim=20, noise=0.1, seed=3)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
    found = ct.SRFCA(rounds=15).fit(data.train, learner, seed=0)
    assert found.k == k and ct.metrics.misclustering(found.assignment, data.truth) == 0
    shot, first, *_ = found.history.events
    assert "each is with its nearest" in shot.text and shot.details["with_nearest"]
    assert f"on held-out examples {len(shot.sizes[0])} clusters became {k}" in first.text
    assert first.details["tried"] >= 1


@pytest.mark.slow
def test_of_networks_few_images_are_enough():
    learner = ct.Learner(ct.models.MLP(hidden=(32,)), local=ct.SGD(lr=0.1, steps=10))
    data = ct.data.rotated_digits(clients=24, rotations=(0, 90, 180, 270), examples=20, seed=4)
    found = ct.SRFCA(rounds=15).fit(data.train, learner, seed=0)
    assert found.k == 4 and ct.metrics.misclustering(found.assignment, data.truth) == 0


@pytest.mark.slow
def test_small_clusters_join_in_the_end_and_other_examples_leave_no_halves():
    data = population(0, 2, 0.3)
    found = ct.SRFCA(rounds=6, min_size=4).fit(data.train, LEARNER, seed=0)
    assert (found.assignment >= 0).all() and min(found.sizes) >= 4
    for event in found.history.events:
        for client, cluster in event.details.get("nearest", {}).items():
            assert 0 <= int(client) < 12 and 0 <= cluster < len(event.sizes[0])
    apart = ct.SRFCA(rounds=6, refines=1, resample=True).fit(data.train, LEARNER, seed=0)
    assert not any("held-out" in event.text for event in apart.history.events)


@pytest.mark.slow
def test_who_is_left_in_a_small_cluster_joins_the_one_that_fits_best(monkeypatch):
    group = np.array([1] * 5 + [0] * 2 + [2] * 5, np.int32)
    worse = np.zeros((12, 3))
    worse[5:7, 1:] = [[3.0, 1.0], [1.0, 2.0]]

    def found_so(*_):
        return Merged(group, worse, 3, 1)
        yield

    monkeypatch.setattr(srfca, "merged_held_out", found_so)
    found = ct.SRFCA(rounds=2, min_size=3).fit(population(0, 2, 3.0).train, LEARNER, seed=0)
    assert found.assignment.tolist() == [0] * 5 + [1, 0] + [1] * 5
    first, last = (event for event in found.history.events if event.name == "refine")
    assert first.details["nearest"] == {"5": 1, "6": 0} and first.sizes[0] == [5, 5]
    assert "1 merge undone since a side lost by it" in last.text
