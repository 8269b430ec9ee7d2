"""The proximal update: exact where it can be, sought where it cannot."""

from functools import partial

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


@pytest.mark.parametrize("n", [1, 3, 6, 12])
@pytest.mark.parametrize(
    ("model", "loss", "factor", "label", "tolerance"),
    [
        (ct.models.Linear(), "half_squared", 1, 1.0, 1e-4),
        (ct.models.Linear(), "squared", 2, 0.3, 1e-4),
        (Unmarked(), "squared", 2, 0.3, 1e-3),
    ],
    ids=["half squared", "squared", "sought"],
)
def test_is_the_minimiser_of_the_proximal_objective(n, model, loss, factor, label, tolerance):
    d = 6
    at, start = shard(n, d, 17, seed=n), np.random.default_rng(1).standard_normal(d)
    x, y = np.asarray(at.x[:n], float), np.asarray(at.y[:n], float)
    wanted = fedprox_step(start, x, y, eta=0.4, label=factor * label)
    learner = ct.Learner(model, loss, ct.Proximal(lr=0.4, steps=200))
    found = update(learner, start.astype(np.float32), at, label)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@partial(jax.jit, static_argnums=0)
def gradient(learner, model, at):
    return jax.grad(lambda m: learner.shard_loss(m, at))(model)


def test_several_outputs_and_a_bias():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((7, 3)).astype(np.float32), rng.standard_normal((7, 2)).astype(np.float32)
    at = Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(7))
    start = rng.standard_normal(8).astype(np.float32)
    found = update(ct.Learner(ct.models.Linear(bias=True), "squared", ct.Proximal(lr=0.2)), start, at)
    # the gradient vanishes there: lr * gradient of F is what it moved by
    spec = ct.Shards.from_lists([x], [y]).spec
    learner = ct.Learner(ct.models.Linear(bias=True), "squared").for_data(spec)
    model = stacked.take(stacked.from_matrix(found[None], learner.shapes(spec)), 0)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient(learner, model, at))])
    np.testing.assert_allclose(found - start, -0.2 * flat, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_network_is_brought_near_its_proximal_minimum():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 4)).astype(np.float32)
    y = (x @ rng.standard_normal((4, 3))).argmax(axis=1)
    at, spec = Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(30)), ct.Shards.from_lists([x], [y]).spec
    learner = ct.Learner(ct.models.MLP(hidden=(8,)), local=ct.Proximal(lr=50.0, steps=200)).for_data(spec)
    start = jax.tree.map(
        lambda a: jnp.asarray(rng.uniform(-0.4, 0.4, a.shape), jnp.float32), learner.shapes(spec)
    )
    new = trained(learner, start, at)

    @jax.jit
    @jax.value_and_grad
    def objective(model):
        away = sum(jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (model, start)), strict=True))
        return learner.shard_loss(model, at) + away / 100

    (before, steep), (after, flat) = objective(start), objective(new)
    assert after < 0.6 * before

    def norm(tree):
        return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))

    assert norm(flat) < 0.1 * norm(steep)  # kinks of the ReLUs keep it from vanishing


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
