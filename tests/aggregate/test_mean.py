"""Weighted means by cluster against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.aggregate import Mean, SoftSumming, Summing, Sums
from coterie.learn.task import Reply
from coterie.learn.tasks import WeighAndTrain

K, CLIENTS = 3, 7
ONE = {"a": jax.ShapeDtypeStruct((2, 2), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}

add = jax.jit(lambda sums, replies, answered: Summing(K).add(sums, replies, answered))
at_once_of = jax.jit(lambda replies, answered: Mean().sums(replies, answered, K))
mean = jax.jit(Sums.mean, static_argnames="divide_by")
descent = jax.jit(Sums.descent, static_argnames="divide_by")


def values(seed=0, clients=CLIENTS):
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((clients, 2, 2)), "b": rng.standard_normal(clients)}


def old():
    return jax.tree.map(lambda one: jnp.full((K, *one.shape), 77.0, one.dtype), ONE)


def replies(values, cluster, weight):
    as_32 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), values)
    return Reply(None, as_32, jnp.asarray(cluster, jnp.int32), jnp.asarray(weight, jnp.float32))


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
@example(0, np.zeros(CLIENTS, np.int32), np.ones(CLIENTS, np.float32), np.zeros(CLIENTS, bool))
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


def test_adding_in_batches_is_adding_all_at_once():
    each, cluster, weight = values(), np.array([0, 2, 2, 1, 0, 2, 1]), np.arange(1.0, 8)
    answered = np.array([True, True, False, True, True, True, True])
    sums, start = Summing(K).start(ONE), 0
    for part in (3, 4):
        rows = slice(start, start + part)
        batch = replies(jax.tree.map(lambda a: a[rows], each), cluster[rows], weight[rows])  # noqa: B023
        sums, start = add(sums, batch, jnp.asarray(answered[rows])), start + part
    assert_close(mean(sums, old()), expected(each, cluster, weight, answered))


def test_sums_are_kept_in_float32_and_means_in_the_type_of_the_model():
    half = jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    sums = Summing(2).start(half)
    assert sums.total.dtype == jnp.float32
    many = Reply(None, jnp.ones((1000, 2), jnp.bfloat16), jnp.zeros(1000, jnp.int32), jnp.ones(1000))
    sums = jax.jit(Summing(2).add)(sums, many, jnp.ones(1000, bool))
    assert sums.total[0].tolist() == [1000, 1000]  # a sum in bfloat16 would stop at 256
    got = mean(sums, jnp.full((2, 2), 5, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16 and got.tolist() == [[1, 1], [5, 5]]


# -- by what a sum is divided --------------------------------------------------------------------------------

ALL = 20  # clients there are, most of which take no part
CLUSTERS = arrays(np.int32, CLIENTS, elements=st.integers(0, K - 1))
WEIGHTS = arrays(np.float32, CLIENTS, elements=st.integers(1, 50))


def whole(divide_by, members, there, weight):
    """What the papers divide a cluster's sum by."""
    return {
        "cluster": sum(weight[i] for i in members),  # IFCA, line 15: sum over i in M_t of s_ij
        "participants": sum(weight[i] for i in there),  # FedX, line 9: w_i = n_i / N
        "clients": ALL,  # IFCA, line 14: m
    }[divide_by]


@pytest.mark.parametrize("divide_by", ["cluster", "participants", "clients"])
@given(st.integers(0, 10**6), CLUSTERS, WEIGHTS, arrays(bool, CLIENTS))
@settings(max_examples=25, deadline=None)
def test_sums_are_divided_as_the_papers_print_it(divide_by, seed, cluster, weight, answered):
    """Models: the mean over all that count, of whom those of other clusters keep a model as it is.

    Gradients: theta_j - gamma / W sum_i s_ij g_i, line 14 of IFCA.
    """
    weight = np.ones(CLIENTS, np.float32) if divide_by == "clients" else weight
    each, there = values(seed), np.flatnonzero(answered)
    sums = add(Summing(K).start(ONE), replies(each, cluster, weight), jnp.asarray(answered))
    models = mean(sums, old(), divide_by=divide_by, clients=ALL)
    stepped = descent(sums, old(), jnp.asarray(0.3), divide_by=divide_by, clients=ALL)
    for name, array in each.items():
        for j in range(K):
            members = [i for i in there if cluster[i] == j]
            if not members:
                assert (models[name][j] == 77).all() and (stepped[name][j] == 77).all()
                continue
            by = whole(divide_by, members, there, weight)
            moved = sum(weight[i] * (array[i] - 77.0) for i in members) / by
            np.testing.assert_allclose(models[name][j], 77.0 + moved, rtol=1e-5, atol=1e-5)
            down = sum(weight[i] * array[i] for i in members) / by
            np.testing.assert_allclose(stepped[name][j], 77.0 - 0.3 * down, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_model_that_was_lost_is_found_again(lost):
    """Nothing of the old model is left in a mean: nothing times infinity would be no number."""
    each, weight = values(), np.ones(CLIENTS)
    sums = add(Summing(K).start(ONE), replies(each, np.zeros(CLIENTS), weight), jnp.ones(CLIENTS, bool))
    gone = jax.tree.map(lambda a: jnp.full_like(a, lost), old())
    for divide_by in ("cluster", "participants"):
        after = mean(sums, gone, divide_by=divide_by, clients=ALL)
        np.testing.assert_allclose(after["a"][0], each["a"].mean(axis=0), rtol=1e-5, atol=1e-6)


# -- values that are no numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_value_that_is_no_number_spoils_its_own_cluster_only(name, junk):
    cluster, weight = np.array([0, 1, 2, 0, 1, 2, 0]), np.arange(1.0, 8)
    everybody, each = np.ones(CLIENTS, bool), values()
    wanted = expected(each, cluster, weight, everybody)
    each[name][1] = junk
    content = replies(each, cluster, weight)
    at_once = at_once_of(content, jnp.asarray(everybody))
    in_batches = Summing(K).start(ONE)
    for rows in (slice(0, 3), slice(3, 7)):  # the one that spoils it is in the first
        part = jax.tree.map(lambda a, rows=rows: a[rows], content)
        in_batches = add(in_batches, part, jnp.asarray(everybody[rows]))
    for sums in (at_once, in_batches):
        assert sums.weight.tolist() == [12, 7, 9]  # it took part
        stepped = descent(sums, old(), jnp.asarray(1.0), clients=ALL)
        for leaf, right in wanted.items():
            after, down = np.asarray(mean(sums, old())[leaf]), np.asarray(stepped[leaf])
            np.testing.assert_allclose(after[[0, 2]], right[[0, 2]], rtol=1e-5, atol=1e-5)
            assert np.isfinite(down[[0, 2]]).all()
            assert leaf != name or not np.isfinite([after[1], down[1]]).any()


def test_nor_does_a_soft_client_spoil_more_than_the_model_that_it_lost():
    rng = np.random.default_rng(0)
    value, labels = rng.standard_normal((CLIENTS, K, 2)), rng.dirichlet(np.ones(K), CLIENTS)
    broken = value.copy()
    broken[3, 1] = np.nan

    def summed(value):
        report = WeighAndTrain.Report(jnp.zeros(CLIENTS), jnp.asarray(labels, jnp.float32))
        content = Reply(report, jnp.asarray(value, jnp.float32), weight=jnp.ones(CLIENTS))
        start = SoftSumming(K).start(jax.ShapeDtypeStruct((K, 2), jnp.float32))
        return SoftSumming(K).add(start, content, jnp.ones(CLIENTS, bool))

    sums, right = summed(broken), summed(value)
    np.testing.assert_allclose(right.total, value.sum(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(right.weight, labels.sum(axis=0), rtol=1e-5)
    assert np.isnan(sums.total[1]).all()
    np.testing.assert_array_equal(sums.total[jnp.array([0, 2])], right.total[jnp.array([0, 2])])
