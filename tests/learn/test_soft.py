"""What a client of a soft clustering can be asked, against NumPy on linear regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bare_model import Theta

import coterie as ct
from coterie.learn.shard import Shard
from coterie.learn.soft import CountNearest, TrainBetween
from coterie.learn.task import Client
from coterie.models import stacked

K, D, CAPACITY = 3, 4, 9
KEY = jax.random.key(3)
LR, STEPS, DECAY = 0.05, 4, 0.5


LEARNER = ct.Learner(Theta(), "squared", ct.SGD(LR, steps=STEPS, decay=DECAY))


@jax.jit
def reply_of(task, shard, learner=LEARNER):
    return task(Client(learner, shard, KEY))


def count_nearest(models, shard):
    return reply_of(CountNearest(jnp.asarray(models)), shard)


def problem(size, seed=0):
    """Examples, garbage behind them, and k models."""
    rng = np.random.default_rng(seed)
    x, y, models = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((CAPACITY, D), CAPACITY, (K, D))
    )
    x[size:] *= 100
    return x, y, models, Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))


# -- importance ----------------------------------------------------------------------------------------------


@given(st.integers(1, CAPACITY), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_example_counts_for_the_model_that_fits_it_best(size, seed):
    x, y, models, shard = problem(size, seed)
    counts, total = np.zeros(K, int), np.zeros(K)
    for i in range(size):
        losses = [float(y[i] - x[i] @ model) ** 2 for model in models]
        counts[int(np.argmin(losses))] += 1
        total += losses
    reply = count_nearest(models, shard)
    assert reply.report.counts.tolist() == counts.tolist()
    assert reply.report.counts.dtype == jnp.int32
    np.testing.assert_allclose(reply.report.losses, total / size, rtol=1e-4)
    assert reply.value is None


def test_the_first_of_equal_models_counts():
    _, _, models, shard = problem(7)
    reply = count_nearest(models[[1, 1, 1]], shard)
    assert reply.report.counts.tolist() == [7, 0, 0]
    twice = count_nearest(models[[0, 1, 1]], shard).report.counts
    assert twice[2] == 0 and twice[1] > 0 and twice.sum() == 7


@pytest.mark.parametrize("broken", range(K))
def test_a_model_that_diverged_fits_no_example(broken):
    _, _, models, shard = problem(8)
    others = [j for j in range(K) if j != broken]
    alone = count_nearest(models[[*others, others[1]]], shard)
    models[broken] = np.nan
    counts = count_nearest(models, shard).report.counts
    assert counts[broken] == 0
    assert counts[np.array(others)].tolist() == alone.report.counts[:2].tolist()
    # an example that no model fits counts for the first
    assert count_nearest(np.full_like(models, np.nan), shard).report.counts.tolist() == [8, 0, 0]


# -- training ------------------------------------------------------------------------------------------------


def descent(w, x, y, centres, pulls, lr, steps=STEPS, proximal=0.0):
    """Gradient descent on the mean of (y - <x, w>)^2 and sum_s pulls_s / 2 * |w - c_s|^2, term by term."""
    start = w = w.astype(float)
    for _ in range(steps):
        slope = -2 * x.T.astype(float) @ (y - x @ w) / len(y) + proximal * (w - start)
        for centre, pull in zip(centres, pulls, strict=True):
            slope = slope + pull * (w - centre)
        w = w - lr * slope
    return w


def minimum(w, x, y, centres, pulls, eta):
    """argmin of the same and |w - start|^2 / (2 eta), by the normal equations."""
    left = 2 * x.T @ x / len(y) + (sum(pulls) + 1 / eta) * np.eye(D)
    right = 2 * x.T @ y / len(y) + w / eta
    for centre, pull in zip(centres, pulls, strict=True):
        right = right + pull * centre
    return np.linalg.solve(left, right)


def lots(seed):
    rng = np.random.default_rng(seed + 1)
    return rng.standard_normal(D).astype(np.float32), rng.random(K).astype(np.float32)


def asked(centres, own, pulls, round_=0):
    return TrainBetween(centres, jnp.asarray(round_), own, jnp.asarray(pulls))


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_a_clients_own_model_goes_down_between_the_centres(size, seed, round_):
    x, y, centres, shard = problem(size, seed)
    own, pulls = lots(seed)
    reply = reply_of(asked(jnp.asarray(centres), jnp.asarray(own), 3 * pulls, round_), shard)
    wanted = descent(own, x[:size], y[:size], centres, 3 * pulls, LR * DECAY**round_)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)
    # the loss is that before the update, without what draws it elsewhere
    loss = np.mean((y[:size] - x[:size] @ own) ** 2)
    np.testing.assert_allclose(reply.report.loss, loss, rtol=1e-4)
    assert reply.cluster == 0 and reply.weight == 1


def test_the_rules_own_proximal_term_is_added():
    x, y, centres, shard = problem(6)
    own, pulls = lots(0)
    learner = ct.Learner(Theta(), "squared", ct.SGD(LR, steps=STEPS, proximal=2.5))
    reply = reply_of(asked(jnp.asarray(centres), jnp.asarray(own), pulls), shard, learner)
    wanted = descent(own, x[:6], y[:6], centres, pulls, LR, proximal=2.5)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted - descent(own, x[:6], y[:6], centres, pulls, LR)).max() > 0.01


class Unmarked(ct.models.Linear):
    """A linear model that does not say so."""

    linear_in_parameters = False


@pytest.mark.parametrize(
    "model, tolerance", [(ct.models.Linear, 1e-4), pytest.param(Unmarked, 2e-3, marks=pytest.mark.slow)]
)
def test_proximal_finds_the_minimum(model, tolerance):
    spec = ct.Shards.from_lists([np.zeros((2, D))], [np.zeros(2)]).spec
    model = ct.Learner(model(), "squared").for_data(spec).model
    one = ct.Learner(model, "squared").shapes(spec)
    for eta, size, factor in ((0.3, 3, 1.0), (0.3, 9, 5.0), (1e4, 9, 1.0), (1e4, 9, 0.0)):
        x, y, centres, shard = problem(size, seed=size)
        own, pulls = lots(size)
        trees = stacked.from_matrix(centres, one), stacked.take(stacked.from_matrix(own[None], one), 0)
        learner = ct.Learner(model, "squared", ct.Proximal(lr=eta, steps=200))
        reply = reply_of(asked(*trees, factor * pulls), shard, learner)
        found = stacked.to_matrix(jax.tree.map(lambda a: a[None], reply.value))[0]
        wanted = minimum(own, x[:size].astype(float), y[:size], centres, factor * pulls, eta)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
