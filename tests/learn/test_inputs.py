"""Descriptions of inputs: what one client sends."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.learn.inputs import WIDTH, DescribeInputs, features
from coterie.learn.shard import Shard
from coterie.learn.task import Client

LEARNER = ct.Learner(ct.models.Linear(), "squared")
RNG = np.random.default_rng(0)


def sent(x, noise=0.0, draw=3, secret=0, padding=0, y=None):
    """What a client sends whose examples are followed by some that are not there."""
    x = np.asarray(x)
    whole = np.concatenate([x, 7 * np.ones((padding, *x.shape[1:]), x.dtype)])
    y = np.zeros(len(whole)) if y is None else y
    shard = Shard(jnp.asarray(whole), jnp.asarray(y), jnp.asarray(len(x)))
    task = DescribeInputs(jnp.asarray(draw, jnp.uint32), jnp.asarray(noise))
    client = Client(LEARNER, shard, jax.random.key(0), secret=jax.random.key(secret))
    return np.asarray(task(client).report.moments)


def test_it_is_the_mean_and_the_mean_product_of_feature_vectors():
    x = RNG.standard_normal((9, 3, 2)).astype(np.float32)
    vectors = np.asarray(features(jnp.asarray(x), jax.random.key(3)), float)
    products = np.mean([np.outer(v, v) for v in vectors], axis=0)
    wanted = np.concatenate([vectors.mean(0), products[np.triu_indices(WIDTH)]])
    np.testing.assert_allclose(sent(x), wanted, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("x", [RNG.standard_normal((5, 4)).astype(np.float32), RNG.integers(0, 9, (5, 4))])
def test_neither_padding_nor_order_nor_labels_change_it(x):
    np.testing.assert_allclose(sent(x, padding=3), sent(x), atol=1e-6)
    np.testing.assert_allclose(sent(x[::-1]), sent(x), atol=1e-6)
    np.testing.assert_array_equal(sent(x, y=RNG.standard_normal(5)), sent(x))
    assert np.abs(sent(x, draw=4) - sent(x)).max() > 0.05


def test_the_features_of_real_numbers_are_a_linear_map_with_their_scale():
    x = RNG.standard_normal((1, 4)).astype(np.float32)
    one, twice = (np.asarray(features(jnp.asarray(f * x), jax.random.key(0)))[0] for f in (1, 2))
    assert 0.5 < one @ twice < 0.999  # neither lost nor all there is


def test_tokens_are_told_apart_by_how_often_they_occur_and_not_by_where():
    def alike(a, b):
        first, second = (features(jnp.asarray(t)[None], jax.random.key(1))[0] for t in (a, b))
        return float(first @ second)

    assert alike([1, 1, 5, 9], [9, 1, 1, 5]) == pytest.approx(1, abs=1e-5)
    assert alike([1, 1, 5, 9], [1, 1, 5, 8]) > alike([1, 1, 5, 9], [2, 3, 4, 8]) + 0.3


def test_an_example_moves_what_is_sent_by_no_more_than_it_says():
    n = 6
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((n, 5)).astype(np.float32)
        other = x.copy()
        other[0] = -x[0] if seed % 2 else rng.standard_normal(5)
        assert np.linalg.norm(sent(x) - sent(other)) <= 2 * np.sqrt(2) / n


def test_noise_is_of_the_client_s_own_secret_and_as_large_as_was_asked():
    x = RNG.standard_normal((5, 3)).astype(np.float32)
    first, second = (sent(x, noise=0.1, secret=s) - sent(x) for s in (0, 1))
    assert first.std() == pytest.approx(0.1, rel=0.1) and abs(first.mean()) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


@pytest.mark.slow
def test_bytes_of_images_are_seen_as_they_are_by_models():
    """Stored bytes are whole numbers, and no tokens."""
    data = ct.data.rotated_digits(clients=4, unseen=4, rotations=(0, 90), seed=0)
    xs, ys = zip(*data.train, strict=True)
    small = [np.round(16 * x).astype(np.uint8) for x in xs]
    stored = ct.Shards.from_lists(small, ys, data.train.ids.tolist(), scale=1 / 16)
    learner = ct.Learner(ct.models.Linear())
    found = ct.Global(rounds=1).fit(data.train, learner, seed=0)
    as_reals, as_bytes = (found.describe(clients).inputs for clients in (data.train, stored))
    np.testing.assert_allclose(as_bytes.moments, as_reals.moments, atol=1e-5)
    assert replace(as_bytes, moments=None) == replace(as_reals, moments=None)
