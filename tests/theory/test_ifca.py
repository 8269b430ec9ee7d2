"""Theorem 1 of the IFCA paper: contraction by a half down to a floor, and how the floor falls."""

import jax
import numpy as np
import pytest
from support.observers import Remember

import coterie as ct
from coterie.models import stacked

SIGMA, K, DIM = 0.1, 2, 10


def distances(watch, truth):
    """max_j ||theta_j - theta*_j|| at every moment of a run."""
    each = [stacked.to_matrix(stacked.take(moment.states.models, 0)) for moment in watch.moments]
    return np.array([np.linalg.norm(np.asarray(models, float) - truth, axis=1).max() for models in each])


def errors(m, fresh, rounds, seed):
    """max_j ||theta_j - theta*_j|| before the first and after every round, from a start Delta/4 away.

    Every round uses `fresh` new examples for the identity and as many for the gradient: n' of the paper.
    """
    data = ct.data.mixed_regression(
        k=K, clients=m, examples=2 * rounds * fresh, dim=DIM, noise=SIGMA, scale=1.0, seed=seed
    )
    apart = np.linalg.norm(data.models[0] - data.models[1])
    away = np.random.default_rng(seed).standard_normal((K, DIM))
    start = data.models + apart / 4 * away / np.linalg.norm(away, axis=1, keepdims=True)
    # the loss is (y - f)^2, so that the effective step is 2 gamma p: gamma = c_1 / p with c_1 = 1/2
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.5 * K, steps=1))
    watch = Remember()
    clients = ct.Simulation(data.train, batch=20, devices=jax.local_devices()[:1])
    ct.IFCA(k=K, rounds=rounds, init=start.astype(np.float32), average="gradients", resample=True).fit(
        clients, learner, seed=seed, observers=[watch]
    )
    return distances(watch, data.models)


def floor(m, fresh):
    """(sigma / p) sqrt(d / m n'), the second term of Theorem 1, but for its constant."""
    return SIGMA * K * np.sqrt(DIM / (m * fresh))


@pytest.mark.parametrize("seed", range(5))
def test_the_error_halves_in_every_round_down_to_the_floor(seed):
    m, fresh = 100, 40
    error = errors(m, fresh, rounds=8, seed=seed)
    assert error[0] > 8 * floor(m, fresh)  # there is somewhere to go
    assert (error[1:] <= error[:-1] / 2 + floor(m, fresh)).all()
    assert error[-1] <= 2 * floor(m, fresh)


def test_a_step_too_small_does_not_halve_it():
    # so that the test above means something: with a tenth of the step the error hardly falls
    data = ct.data.mixed_regression(k=K, clients=100, examples=640, dim=DIM, noise=SIGMA, seed=0)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05 * K, steps=1))
    watch = Remember()
    ct.IFCA(
        k=K, rounds=4, init=(data.models + 0.1).astype(np.float32), average="gradients", resample=True
    ).fit(data.train, learner, observers=[watch])
    error = distances(watch, data.models)
    assert (error[1:] > error[:-1] / 2 + floor(100, 80)).any()


def test_the_floor_falls_like_one_over_the_root_of_m_n():
    sizes = [(m, fresh) for m in (20, 180) for fresh in (15, 135)]
    found = [np.mean([errors(m, fresh, 6, seed)[-2:].mean() for seed in range(6)]) for m, fresh in sizes]
    m, fresh = np.log(np.array(sizes, float)).T
    columns = np.stack([m, fresh, np.ones_like(m)], axis=1)
    by_m, by_n, _ = np.linalg.lstsq(columns, np.log(found), rcond=None)[0]
    assert -0.6 < by_m < -0.4
    assert -0.6 < by_n < -0.4
