"""What becomes of a cluster that no client belongs to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.references import ifca_with_parts

import coterie as ct
from coterie import keys
from coterie.algorithms.parts.revival import revived
from coterie.federation.protocol import Answers
from coterie.learn.tasks import Loss
from coterie.models import stacked

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=5))


def population(seed=0):
    return ct.data.mixed_regression(k=2, clients=16, examples=20, dim=5, noise=0.1, scale=3.0, seed=seed)


def one_for_all(data):
    """Two models, of which the second fits nobody."""
    return np.stack([data.models.mean(axis=0), np.full(5, 100.0)]).astype(np.float32)


def clients_of(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_an_empty_cluster_is_filled_and_the_groups_are_found(seed):
    data = population(seed)
    algorithm = ct.IFCA(k=2, rounds=30, init=one_for_all(data), empty="revive")
    found = algorithm.fit(data.train, LEARNER, seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert found.history[0].sizes == (16, 0)
    assert found.history[1].sizes == (15, 1)  # the client that was fitted worst begins


@pytest.mark.parametrize(
    ("seed", "participation"),
    [(1, 9), pytest.param(0, 16, marks=pytest.mark.slow), pytest.param(2, 5, marks=pytest.mark.slow)],
)
def test_agrees_with_what_is_said_of_it(seed, participation):
    data, rounds = population(seed), 12
    # three models fit nobody, so that three clients begin at once, or as many as take part
    start = np.concatenate([one_for_all(data), np.full((2, 5), [[90.0], [-90.0]])]).astype(np.float32)
    found = ct.IFCA(k=4, rounds=rounds, init=start, empty="revive", participation=participation).fit(
        data.train, LEARNER, seed=seed
    )
    tokens = keys.tokens(data.train.ids)
    drawn = [keys.participants(seed, t, tokens, participation) for t in range(rounds)]
    thetas, clusters, told = ifca_with_parts(
        clients_of(data), start.astype(float), 0.05, 5, drawn, revive=True
    )
    np.testing.assert_array_equal(found.history.assignments(), clusters)
    np.testing.assert_allclose(stacked.to_matrix(found.models), thetas, rtol=1e-3, atol=1e-4)
    assert (clusters[0][clusters[0] >= 0] == 0).all() and len(set(clusters[-1])) == 4
    assert told[1].any()  # some of those that were told take part in the next round
    assert [log.losses for log in found.history.logs] == (4 * (participation - told.sum(axis=1))).tolist()


K, CLIENTS, ASKED = 4, 7, 5


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32 - 1))
def test_each_empty_cluster_gets_a_client_of_its_own(seed):
    rng = np.random.default_rng(seed)
    assignment = rng.integers(-1, rng.integers(1, K + 1), CLIENTS)  # so that often some clusters are empty
    asked = rng.permutation(CLIENTS)[:ASKED]
    answered = (assignment[asked] >= 0) & (rng.random(ASKED) < 0.8)
    loss = rng.integers(0, 6, ASKED).astype(np.float32)  # some of them equal
    models = jnp.arange(K) * 10.0
    asked_and_answered = jnp.asarray(asked), jnp.asarray(answered)
    cluster, weight = jnp.asarray(assignment[asked]), jnp.ones(len(asked))
    answers = Answers(*asked_and_answered, Loss(jnp.asarray(loss)), cluster, weight, None, None)
    new, told = jax.jit(revived)(models, jnp.asarray(assignment), answers)
    sizes = np.bincount(assignment[assignment >= 0], minlength=K)
    empty = np.flatnonzero(sizes == 0)
    donors = [i for i, client in enumerate(asked) if answered[i] and sizes[assignment[client]] > 1]
    worst = sorted(donors, key=lambda i: (-loss[i], i))
    wanted_told, wanted = np.full(CLIENTS, -1), np.asarray(models).copy()
    for j, i in zip(empty, worst, strict=False):
        wanted_told[asked[i]] = j
        wanted[j] = 10.0 * assignment[asked[i]]
    np.testing.assert_array_equal(told, wanted_told)
    np.testing.assert_array_equal(new, wanted)
