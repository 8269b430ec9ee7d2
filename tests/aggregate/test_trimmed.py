"""Trimmed means and medians by cluster, against Definition 3.2 of the SR-FCA paper."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.references_srfca import trimmed_mean

from coterie.aggregate import Mean, Median, TrimmedMean
from coterie.errors import SettingError
from coterie.learn.task import Reply

K, CLIENTS = 3, 13
BETAS = [0.0, 0.15, 0.49]
JUNK = [1e30, -1e30, np.inf, -np.inf, np.nan]
FAST = settings(max_examples=30, deadline=None)


@partial(jax.jit, static_argnums=(0, 1))
def together(aggregator, k, replies, answered, old):
    return aggregator.sums(replies, answered, k).mean(old)


def values(seed, clients=CLIENTS):
    rng = np.random.default_rng(seed)
    # of a few values, so that some are equal
    return {"a": rng.integers(-4, 5, (clients, 2, 2)) / 2, "b": rng.standard_normal(clients)}


def got(aggregator, each, cluster, weight=None, answered=None, k=K):
    """The models that come of it; those of clusters that nobody contributed to are 77."""
    count = len(cluster)
    as_32 = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), each)
    weight = np.ones(count) if weight is None else weight
    replies = Reply(None, as_32, jnp.asarray(cluster, jnp.int32), jnp.asarray(weight, jnp.float32))
    answered = np.ones(count, bool) if answered is None else answered
    old = jax.tree.map(lambda a: jnp.full((k, *a.shape[1:]), 77.0), as_32)
    return jax.tree.map(np.asarray, together(aggregator, k, replies, jnp.asarray(answered), old))


def expected(one, each, cluster, weight=None, answered=None):
    """What `one(values, weights)` makes of each cluster's clients, in float64."""
    count = len(cluster)
    weight = np.ones(count) if weight is None else weight
    result = {}
    for name, array in each.items():
        rows = []
        for j in range(K):
            mine = [i for i in range(count) if cluster[i] == j and (answered is None or answered[i])]
            shape = array.shape[1:]
            if mine:
                rows.append(one(array[mine].reshape(len(mine), -1), weight[mine]).reshape(shape))
            else:
                rows.append(np.full(shape, 77.0))
        result[name] = np.stack(rows)
    return result


def assert_close(ours, theirs):
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5)


CLUSTERS = arrays(np.int32, CLIENTS, elements=st.integers(0, K - 1))
WEIGHTS = arrays(np.float32, CLIENTS, elements=st.integers(1, 50))
SEEDS = st.integers(0, 10**6)


@pytest.mark.parametrize("beta", BETAS)
@given(SEEDS, CLUSTERS, WEIGHTS, arrays(bool, CLIENTS))
@FAST
def test_it_is_definition_3_2_in_every_coordinate_of_every_cluster(beta, seed, cluster, weight, answered):
    each = values(seed)
    wanted = expected(lambda v, w: trimmed_mean(v, beta, w), each, cluster, weight, answered)
    for name in each:
        each[name][~answered] = np.nan
    weight[~answered] = np.nan
    assert_close(got(TrimmedMean(beta), each, cluster, weight, answered), wanted)


@given(SEEDS, CLUSTERS, arrays(bool, CLIENTS))
@FAST
def test_the_median_is_the_median_of_every_coordinate(seed, cluster, answered):
    each = values(seed)
    wanted = expected(lambda v, w: np.median(v, axis=0), each, cluster, None, answered)
    assert_close(got(Median(), each, cluster, None, answered), wanted)


def test_of_two_middle_values_each_counts_by_its_weight():
    each, weight = {"b": np.array([9.0, 1.0, 2.0, -5.0])}, np.array([7.0, 1.0, 3.0, 50.0])
    assert got(Median(), each, np.zeros(4), weight, k=1)["b"].tolist() == [(1 * 1 + 3 * 2) / 4]


# -- how many are left out --------------------------------------------------------------------------------


@given(st.integers(0, 4999), st.integers(0, 2000))
@settings(max_examples=300, deadline=None)
def test_the_fraction_is_taken_as_it_is_written_and_rounded_down(ten_thousandths, count):
    assert TrimmedMean(ten_thousandths / 10_000).out_of(count) == ten_thousandths * count // 10_000


def test_the_fraction_of_many_values_is_not_off_by_one():
    assert int(0.29 * 100) == 28  # what 64 bits make of it
    assert TrimmedMean(0.29).out_of(100) == 29


@pytest.mark.parametrize(("beta", "left"), [(0.15, range(1, 9)), (0.2092, range(2, 8)), (0.00098, range(10))])
def test_as_many_are_left_out_at_either_end(beta, left):
    # the authors' code drops 1 and 2, 2 and 3, 0 and 1 of ten
    ten = np.arange(10.0) ** 2
    order = np.random.default_rng(0).permutation(10)
    after = got(TrimmedMean(beta), {"b": ten[order]}, np.zeros(10), k=1)["b"]
    np.testing.assert_allclose(after, [ten[list(left)].mean()], rtol=1e-6)


def test_of_fewer_than_one_over_beta_it_is_the_plain_mean():
    for count, same in ((3, True), (4, False)):
        each, cluster = values(1, count), np.zeros(count)
        trimmed = got(TrimmedMean(0.25), each, cluster, k=1)["b"]
        assert (np.abs(trimmed - each["b"].mean()).max() < 1e-5) == same


@pytest.mark.parametrize("beta", [-0.1, 0.5, 0.7])
def test_no_more_than_half_can_be_left_out_at_either_end(beta):
    with pytest.raises(SettingError, match=r"at least 0 and below 0\.5, not"):
        TrimmedMean(beta)


# -- what must not matter ---------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregator", [TrimmedMean(0.15), Median()])
@given(SEEDS, CLUSTERS, WEIGHTS, st.permutations(range(CLIENTS)))
@FAST
def test_the_order_of_the_clients_does_not_matter(aggregator, seed, cluster, weight, order):
    each, order = values(seed), np.array(order)
    one = got(aggregator, each, cluster, weight)
    other = got(aggregator, jax.tree.map(lambda a: a[order], each), cluster[order], weight[order])
    assert_close(one, other)


@pytest.mark.parametrize("weight", [[1.0, 30.0, 2.0, 5.0], [30.0, 1.0, 2.0, 5.0]])
def test_of_equal_values_the_same_is_left_out_whoever_sent_it(weight):
    # one value is left out at either end: which of the two equal ones decides how much that value counts
    each = {"b": np.array([1.0, 1.0, 2.0, 3.0])}
    after = got(TrimmedMean(0.25), each, np.zeros(4), np.array(weight), k=1)["b"]
    np.testing.assert_allclose(after, [(30 * 1 + 2 * 2) / 32], rtol=1e-6)


def test_sums_are_kept_in_float32_and_means_in_the_type_of_the_model():
    many = Reply(None, jnp.ones((1000, 2), jnp.bfloat16), jnp.zeros(1000, jnp.int32), jnp.ones(1000))
    sums = jax.jit(lambda replies: TrimmedMean(0.1).sums(replies, jnp.ones(1000, bool), 2))(many)
    assert sums.total.dtype == jnp.float32
    after = sums.mean(jnp.full((2, 2), 5, jnp.bfloat16))
    assert after.dtype == jnp.bfloat16 and after.tolist() == [[1, 1], [5, 5]]


# -- what a few wrong clients cannot do -------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.15, 0.49])
@given(SEEDS, CLUSTERS, WEIGHTS, st.data())
@FAST
def test_a_few_wrong_values_cannot_leave_the_range_of_the_honest_ones(beta, seed, cluster, weight, data):
    """At most b = floor(beta J) are wrong and b go at either end.

    What is left is then at least as large as the smallest honest value, since of b + 1 values that are
    smaller than it, or it itself, one is honest; and so at the other end. Their mean is in between.
    """
    each = values(seed)
    wrong = np.zeros(CLIENTS, bool)
    for j in range(K):
        mine = np.flatnonzero(cluster == j)
        wrong[mine[: TrimmedMean(beta).out_of(len(mine))]] = True
    for i in np.flatnonzero(wrong):
        each["a"][i] = np.reshape(data.draw(st.lists(st.sampled_from(JUNK), min_size=4, max_size=4)), (2, 2))
        each["b"][i] = data.draw(st.sampled_from(JUNK))
    after = got(TrimmedMean(beta), each, cluster, weight)
    for j in set(cluster.tolist()):
        honest = (cluster == j) & ~wrong
        for name, array in each.items():
            low, high = array[honest].min(axis=0), array[honest].max(axis=0)
            assert (after[name][j] >= low - 1e-5).all() and (after[name][j] <= high + 1e-5).all()


@pytest.mark.parametrize("junk", JUNK)
def test_one_wrong_value_is_enough_to_ruin_a_plain_mean(junk):
    each, cluster = {"b": np.arange(10.0)}, np.zeros(10)
    each["b"][0] = junk
    plain = got(Mean(), each, cluster, k=1)["b"][0]
    assert not 1 <= plain <= 9
    assert 1 <= got(TrimmedMean(0.1), each, cluster, k=1)["b"][0] <= 9
    assert 1 <= got(Median(), each, cluster, k=1)["b"][0] <= 9


def test_one_wrong_value_too_many_can_go_anywhere():
    # so that the bound above means something
    each = {"b": np.r_[np.full(3, 1e9), np.arange(7.0)]}
    assert got(TrimmedMean(0.2), each, np.zeros(10), k=1)["b"][0] > 1e8


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("aggregator", [TrimmedMean(0.0), TrimmedMean(0.15), Median()])
def test_values_that_are_no_numbers_spoil_their_own_cluster_only(aggregator, junk):
    """All clients of one cluster send junk in one array: no trimming helps that one, and none need suffer."""
    each, cluster = values(3), np.arange(CLIENTS) % K
    wanted = got(aggregator, each, cluster)
    each["a"][cluster == 1] = junk
    after = got(aggregator, each, cluster)
    assert not np.isfinite(after["a"][1]).any()
    np.testing.assert_array_equal(after["a"][[0, 2]], wanted["a"][[0, 2]])
    np.testing.assert_array_equal(after["b"], wanted["b"])
