"""Every model starts from the client that those before it fit worst."""

import jax
import numpy as np
import pytest
from support.exchanges import Overheard, started
from support.references import local_update, loss

import coterie as ct
from coterie.errors import SettingError
from coterie.models import stacked

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))


def population(seed=0, clients=9):
    sizes = [5 + i % 4 for i in range(clients)]  # one bucket: each is compiled
    return ct.data.mixed_regression(
        k=3, clients=clients, examples=sizes, dim=4, noise=0.1, scale=3.0, seed=seed
    )


STARTS = 3


def start(shards, initialiser, seed=0, silent=lambda number, name: []):
    """The models of each start, shape (starts, k, d), and fresh ones."""
    federation = ct.Simulation(shards, devices=jax.local_devices()[:1])
    federation = Overheard(federation.with_learner(LEARNER.for_data(shards.spec)), silent)
    found, fresh = (
        [stacked.to_matrix(models) for models in started(federation, LEARNER, init, 3, STARTS, seed)]
        for init in (initialiser, ct.Random())
    )
    return np.asarray(found, float), np.asarray(fresh, float)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_a_loop_over_clients(seed):
    data = population(seed)
    rounds = 3
    found, fresh = start(data.train, ct.FarthestLoss(rounds=rounds), seed=seed)
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    for r in range(STARTS):

        def trained(i, r=r):
            return local_update(fresh[r, 0], *clients[i], 0.05, 2 * rounds)

        first = min(range(len(clients)), key=lambda i: np.abs(trained(i) - found[r, 0]).max())
        models = [trained(first)]
        for _ in range(2):
            fit = [min(loss(theta, x, y) for theta in models) for x, y in clients]
            models.append(trained(int(np.argmax(fit))))
        np.testing.assert_allclose(found[r], models, rtol=1e-3, atol=1e-4)


def test_starts_differ_and_do_not_depend_on_the_order_of_clients():
    data = population()
    found, *_ = start(data.train, ct.FarthestLoss(rounds=3))
    assert len(np.unique(found[:, 0].round(4), axis=0)) > 1
    turned, *_ = start(data.train[::-1], ct.FarthestLoss(rounds=3))
    np.testing.assert_allclose(found, turned, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_client_that_does_not_answer_is_replaced_by_a_fresh_model():
    data, init = population().train, ct.FarthestLoss(rounds=3)
    found, fresh = start(data, init, silent=lambda number, name: range(9) if name == "TrainAlone" else [])
    np.testing.assert_allclose(found, fresh, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_groups_from_one_start(seed):
    data = ct.data.mixed_regression(k=4, clients=40, examples=30, dim=10, noise=0.1, scale=3.0, seed=seed)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=5))
    found = ct.IFCA(k=4, rounds=30, n_init=1, init=ct.FarthestLoss()).fit(data.train, learner, seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


def test_no_rounds_are_refused():
    with pytest.raises(SettingError, match="rounds must be at least 1, not 0"):
        start(population().train, ct.FarthestLoss(rounds=0))
