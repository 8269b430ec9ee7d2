"""Metrics against brute force over permutations."""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import adjusted_rand_score

from coterie.errors import DataError
from coterie.evaluate import metrics


def labels(low, high):
    """Labels of the same clients, found and true, of up to that many clusters."""
    clients = st.integers(1, 12)
    return clients.flatmap(
        lambda n: st.tuples(
            arrays(int, n, elements=st.integers(low, high - 1)),
            arrays(int, n, elements=st.integers(0, high - 1)),
        )
    )


def fewest_wrong(found, truth, k=4):
    """The smallest fraction of wrong clients over all ways to name the found clusters."""
    named = [np.array([names[f] if f >= 0 else -1 for f in found]) for names in permutations(range(k))]
    return min(float(np.mean(labels != truth)) for labels in named)


@given(labels(-1, 4))
@example((np.array([-1, -1]), np.array([0, 1])))
@example((np.array([0, 1, 2, 3]), np.array([0, 0, 0, 0])))
@example((np.array([0, 0, 0, 0]), np.array([0, 1, 2, 3])))
@example((np.array([0, 0, -1, 1]), np.array([1, 1, 0, 0])))  # without a cluster is wrong
@settings(max_examples=150, deadline=None)
def test_misclustering_is_the_best_over_all_namings(pair):
    found, truth = pair
    assert metrics.misclustering(found, truth) == pytest.approx(fewest_wrong(found, truth))


@given(labels(0, 4), st.permutations(range(4)))
@settings(max_examples=50, deadline=None)
def test_names_of_clusters_do_not_matter(pair, names):
    found, truth = pair
    renamed = np.array(names)[found]
    assert metrics.misclustering(renamed, truth) == metrics.misclustering(found, truth)
    assert metrics.adjusted_rand(renamed, truth) == pytest.approx(metrics.adjusted_rand(found, truth))
    assert metrics.misclustering(renamed, found) == 0


def impurities(found, truth):
    """Definition 3.1 of the SR-FCA paper, client by client."""
    in_clusters = [i for i in range(len(found)) if found[i] >= 0]
    impure = 0
    for i in in_clusters:
        together = [truth[j] for j in in_clusters if found[j] == found[i]]
        label = [c for c in set(together) if together.count(c) / len(together) > 1 / 2]
        impure += truth[i] not in label
    return impure / len(in_clusters) if in_clusters else 0


@given(labels(-1, 4))
@example((np.array([-1, -1]), np.array([0, 1])))
@example((np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1])))  # half is no majority
@example((np.array([0, 0, 0, 0, 0]), np.array([0, 0, 1, 2, 3])))  # nor is the largest part
@settings(max_examples=150, deadline=None)
def test_impurity_is_that_of_the_definition(pair):
    assert metrics.impurity(*pair) == pytest.approx(impurities(*pair))


@given(labels(-1, 4), st.permutations(range(4)), st.permutations(range(4)))
@settings(max_examples=100, deadline=None)
def test_impurity_does_not_depend_on_names_and_is_nothing_for_pieces_of_true_clusters(pair, names, others):
    found, truth = pair
    renamed = np.where(found >= 0, np.array(names)[found], -1), np.array(others)[truth]
    assert metrics.impurity(*renamed) == pytest.approx(metrics.impurity(found, truth))
    assert 0 <= metrics.impurity(found, truth) <= 1
    assert metrics.impurity(truth, truth) == 0
    pieces = np.where(found >= 0, 4 * truth + found, -1)
    assert metrics.impurity(pieces, truth) == 0


def test_impurity_of_figure_2():
    """Two clusters of one kind, and one of another with one client of the first in it."""
    assert metrics.impurity([0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1, 1, 0]) == pytest.approx(1 / 9)
    assert metrics.impurity([0, 0, -1, 1], [1, 1, 0, 0]) == 0


@given(labels(0, 4))
@settings(max_examples=50, deadline=None)
def test_adjusted_rand_is_symmetric_and_one_for_the_same_partition(pair):
    found, truth = pair
    assert metrics.adjusted_rand(found, found) == 1
    assert metrics.adjusted_rand(found, truth) == pytest.approx(metrics.adjusted_rand(truth, found))
    assert metrics.adjusted_rand(found, truth) == pytest.approx(adjusted_rand_score(truth, found))
    assert -1 <= metrics.adjusted_rand(found, truth) <= 1


@pytest.mark.parametrize("metric", [metrics.misclustering, metrics.impurity, metrics.adjusted_rand])
@pytest.mark.parametrize(
    "found, truth, sentence",
    [
        ([0, 1], [0, 1, 1], r"must be equally long; their shapes are \(2,\), \(3,\)"),
        ([[0, 1]], [[0, 1]], r"their shapes are \(1, 2\), \(1, 2\)"),
        (0, 0, r"their shapes are \(\), \(\)"),
        ([], [], "at least one"),
        ([0.0, 1.0], [0, 1], "labels must be whole numbers"),
        ([0, 1], [0.5, 1], "labels must be whole numbers"),
        (["a", "b"], [0, 1], "labels must be whole numbers"),
        ([0, 1], [-1, 0], "the true ones 0 or more"),
    ],
)
def test_labels_that_cannot_be_compared_are_refused(metric, found, truth, sentence):
    with pytest.raises(DataError, match=sentence):
        metric(found, truth)


def smallest_largest(cost):
    k = len(cost)
    return min(max(cost[j, p[j]] for j in range(k)) for p in permutations(range(k)))


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_parameter_distance_is_the_smallest_largest_distance(seed):
    rng = np.random.default_rng(seed)
    found, true = rng.standard_normal((2, 4, 3))
    cost = np.array([[np.sqrt(((a - b) ** 2).sum()) for b in true] for a in found])
    assert metrics.parameter_distance(found, true) == pytest.approx(smallest_largest(cost), rel=1e-5)


def test_the_largest_distance_counts_not_the_sum():
    # one matching has distances 4 and 4, the other 0 and 7: the smaller sum is the larger maximum
    far = [6.125, np.sqrt(49 - 6.125**2)]
    found, true = np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([[4.0, 0.0], far])
    assert metrics.parameter_distance(found, true) == pytest.approx(4, rel=1e-5)


def test_models_may_be_a_pytree_or_a_matrix():
    found = {"b": jnp.array([1.0, 2.0]), "w": jnp.arange(12.0).reshape(2, 2, 3)}
    flat = np.array([[1.0, *range(6)], [2.0, *range(6, 12)]])
    assert metrics.parameter_distance(found, flat) == 0
    assert metrics.parameter_distance(flat[::-1], found) == 0
    assert metrics.parameter_distance(found, flat + 1) == pytest.approx(np.sqrt(7))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5), (1, 4)])
def test_sets_of_models_that_differ_in_shape_are_refused(shape):
    with pytest.raises(DataError, match=r"have shapes \(2, 4\) and \(\d, \d\); they must agree"):
        metrics.parameter_distance(np.zeros((2, 4)), np.zeros(shape))
