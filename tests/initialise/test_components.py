"""ONE_SHOT of the SR-FCA paper as a start: as many models as there are groups of clients near each other."""

import jax
import numpy as np
import pytest
from support.exchanges import server_of, started
from support.references import local_update
from support.references_srfca import between_clients, means, one_shot

import coterie as ct
from coterie.errors import SettingError
from coterie.initialise.random import fresh_model
from coterie.models import stacked

LR, STEPS, DIM = 0.05, 5, 6
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=STEPS))


def population(seed=0, k=3, clients=14):
    sizes = [9 + i % 8 for i in range(clients)]  # one bucket
    return ct.data.mixed_regression(
        k=k, clients=clients, examples=sizes, dim=DIM, noise=0.4, scale=3.0, seed=seed
    )


def simulated(shards):
    return ct.Simulation(shards, devices=jax.local_devices()[:1]).with_learner(LEARNER)


def expected(shards, init, seed=0):
    """The models of the groups, and who is in which."""
    server = server_of(ct.Simulation(shards), LEARNER, seed)
    one = jax.tree.map(lambda a: a[None], fresh_model(server, server.start_key(0)))
    w0 = np.asarray(stacked.to_matrix(one), float)[0]
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in shards]
    own = [local_update(w0, x, y, LR, STEPS * init.rounds) for x, y in clients]
    far = between_clients(clients, own, init.distance)
    labels = one_shot(clients, own, init.threshold, init.min_size, init.distance)
    return np.array(means(own, labels)), labels, far


@pytest.mark.parametrize(
    "init",
    [
        ct.Components(rounds=6, threshold=2.0, distance="l2"),
        ct.Components(rounds=6, threshold=1.2, distance="cross_loss"),
        ct.Components(rounds=6, threshold=1.6, distance="l2", min_size=3),
    ],
    ids=["l2", "cross loss", "at least three"],
)
def test_they_are_the_means_of_the_connected_components(init):
    numbers, lost = set(), 0
    for seed in range(4):
        data = population(seed, k=2 + seed % 2)
        (models,) = started(simulated(data.train), LEARNER, init, None, seed=seed)
        wanted, labels, _ = expected(data.train, init, seed)
        assert stacked.count(models) == len(wanted)
        np.testing.assert_allclose(stacked.to_matrix(models), wanted, rtol=1e-3, atol=1e-4)
        numbers.add(len(wanted))
        lost += labels.count(-1)
    assert len(numbers) > 1  # of groups: it is found, and differs from data to data
    assert lost > 0 or init.min_size == 2


def test_a_threshold_is_found_in_the_gap():
    """Whatever the rule: between the distances of clients of one group and those of two."""
    data = population(1)
    init = ct.Components(rounds=20)
    (models,) = started(simulated(data.train), LEARNER, init, None, seed=1)
    own = expected(data.train, ct.Components(rounds=20, threshold=1e9, min_size=1), 1)[2]
    same = data.truth[:, None] == data.truth
    assert own[same].max() < own[~same].min()  # there is one
    assert stacked.count(models) == 3
    assert ct.metrics.parameter_distance(models, data.models) < 0.6


@pytest.mark.slow
def test_ifca_finds_the_groups_of_digits_without_k():
    """ONE_SHOT-IFCA: "initial clustering of IFCA obtained by ONE_SHOT"."""
    seed, rotations = 1, (0, 90, 180)
    data = ct.data.rotated_digits(clients=6 * len(rotations), rotations=rotations, unseen=0, seed=seed)
    learner = ct.Learner(ct.models.MLP(hidden=(32,)), local=ct.SGD(lr=0.3, steps=10))
    algorithm = ct.IFCA(rounds=8, init=ct.Components(rounds=6))
    found = algorithm.fit(ct.Simulation(data.train, batch=8), learner, seed=seed)
    assert found.k == stacked.count(found.models) == len(rotations)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert algorithm.starts == 1  # another would begin the same
    begun = found.history.events[0]
    assert (begun.name, begun.asks) == ("start", 2)  # clients' models, and what they cost each other


@pytest.mark.slow
def test_ifca_goes_on_from_the_means_of_the_components():
    data, init = population(0), ct.Components(rounds=6, threshold=2.0, distance="l2")
    wanted, _, _ = expected(data.train, init)
    clients = simulated(data.train)
    found = ct.IFCA(rounds=3, init=init).fit(clients, LEARNER, seed=0)
    given = ct.IFCA(k=len(wanted), rounds=3, init=wanted.astype(np.float32)).fit(clients, LEARNER, seed=0)
    np.testing.assert_array_equal(found.assignment, given.assignment)
    np.testing.assert_allclose(
        stacked.to_matrix(found.models), stacked.to_matrix(given.models), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (ct.IFCA(k=3, init=ct.Components()), r"Components\(\) finds the number of clusters: leave k out"),
        (ct.FedSoft(k=3, init=ct.Components()), "finds the number of clusters by itself, but k is 3"),
        (ct.IFCA(init=ct.Random()), r"k must be given, unless init=Components\(\) finds it"),
        (ct.IFCA(init=ct.Components(rounds=0)), "rounds must be at least 1, not 0"),
        (
            ct.IFCA(init=ct.Components(rounds=6, threshold=1e-6)),
            "no 2 clients are within threshold=1e-06 of each other",
        ),
    ],
)
def test_impossible_settings_are_refused(algorithm, words):
    with pytest.raises(SettingError, match=words):
        algorithm.fit(simulated(population().train), LEARNER)
