"""Re-sampling: in every round one slice of the shard for the identity and another one for the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.references import gradient, loss

import coterie as ct
from coterie import keys
from coterie.learn.shard import Shard
from coterie.models import stacked

DIM, K, ROUNDS, GAMMA = 4, 2, 3, 0.2
SIZES = [6, 9, 12, 25, 7, 40]


@pytest.mark.parametrize(("size", "of"), [(11, 4), (16, 4), (16, 3), (5, 5), (7, 1)])
def test_parts_are_disjoint_and_of_one_size(size, of):
    shard = Shard(jnp.arange(16.0), jnp.arange(16.0), jnp.asarray(size))
    parts = [shard.part(jnp.asarray(i), jnp.asarray(of)) for i in range(of)]
    held = [np.asarray(part.x)[np.asarray(part.mask)].tolist() for part in parts]
    assert {len(part) for part in held} == {size // of}
    everything = [example for part in held for example in part]
    assert len(set(everything)) == len(everything) and set(everything) <= set(range(size))


def test_a_slice_of_a_batched_shard_trains_on_its_own_examples():
    # examples are one-hot, so that the model tells which of them it was trained on
    n, d = 10, 12
    x = np.zeros((n, d), np.float32)
    x[np.arange(n), np.arange(n)] = 1
    shard = Shard(jnp.asarray(x), jnp.ones(n, jnp.float32), jnp.asarray(9)).part(
        jnp.asarray(1), jnp.asarray(3)
    )
    spec = ct.Shards.from_lists([x], [np.ones(n, np.float32)]).spec
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, epochs=1, batch_size=2)).for_data(spec)
    zero = stacked.take(stacked.from_matrix(np.zeros((1, d)), learner.shapes(spec)), 0)
    new = learner.train(zero, shard, jax.random.key(0), jnp.asarray(0))
    assert np.flatnonzero(new.layers[0].weight).tolist() == [1, 4, 7]


@pytest.mark.parametrize(
    ("seed", "participation"), [(0, 3), (1, 3), pytest.param(1, 6, marks=pytest.mark.slow)]
)
def test_agrees_with_section_5(seed, participation):
    data = ct.data.mixed_regression(k=K, clients=6, examples=SIZES, dim=DIM, noise=0.1, scale=3.0, seed=seed)
    thetas = np.random.default_rng(seed).standard_normal((K, DIM)).astype(np.float32)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=GAMMA, steps=1))
    found = ct.IFCA(
        k=K, rounds=ROUNDS, init=thetas, average="gradients", resample=True, participation=participation
    ).fit(data.train, learner, seed=seed)
    thetas, tokens = thetas.astype(float), keys.tokens(data.train.ids)
    for t in range(ROUNDS):
        moves = np.zeros_like(thetas)
        for i in keys.participants(seed, t, tokens, participation):
            x, y = (np.asarray(a, float) for a in data.train.client(i))
            whole = len(y) // (2 * ROUNDS) * 2 * ROUNDS  # n' = n / 2T examples each
            parts = [slice(s, whole, 2 * ROUNDS) for s in (2 * t, 2 * t + 1)]
            j = int(np.argmin([loss(theta, x[parts[0]], y[parts[0]]) for theta in thetas]))
            moves[j] += gradient(thetas[j], x[parts[1]], y[parts[1]])
        thetas = thetas - GAMMA / len(SIZES) * moves  # 14: gamma / m, where m are all clients
    np.testing.assert_allclose(stacked.to_matrix(found.models), thetas, rtol=1e-3, atol=1e-4)
