"""SR-FCA finds known groups, and how many there are, by itself: on 19 of 20 draws of the data at least."""

import numpy as np
import pytest

import coterie as ct

SEEDS, ENOUGH = 20, 19
ROUNDS = 6
NETWORK = ct.Learner(ct.models.MLP(hidden=(32,)), local=ct.SGD(lr=0.3, steps=10))
LINEAR = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=10))


def right(draw, learner, distance="cross_loss"):
    """On how many draws of the data the true clusters are found, no more, no fewer, and nobody misplaced."""
    algorithm = ct.SRFCA(rounds=ROUNDS, refines=1, distance=distance)
    count = 0
    for seed in range(SEEDS):
        data = draw(seed)
        # equal shapes: whatever the seed, the programs are the same
        found = algorithm.fit(ct.Simulation(data.train, batch=8), learner, seed=seed)
        misplaced = ct.metrics.misclustering(found.assignment, data.truth)
        count += found.k == len(set(data.truth.tolist())) and misplaced == 0
    return count


@pytest.mark.parametrize("rotations", [(0, 90), (0, 90, 180, 270)])
def test_rotations_of_digits(rotations):
    def draw(seed):
        return ct.data.rotated_digits(clients=6 * len(rotations), rotations=rotations, unseen=0, seed=seed)

    assert right(draw, NETWORK) >= ENOUGH


def test_inverted_digits():
    assert right(lambda seed: ct.data.inverted_digits(clients=12, unseen=0, seed=seed), NETWORK) >= ENOUGH


def regressions(k, spread=0.3):
    """Clients of a cluster are not alike: each has a model of its own, so far from that of the cluster."""
    return lambda seed: ct.data.mixed_regression(
        k=k, clients=18, examples=30, dim=8, noise=0.2, scale=3.0, spread=spread, seed=seed
    )


@pytest.mark.parametrize("distance", ["l2", "cross_loss"])
def test_regressions_that_are_not_quite_alike(distance):
    assert right(regressions(3), LINEAR, distance) >= ENOUGH


@pytest.mark.parametrize("distance", ["l2", "cross_loss"])
def test_regressions_that_are_alike(distance):
    assert right(regressions(1, spread=0.0), LINEAR, distance) >= ENOUGH


def test_clients_of_whom_no_two_are_alike_are_served_better_than_by_one_model():
    """Where they are in no groups, no number of clusters is right; held-out examples see that they differ."""
    losses = []
    for seed in range(8):
        data = regressions(1)(seed)
        each = (ct.SRFCA(rounds=ROUNDS, refines=1, threshold=t) for t in ("auto", "100%"))
        found, one = (how.fit(data.train, LINEAR, seed=seed) for how in each)
        assert found.k <= 4 and one.k == 1
        losses.append([clustering.evaluate(data.test, "train").loss for clustering in (found, one)])
    ours, one = np.mean(losses, axis=0)
    assert ours < 0.97 * one
