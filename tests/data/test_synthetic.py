"""Mixtures of regressions follow the model that they state."""

import numpy as np
import pytest

from coterie.data import mixed_regression
from coterie.errors import SettingError


def residuals(data, shards):
    return [y - x @ data.models[z] for (x, y), z in zip(shards, data.truth, strict=True)]


def test_shapes_ids_and_equal_clusters():
    data = mixed_regression(k=3, clients=8, examples=5, dim=4)
    assert data.models.shape == (3, 4)
    assert data.truth.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert data.train.sizes.tolist() == data.test.sizes.tolist() == [5] * 8
    uneven = mixed_regression(k=2, clients=4, examples=(1, 9, 2, 30), dim=3)
    assert uneven.train.sizes.tolist() == uneven.test.sizes.tolist() == [1, 9, 2, 30]
    assert (
        data.train.spec.x_shape == (4,) and data.train.spec.y_shape == () and data.train.spec.classes is None
    )


@pytest.mark.parametrize("parameters", ["gaussian", "bernoulli"])
def test_without_noise_targets_are_exactly_the_clusters_model(parameters):
    data = mixed_regression(k=3, clients=6, examples=7, dim=5, noise=0, parameters=parameters, scale=2)
    for shards in (data.train, data.test):
        assert np.abs(np.concatenate(residuals(data, shards))).max() < 1e-5
    wrong = np.roll(data.models, 1, axis=0)[data.truth]
    assert all(np.abs(y - x @ w).max() > 0.1 for (x, y), w in zip(data.train, wrong, strict=True))


def test_features_are_standard_normal():
    data = mixed_regression(k=1, clients=1, examples=20_000, dim=4)
    x, _ = data.train.client(0)
    assert np.abs(x.mean(0)).max() < 0.04
    assert np.abs(np.cov(x.T) - np.eye(4)).max() < 0.06
    assert 2.8 < (x**4).mean() < 3.2


@pytest.mark.parametrize("noise", [0.1, 2.0])
def test_noise_has_the_given_standard_deviation(noise):
    data = mixed_regression(k=2, clients=4, examples=5000, dim=3, noise=noise)
    for part in residuals(data, data.train):
        assert part.std() == pytest.approx(noise, rel=0.05)
        assert abs(part.mean()) < 5 * noise / np.sqrt(5000)


def test_bernoulli_models_have_the_norm_and_two_values():
    models = mixed_regression(k=40, clients=40, examples=1, dim=3, parameters="bernoulli", scale=2.5).models
    np.testing.assert_allclose(np.linalg.norm(models, axis=1), 2.5)
    ones = (models > 0).sum(1, keepdims=True)
    np.testing.assert_allclose(models, np.where(models > 0, 2.5 / np.sqrt(ones), 0))
    # half of the coordinates are ones
    models = mixed_regression(k=50, clients=50, examples=1, dim=400, parameters="bernoulli").models
    assert abs((models > 0).mean() - 0.5) < 4.5 * 0.5 / np.sqrt(50 * 400)


def test_gaussian_models_have_variance_scale_squared_over_dim():
    models = mixed_regression(k=50, clients=50, examples=1, dim=400, scale=3).models
    assert models.std() * 20 == pytest.approx(3, rel=0.03)
    assert (models**4).mean() / (models**2).mean() ** 2 == pytest.approx(3, rel=0.1)
    assert np.linalg.norm(models, axis=1) == pytest.approx(3, rel=0.2)


def test_clusters_are_drawn_in_the_given_proportions():
    data = mixed_regression(k=3, clients=3000, examples=1, dim=1, proportions=(0.7, 0.3, 0.0))
    counts = np.bincount(data.truth, minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 2100) < 4.5 * np.sqrt(3000 * 0.21)
    assert len(set(data.truth[:20].tolist())) == 2  # drawn, not dealt out in order


def test_the_seed_decides_everything():
    one, same, other = (mixed_regression(clients=4, examples=3, dim=2, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(one.models, same.models)
    np.testing.assert_array_equal(one.train.client(0)[0], same.train.client(0)[0])
    assert not np.array_equal(one.models, other.models)
    assert not np.array_equal(one.train.client(0)[0], other.train.client(0)[0])
    assert not np.isin(one.test.client(0)[0], one.train.client(0)[0]).any()  # fresh ones


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"k": 0}, "need k >= 1"),
        ({"dim": 0}, "need k >= 1.*dim >= 1"),
        ({"clients": 0}, "need k >= 1, clients >= 1"),
        ({"noise": -0.1}, "noise >= 0"),
        ({"scale": 0}, "scale > 0"),
        ({"k": 5, "clients": 4}, "4 clients cannot fill 5 clusters"),
        ({"examples": 0}, "examples must be a positive whole number"),
        ({"examples": 2.5}, "examples must be a positive whole number"),
        ({"clients": 3, "examples": (1, 2)}, "one such number per client"),
        ({"clients": 2, "examples": (1, 0)}, "one such number per client"),
        ({"clients": 2, "examples": ((1, 2),)}, "one such number per client"),
        ({"proportions": (0.5, 0.6)}, "proportions must be 2 non-negative numbers that add up to 1"),
        ({"proportions": (1.5, -0.5)}, "proportions must be 2 non-negative numbers"),
        ({"proportions": (0.2, 0.3, 0.5)}, "proportions must be 2 non-negative numbers"),
        ({"parameters": "cauchy"}, "parameters must be 'gaussian' or 'bernoulli', not 'cauchy'"),
    ],
)
def test_impossible_settings_are_refused(options, sentence):
    with pytest.raises(SettingError, match=sentence):
        mixed_regression(**options)
