"""The proximal update: exact where it can be, sought where it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.references import fedprox_step

import coterie as ct
from coterie.errors import SettingError
from coterie.learn.shard import Shard
from coterie.models import stacked


def shard(n, d, capacity, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((capacity, d)), rng.standard_normal(capacity)
    return Shard(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32), jnp.asarray(n))


@jax.jit
def trained(learner, model, at, label=1.0):
    return learner.train(model, at, jax.random.key(0), jnp.asarray(0), label=label)


def update(learner, start, at, label=1.0):
    spec = ct.Shards.from_lists([np.asarray(at.x)], [np.asarray(at.y)]).spec
    learner = learner.for_data(spec)
    model = stacked.take(stacked.from_matrix(start[None], learner.shapes(spec)), 0)
    new = trained(learner, model, at, label)
    return np.asarray(stacked.to_matrix(jax.tree.map(lambda a: a[None], new)))[0]


class Unmarked(ct.models.Linear):
    """A linear model that does not say so."""

    linear_in_parameters = False


@pytest.mark.parametrize("n, d, capacity", [(1, 6, 17), (3, 6, 17), (6, 6, 17), (12, 6, 17), (40, 3, 45)])
@pytest.mark.parametrize(("loss", "factor", "label"), [("half_squared", 1, 1.0), ("squared", 2, 0.3)])
def test_is_the_minimiser_of_the_proximal_objective(n, d, capacity, label, loss, factor):
    at, start = shard(n, d, capacity, seed=n), np.random.default_rng(1).standard_normal(d)
    x, y = np.asarray(at.x[:n], float), np.asarray(at.y[:n], float)
    wanted = fedprox_step(start, x, y, eta=0.4, label=factor * label)
    for model, tolerance in ((ct.models.Linear(), 1e-4), (Unmarked(), 1e-3)):
        learner = ct.Learner(model, loss, ct.Proximal(lr=0.4, steps=200))
        found = update(learner, start.astype(np.float32), at, label)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_several_outputs_and_a_bias():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((7, 3)).astype(np.float32), rng.standard_normal((7, 2)).astype(np.float32)
    at = Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(7))
    start = rng.standard_normal(8).astype(np.float32)
    exact, sought = (
        update(ct.Learner(model, "squared", ct.Proximal(lr=0.2, steps=200)), start, at)
        for model in (ct.models.Linear(bias=True), Unmarked(bias=True))
    )
    np.testing.assert_allclose(exact, sought, rtol=1e-3, atol=1e-3)
    # the gradient vanishes there: lr * gradient of F is what it moved by
    spec = ct.Shards.from_lists([x], [y]).spec
    learner = ct.Learner(ct.models.Linear(bias=True), "squared").for_data(spec)
    model = stacked.take(stacked.from_matrix(exact[None], learner.shapes(spec)), 0)
    gradient = jax.grad(lambda m: learner.shard_loss(m, at))(model)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
    np.testing.assert_allclose(exact - start, -0.2 * flat, rtol=1e-3, atol=1e-4)


def test_a_network_is_brought_near_its_proximal_minimum():
    data = ct.data.rotated_digits(clients=4, rotations=(0,), unseen=0, seed=0)
    x, y = (part[:100] for part in data.train.client(0))
    at = Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(len(x)))
    learner = ct.Learner(ct.models.MLP(hidden=(8,)), local=ct.Proximal(lr=50.0, steps=200)).for_data(
        data.train.spec
    )
    start = learner.init(jax.random.key(1), data.train.spec)
    new = trained(learner, start, at)

    @jax.jit
    def objective(model):
        away = sum(jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (model, start)), strict=True))
        return learner.shard_loss(model, at) + away / 100

    def norm(model):
        return float(jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(objective)(model)))))

    assert objective(new) < 0.6 * objective(start)
    assert norm(new) < 0.1 * norm(start)  # kinks of the ReLUs keep it from vanishing


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lr": 0.0}, "lr must be a positive number"),
        ({"lr": 1.0, "steps": 0}, "steps must be a whole number"),
        ({"lr": 1.0, "tolerance": 0.0}, "tolerance must be above 0"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        ct.Proximal(**settings)
