"""Known groups are found in real handwriting."""

import pytest

import coterie as ct

LEARNER = ct.Learner(ct.models.MLP(hidden=(64,)), local=ct.SGD(lr=0.1, steps=10))


@pytest.mark.parametrize("seed", [0, 1])
def test_rotations_are_found_and_beat_one_model_for_all(seed):
    data = ct.data.rotated_digits(clients=32, seed=seed)
    found = ct.IFCA(k=4, rounds=40, n_init=10).fit(data.train, LEARNER, seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert ct.metrics.misclustering(found.assign(data.unseen), data.unseen_truth) == 0
    alone = ct.Local(rounds=40).fit(data.train, LEARNER, seed=seed).evaluate(data.test).accuracy
    together = ct.Global(rounds=40).fit(data.train, LEARNER, seed=seed).evaluate(data.test).accuracy
    ours = found.evaluate(data.test)
    assert ours.chosen_by == "train"
    assert ours.accuracy > max(alone, together) + 0.01
    assert ours.accuracy > 0.92


def test_inversion_is_found_with_a_tenth_of_the_images_each():
    data = ct.data.inverted_digits(clients=20, seed=0)
    found = ct.IFCA(k=2, rounds=30, n_init=5, participation=0.5).fit(data.train, LEARNER, seed=0)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


@pytest.mark.parametrize("seed", [7])
def test_collapsed_starts_are_not_kept(seed):
    # with these seeds one random start alone ends with two rotations under one model
    data = ct.data.rotated_digits(seed=seed)
    wrong = {
        name: ct.metrics.misclustering(
            ct.IFCA(k=4, rounds=40, **settings).fit(data.train, LEARNER, seed=seed, chunk=40).assignment,
            data.truth,
        )
        for name, settings in (
            ("one start", {"n_init": 1}),
            ("default", {}),
            ("farthest", {"n_init": 1, "init": ct.FarthestLoss()}),
        )
    }
    assert wrong["one start"] > 0.2
    assert wrong["default"] == wrong["farthest"] == 0
