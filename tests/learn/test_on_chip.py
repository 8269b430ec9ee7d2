"""Steps of least squares in a kernel give what the usual ones give; here the kernel is interpreted."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coterie as ct
from coterie.learn import on_chip, sample_space
from coterie.learn.shard import Shard

LINEAR = ct.models.Linear(outputs=())


@pytest.fixture
def chip(monkeypatch):
    monkeypatch.setattr(on_chip, "_there_is_a_chip", lambda: True)
    monkeypatch.setattr(on_chip, "train", partial(on_chip.train, interpret=True))


def client(examples, padding, features=5, seed=0):
    """A client whose bucket has more room; what fills it up is not zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((examples + padding, features), np.float32)
    y = rng.standard_normal(examples + padding, np.float32)
    return Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(examples, jnp.int32))


@pytest.mark.parametrize("loss", ["squared", "half_squared"])
@pytest.mark.parametrize(("examples", "padding"), [(1, 0), (2, 0), (3, 4), (8, 1), (13, 0)])
def test_its_steps_are_those_of_numpy(loss, examples, padding):
    learner = ct.Learner(LINEAR, loss, ct.SGD(0.05, steps=4, decay=0.9))
    shard = client(examples, padding)
    start = learner.model.init(jax.random.key(1), shard.x)
    found = on_chip.train(learner, start, shard, jnp.asarray(3), 0.25, interpret=True)
    x, y = np.asarray(shard.x[:examples], float), np.asarray(shard.y[:examples], float)
    w = np.asarray(start.layers[0].weight, float).ravel()
    for _ in range(4):
        gradient = x.T @ (x @ w - y) / examples * (2 if loss == "squared" else 1)
        w = w - 0.05 * 0.9**3 * 0.25 * gradient
    np.testing.assert_allclose(found.layers[0].weight.ravel(), w, rtol=1e-5, atol=1e-6)


def test_it_is_for_small_clients_of_plain_least_squares_and_for_gpus(chip, monkeypatch):
    def possible(model=LINEAR, loss="squared", examples=40, features=100, **local):
        learner = ct.Learner(model, loss, ct.SGD(0.1, **{"steps": 5, **local}))
        return on_chip.possible(learner, examples, features)

    assert possible() and possible(examples=64, features=128) and possible(decay=0.9)
    assert not possible(examples=65) and not possible(features=300), "too large"
    assert not possible(ct.models.Linear(bias=True, outputs=()))
    assert not possible(ct.models.Linear(outputs=3), "cross_entropy")
    for other in (
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"proximal": 0.1},
        {"clip": 1.0},
        {"batch_size": 2},
    ):
        assert not possible(**other), other
    assert not on_chip.possible(ct.Learner(LINEAR, "squared", ct.Optax(optax.adam(0.1), steps=3)), 4, 4)
    monkeypatch.setattr(on_chip, "_there_is_a_chip", lambda: False)
    assert not possible()


def test_there_is_no_chip_on_a_cpu():
    assert not on_chip._there_is_a_chip()


@pytest.mark.slow
def test_a_simulation_with_several_starts_finds_the_same(chip, monkeypatch):
    data = ct.data.mixed_regression(k=2, clients=9, examples=[3, 5, 9, 2, 4, 6, 7, 11, 3], dim=23, seed=0)
    learner = ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(0.02, steps=4))
    algorithm = ct.FedX(k=2, rounds=3, n_init=3)
    assert not sample_space.pays(learner.for_data(data.train.spec), 8, 23), "products are of no use then"
    taken = []
    monkeypatch.setattr(on_chip, "train", partial(_noted, taken, on_chip.train))
    jax.clear_caches()  # what is compiled does not know of a chip
    ours = algorithm.fit(data.train, learner, seed=1)
    assert taken
    monkeypatch.setattr(on_chip, "_there_is_a_chip", lambda: False)
    jax.clear_caches()
    usual = algorithm.fit(data.train, learner, seed=1)
    np.testing.assert_array_equal(ours.assignment, usual.assignment)
    np.testing.assert_allclose(
        ours.models.layers[0].weight, usual.models.layers[0].weight, rtol=1e-4, atol=1e-6
    )


def _noted(taken, train, *given):
    taken.append(given)
    return train(*given)
