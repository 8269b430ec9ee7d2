"""Weighted means by cluster against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.aggregate import Summing, Sums
from coterie.learn.tasks import Reply

K, CLIENTS = 3, 7
ONE = {"a": jax.ShapeDtypeStruct((2, 2), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}

add = jax.jit(lambda sums, replies, answered: Summing(K).add(sums, replies, answered))
mean = jax.jit(Sums.mean)


def values(seed=0, clients=CLIENTS):
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((clients, 2, 2)), "b": rng.standard_normal(clients)}


def old():
    return jax.tree.map(lambda one: jnp.full((K, *one.shape), 77.0, one.dtype), ONE)


def replies(values, cluster, weight):
    as_32 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), values)
    return Reply({}, as_32, jnp.asarray(cluster, jnp.int32), jnp.asarray(weight, jnp.float32))


def expected(values, cluster, weight, answered):
    """Means by cluster, one client after another, in float64; the old model where nobody contributed."""
    result = {}
    for name, each in values.items():
        rows = []
        for j in range(K):
            mine = [i for i in range(len(cluster)) if cluster[i] == j and answered[i] and weight[i] > 0]
            total = sum((weight[i] * each[i] for i in mine), np.zeros(each.shape[1:]))
            rows.append(total / sum(weight[i] for i in mine) if mine else np.full(each.shape[1:], 77.0))
        result[name] = np.stack(rows)
    return result


def assert_close(got, wanted):
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-5, atol=1e-5)


@given(
    st.integers(0, 10**6),
    arrays(np.int32, CLIENTS, elements=st.integers(0, K - 1)),
    arrays(np.float32, CLIENTS, elements=st.integers(1, 50)),
    arrays(bool, CLIENTS),
)
@settings(max_examples=50, deadline=None)
def test_the_mean_of_a_cluster_weighs_those_who_answered(seed, cluster, weight, answered):
    each = values(seed)
    sums = add(Summing(K).start(ONE), replies(each, cluster, weight), jnp.asarray(answered))
    assert_close(mean(sums, old()), expected(each, cluster, weight, answered))
    for j in range(K):
        assert sums.weight[j] == weight[(cluster == j) & answered].sum()


def test_those_who_did_not_answer_may_hold_nan_and_infinity():
    each, cluster, weight = values(), np.array([0, 1, 2, 0, 1, 2, 0]), np.ones(CLIENTS)
    answered = np.array([True, False, True, True, False, True, False])
    wanted = expected(each, cluster, weight, answered)
    for i, junk in ((1, np.nan), (4, np.inf), (6, -np.inf)):
        each["a"][i] = each["b"][i] = weight[i] = junk
    sums = add(Summing(K).start(ONE), replies(each, cluster, weight), jnp.asarray(answered))
    assert sums.weight.tolist() == [2, 0, 2]
    assert_close(mean(sums, old()), wanted)


def test_an_empty_cluster_keeps_the_old_model():
    sums = add(
        Summing(K).start(ONE), replies(values(), np.zeros(CLIENTS), np.ones(CLIENTS)), jnp.ones(CLIENTS, bool)
    )
    got = mean(sums, old())
    assert (np.asarray(got["a"])[1:] == 77).all() and (np.asarray(got["b"])[1:] == 77).all()
    assert (np.asarray(got["a"])[0] != 77).all()


def test_nobody_answering_keeps_every_model():
    sums = add(
        Summing(K).start(ONE),
        replies(values(), np.zeros(CLIENTS), np.ones(CLIENTS)),
        jnp.zeros(CLIENTS, bool),
    )
    assert_close(mean(sums, old()), jax.tree.map(np.asarray, old()))


@pytest.mark.parametrize("parts", [[7], [1] * 7, [3, 4], [2, 2, 3]])
def test_adding_in_batches_is_adding_all_at_once(parts):
    each, cluster, weight = values(), np.array([0, 2, 2, 1, 0, 2, 1]), np.arange(1.0, 8)
    answered = np.array([True, True, False, True, True, True, True])
    sums, start = Summing(K).start(ONE), 0
    for part in parts:
        rows = slice(start, start + part)
        batch = replies(jax.tree.map(lambda a: a[rows], each), cluster[rows], weight[rows])  # noqa: B023
        sums, start = add(sums, batch, jnp.asarray(answered[rows])), start + part
    assert_close(mean(sums, old()), expected(each, cluster, weight, answered))


def test_sums_are_kept_in_float32_and_means_in_the_type_of_the_model():
    half = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    sums = Summing(2).start(half)
    assert sums.total.dtype == jnp.float32
    many = Reply({}, jnp.ones((1000, 2), jnp.bfloat16), jnp.zeros(1000, jnp.int32), jnp.ones(1000))
    sums = Summing(2).add(sums, many, jnp.ones(1000, bool))
    assert sums.total[0].tolist() == [1000, 1000]  # a sum in bfloat16 would stop at 256
    got = sums.mean(jnp.full((2, 2), 5, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16 and got.tolist() == [[1, 1], [5, 5]]
