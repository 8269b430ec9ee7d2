"""Clients train alone and their models are clustered once."""

import json

import jax
import numpy as np
import pytest
from support.exchanges import alone, carried_out, server_of
from support.references import ifca, local_update

import coterie as ct
from coterie.errors import LearnerError, SettingError
from coterie.initialise.one_shot import OneShot, k_means
from coterie.initialise.random import fresh_model
from coterie.models import stacked

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=5))


ALONE = 10  # rounds: each number is compiled, as is every number of clients
FEW = np.array([0, 1, 9, 10, 17])


def population(seed=0, k=3):
    return ct.data.mixed_regression(k=k, clients=24, examples=25, dim=6, noise=0.1, scale=3.0, seed=seed)


def models_alone(shards, seed, rounds):
    """w_{i,T}: all start from the same fresh model."""
    server = server_of(ct.Simulation(shards), LEARNER, seed)
    one = jax.tree.map(lambda a: a[None], fresh_model(server, server.start_key(0)))
    first = np.asarray(stacked.to_matrix(one), float)[0]
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in shards]
    return np.array([local_update(first, x, y, 0.05, 5 * rounds) for x, y in clients])


@pytest.mark.slow
def test_the_models_are_the_means_of_the_groups():
    seed, data = 0, population()
    found = ct.IFCA(k=3, rounds=1, n_init=2, init=ct.OneShot(rounds=10)).fit(data.train, LEARNER, seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    # 10 rounds of 5 steps at this rate lead so near to a client's own minimum that the start hardly counts
    alone = np.array([local_update(np.zeros(6), x, y, 0.05, 50) for x, y in clients])
    means = np.array([alone[found.assignment == j].mean(axis=0) for j in range(3)])
    first = ct.IFCA(k=3, rounds=1, init=means.astype(np.float32)).fit(data.train, LEARNER)
    assert ct.metrics.parameter_distance(found.models, first.models) < 0.1


@pytest.mark.slow
def test_one_shot_k_means_trains_each_group_by_its_members_alone():
    data = population(1)
    found = ct.OneShotKMeans(k=3, rounds=4, alone=10).fit(data.train, LEARNER, seed=1)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert all(round_.changed == 0 for round_ in found.history)
    # every client is sent one model of three, and what tells which
    assert {round_.bytes_down for round_ in found.history} == {24 * (6 * 4 + 4 + 4)}
    fewer = ct.OneShotKMeans(k=3, rounds=3, alone=10).fit(data.train, LEARNER, seed=1)
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    before = np.asarray(stacked.to_matrix(fewer.models), float)
    for j in range(3):
        members = np.flatnonzero(found.assignment == j)
        after, _, _ = ifca([clients[i] for i in members], before[[j]], 0.05, 5, [range(len(members))])
        np.testing.assert_allclose(stacked.to_matrix(found.models)[j], after[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_without_rounds_it_is_local_k_means(seed):
    """A baseline of the SR-FCA paper: "local models clustered by KMeans on model weights".

    It "performs only a single round of communication, at the end of training".
    """
    data = population(seed)
    found = ct.OneShotKMeans(k=3, rounds=0, alone=ALONE).fit(data.train, LEARNER, seed=seed)
    own = models_alone(data.train, seed, ALONE)
    labels = k_means(own, 3, 0)
    assert ct.metrics.misclustering(found.assignment, labels) == 0
    means = np.array([own[found.assignment == j].mean(axis=0) for j in range(3)])
    np.testing.assert_allclose(stacked.to_matrix(found.models), means, rtol=1e-4, atol=1e-5)
    # models travel once, from the clients; in the end they are told those of the groups, and tell losses
    assert len(found.history) == 0
    one_shot, finish = found.history.events
    assert (one_shot.name, one_shot.asks, one_shot.updates) == ("one-shot", 1, 24 * ALONE)
    assert one_shot.details == {"silhouettes": {}}  # no other number of groups was tried
    assert one_shot.bytes_up == 24 * (6 * 4 + ALONE * 4)  # the model, and the loss before each local update
    assert (finish.name, finish.asks, finish.bytes_up, finish.updates) == ("finish", 1, 24 * 3 * 4, 0)


@pytest.mark.slow
def test_its_groups_are_never_corrected():
    # with little data of their own clients are grouped wrongly at first; IFCA mends it, one shot does not
    data = ct.data.mixed_regression(k=3, clients=60, examples=6, dim=20, noise=0.1, scale=3.0, seed=0)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=5))
    fixed = ct.OneShotKMeans(k=3, rounds=30, alone=10).fit(data.train, learner, seed=0)
    mended = ct.IFCA(k=3, rounds=30, init=ct.OneShot(rounds=10), n_init=5).fit(data.train, learner, seed=0)
    wrong = ct.metrics.misclustering(fixed.assignment, data.truth)
    assert wrong > 0
    assert ct.metrics.misclustering(mended.assignment, data.truth) < wrong


@pytest.mark.slow
def test_one_shot_k_means_with_faults():
    data = population()
    found = ct.OneShotKMeans(k=3, rounds=5, alone=10, participation=0.5).fit(
        ct.Simulation(data.train, drop=0.2), LEARNER, seed=0
    )
    assert set(found.assignment) == {0, 1, 2}
    assert (found.assignment >= 0).all()


# -- how many groups --------------------------------------------------------------------------------------


def silhouette(points, labels):
    """The mean over all points of (b - a) / max(a, b): Rousseeuw 1987.

    a is the mean distance to the others of its group, b that to the nearest other group; 0 for one alone.
    """
    values = []
    for i in range(len(points)):
        to = {}
        for c in set(labels):
            others = [j for j in range(len(points)) if labels[j] == c and j != i]
            if others:
                to[c] = sum(np.linalg.norm(points[i] - points[j]) for j in others) / len(others)
        a, b = to.pop(labels[i], None), min(to.values())
        values.append(0 if a is None else (b - a) / max(a, b))
    return sum(values) / len(values)


def test_without_k_it_is_the_number_with_the_highest_silhouette():
    data = population(1)
    found = ct.OneShotKMeans(rounds=2, alone=ALONE, most=6).fit(data.train, LEARNER, seed=1)
    own = models_alone(data.train, 1, ALONE)
    event, _ = found.history.events
    told = event.details["silhouettes"]
    assert list(told) == ["2", "3", "4", "5", "6"]
    for number in (2, 3):  # with more groups than there are, k-means may end here or there
        wanted = silhouette(own, k_means(own, number, 0).tolist())
        assert told[str(number)] == pytest.approx(wanted, rel=1e-3)
    assert found.k == int(max(told, key=told.get)) == 3
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    # and what was tried is told in plain values
    assert json.loads(json.dumps(event.details, allow_nan=False)) == event.details
    assert (event.name, event.after, event.asks) == ("one-shot", 0, 1)
    assert "3 clusters" in event.text and f"{event.details['silhouettes']['3']:.2f}" in event.text


def test_another_number_of_groups_is_found_too():
    data, k = population(5, 4), 4
    found = ct.OneShotKMeans(rounds=0, alone=ALONE).fit(data.train, LEARNER, seed=0)
    assert found.k == k and ct.metrics.misclustering(found.assignment, data.truth) == 0


@pytest.mark.slow
def test_no_more_groups_are_tried_than_there_can_be():
    found = ct.OneShotKMeans(rounds=0, alone=ALONE).fit(population(1).train[FEW], LEARNER, seed=1)
    assert list(found.history.events[0].details["silhouettes"]) == ["2", "3", "4"]


def test_clients_that_are_all_alike_have_no_silhouette():
    x, y = next(iter(population().train))
    same = ct.Shards.from_lists([x] * len(FEW), [y] * len(FEW))
    for k, sentence in (
        (None, "the clients' models do not differ, or are too few"),
        (3, "fewer than 3 clients' models differ"),
    ):
        with pytest.raises(SettingError, match=sentence):
            ct.OneShotKMeans(k, rounds=0, alone=ALONE).fit(same, LEARNER)


@pytest.mark.parametrize(
    ("settings", "clients", "words"),
    [
        ({"most": 1}, 24, "most must be at least 2 clusters, not 1"),
        ({}, 2, "a silhouette needs at least 3 clients, and there are 2: give k"),
        ({"rounds": -1}, 24, "rounds must be at least 0, not -1"),
        ({"alone": 0}, 24, "rounds must be at least 1, not 0"),
        ({"k": 30}, 24, "k=30 clusters need at least as many clients"),
    ],
)
def test_impossible_settings_are_refused(settings, clients, words):
    with pytest.raises(SettingError, match=words):
        ct.OneShotKMeans(**{"rounds": 1, **settings}).fit(population().train[np.arange(clients)], LEARNER)


@pytest.mark.slow
def test_starts_side_by_side_find_groups_of_their_own():
    data = population(1)
    federation = ct.Simulation(data.train).with_learner(LEARNER)
    server = server_of(federation, LEARNER, seed=1)
    each = [OneShot(2).grouped(server, server.start_key(r), range(2, 5)) for r in range(2)]
    found = carried_out(federation, *each)
    for r, groups in enumerate(found):
        assert groups.k == 3 and groups.labels.shape == (24,) and groups.silhouettes.keys() == {2, 3, 4}
        assert ct.metrics.misclustering(groups.labels, data.truth) == 0
        single = alone(federation, OneShot(2).grouped(server, server.start_key(r), range(2, 5)))
        np.testing.assert_allclose(
            stacked.to_matrix(groups.models), stacked.to_matrix(single.models), rtol=1e-4, atol=1e-5
        )
    one, other = (np.asarray(stacked.to_matrix(groups.models)) for groups in found)
    assert np.abs(one - other).max() > 1e-3  # after so short a time it matters where they began


def test_two_groups_at_most_are_two_groups():
    found = ct.OneShotKMeans(rounds=0, alone=ALONE, most=2).fit(population(5, k=2).train, LEARNER, seed=0)
    assert found.k == 2 and "silhouette" not in found.history.events[0].text


# -- training that diverges -------------------------------------------------------------------------------

HOT = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=1e10, steps=5))


@pytest.mark.parametrize(
    "algorithm", [ct.IFCA(k=3, n_init=1, init=ct.OneShot(ALONE)), ct.OneShotKMeans(alone=ALONE)]
)
def test_training_alone_that_diverges_is_called_so(algorithm):
    with pytest.raises(LearnerError, match="diverged where clients trained alone: lower the learning"):
        algorithm.fit(population(1).train, HOT, seed=0)


def test_a_client_whose_own_training_diverges_is_as_one_that_did_not_answer():
    data = population(1)
    xs, ys = map(list, zip(*data.train, strict=True))
    xs[0] = xs[0] * 1e10
    train = ct.Shards.from_lists(xs, ys)
    federation = ct.Simulation(train).with_learner(LEARNER)
    server = server_of(federation, LEARNER, seed=1)
    groups = alone(federation, OneShot(ALONE).grouped(server, server.start_key(0), [3]))
    assert groups.labels[0] == -1
    assert ct.metrics.misclustering(groups.labels[1:], data.truth[1:]) == 0
    assert np.isfinite(stacked.to_matrix(groups.models)).all()


@pytest.mark.slow
def test_shared_arrays_are_averaged_over_all_clients():
    data = ct.data.rotated_digits(clients=6, rotations=(0, 180), seed=0)
    learner = ct.Learner(ct.models.MLP(hidden=(4,)), local=ct.SGD(lr=0.1, steps=2))
    ask = {"k": 2, "alone": 2, "rounds": 0}
    own = ct.OneShotKMeans(**ask).fit(data.train, learner, seed=0)
    found = ct.OneShotKMeans(**ask, share="all but last").fit(data.train, learner, seed=0)
    np.testing.assert_array_equal(found.assignment, own.assignment)
    shares = own.sizes / own.sizes.sum()
    for name, array in stacked.named(found.models).items():
        alone = np.asarray(stacked.named(own.models)[name])
        expected = alone if name.startswith("layers.1") else np.stack([np.tensordot(shares, alone, 1)] * 2)
        np.testing.assert_allclose(array, expected, atol=1e-6)
    trained = ct.OneShotKMeans(**ask | {"rounds": 2}, share="all but last").fit(data.train, learner, seed=0)
    first = stacked.named(trained.models)["layers.0.weight"]
    np.testing.assert_array_equal(first[0], first[1])
    last = stacked.named(trained.models)["layers.1.weight"]
    assert not np.allclose(last[0], last[1])


def test_k_means_of_few_long_vectors_is_the_same_in_their_span():
    rng = np.random.default_rng(0)
    points = (rng.normal(size=(9, 9000)) + 0.4 * (np.arange(9) // 3)[:, None]).astype(np.float32)
    wide = k_means(points, 3, seed=5)
    near = k_means(points[:, :8000], 3, seed=5)  # not so many more coordinates than points
    assert ct.metrics.adjusted_rand(wide, np.arange(9) // 3) == ct.metrics.adjusted_rand(near, wide) == 1
