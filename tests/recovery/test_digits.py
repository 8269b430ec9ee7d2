"""Known groups are found in real handwriting."""

import pytest

import coterie as ct

LEARNER = ct.Learner(ct.models.MLP(hidden=(64,)), local=ct.SGD(lr=0.1, steps=10))


def simulated(shards):
    """Without timing batches, each of which is compiled."""
    return ct.Simulation(shards, batch=8)


@pytest.fixture(scope="module")
def rotated():
    """Data of which one random start alone gets two rotations under one model, and what the default finds."""
    data = ct.data.rotated_digits(seed=7)
    return data, ct.IFCA(k=4, rounds=40).fit(simulated(data.train), LEARNER, seed=7)


def test_rotations_are_found_and_beat_one_model_for_all(rotated):
    data, found = rotated
    clients = simulated(data.train)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert ct.metrics.misclustering(found.assign(data.unseen), data.unseen_truth) == 0
    alone = ct.Local(rounds=40).fit(clients, LEARNER, seed=0).evaluate(data.test).accuracy
    together = ct.Global(rounds=40).fit(clients, LEARNER, seed=0).evaluate(data.test).accuracy
    ours = found.evaluate(data.test)
    assert ours.chosen_by == "train"
    assert ours.accuracy > max(alone, together) + 0.01
    assert ours.accuracy > 0.92


def test_inversion_is_found_with_a_tenth_of_the_images_each():
    data = ct.data.inverted_digits(clients=20, seed=0)
    algorithm = ct.IFCA(k=2, rounds=30, n_init=5, participation=0.5)
    found = algorithm.fit(simulated(data.train), LEARNER, seed=0)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


def test_collapsed_starts_are_not_kept(rotated):
    data, default = rotated
    clients = simulated(data.train)
    one_start, farthest = (
        ct.IFCA(k=4, rounds=40, n_init=1, **settings).fit(clients, LEARNER, seed=7)
        for settings in ({}, {"init": ct.FarthestLoss()})
    )
    assert ct.metrics.misclustering(one_start.assignment, data.truth) > 0.2
    for found in (default, farthest):
        assert ct.metrics.misclustering(found.assignment, data.truth) == 0
