"""Connected components, RECLUSTER and MERGE against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import references_srfca as reference

from coterie.algorithms import graph

MANY = settings(max_examples=200, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def distances_of(seed, n, unknown=0.0):
    """Symmetric distances of a few different values, some of them not known."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.integers(0, 8, (n, n)).astype(float), 1)
    upper[rng.random((n, n)) < unknown] = np.nan
    return upper + upper.T


def labels_of(seed, n, groups):
    """Groups 0, 1, ... in the order of their first members, and -1 for some."""
    given = np.random.default_rng(seed).integers(-1, groups, n)
    names = [g for g in dict.fromkeys(given.tolist()) if g >= 0]
    return np.array([names.index(g) if g >= 0 else -1 for g in given.tolist()], int)


def partition(labels):
    """Who is with whom, whatever the numbers."""
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist()) - {-1}}


def assert_numbered_by_first_members(labels):
    first = [np.flatnonzero(labels == label)[0] for label in range(labels.max() + 1)]
    assert first == sorted(first)


@given(SEEDS, st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.9]), st.integers(-1, 8), st.booleans())
@MANY
def test_components_are_what_a_breadth_first_search_finds(seed, n, unknown, threshold, some):
    distances = distances_of(seed, n, unknown)
    inside = np.random.default_rng(seed + 1).random(n) < 0.7 if some else None
    nodes = None if inside is None else np.flatnonzero(inside).tolist()
    found = graph.components(distances, threshold, inside)
    assert found.tolist() == reference.components(distances, threshold, nodes)
    assert_numbered_by_first_members(found)
    # everybody who is in the graph is in exactly one component, and nobody else is
    assert ((found >= 0) == (np.ones(n, bool) if inside is None else inside)).all()


def test_the_threshold_itself_is_near_and_an_unknown_distance_is_not():
    nan = np.nan
    chain = np.array([[0, 2, 9, nan], [2, 0, 2, nan], [9, 2, 0, nan], [nan, nan, nan, nan]])
    assert graph.components(chain, 2).tolist() == [0, 0, 0, 1]  # 0 and 2 are together through 1
    assert graph.components(chain, 1.999).tolist() == [0, 1, 2, 3]
    assert graph.components(chain, np.inf).tolist() == [0, 0, 0, 1]
    alone = graph.components(chain, 2, np.array([True, False, True, True]))
    assert alone.tolist() == [0, -1, 1, 2]  # 1 is not there to connect them


@given(SEEDS, st.integers(2, 12), st.integers(0, 8))
@MANY
def test_components_do_not_depend_on_the_order_of_the_nodes(seed, n, threshold):
    distances, order = distances_of(seed, n, 0.2), np.random.default_rng(seed + 1).permutation(n)
    moved = graph.components(distances[np.ix_(order, order)], threshold)
    back = np.empty(n, int)
    back[order] = moved
    assert partition(back) == partition(graph.components(distances, threshold))


@given(SEEDS, st.integers(1, 15), st.integers(1, 5), st.integers(1, 6))
@MANY
def test_small_groups_are_dropped_whole(seed, n, groups, least):
    labels = labels_of(seed, n, groups)
    found = graph.of_size(labels, least)
    assert found.tolist() == reference.of_size(labels.tolist(), least)
    assert partition(found) == {group for group in partition(labels) if len(group) >= least}
    assert_numbered_by_first_members(found)


# -- RECLUSTER --------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 12), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.9]))
@MANY
def test_every_client_joins_the_nearest_cluster(seed, n, k, unknown):
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, 6, (n, k)).astype(float)
    distances[rng.random((n, k)) < unknown] = np.nan
    before = rng.integers(-1, k, n)
    now = graph.reclustered(distances, before)
    assert now.tolist() == reference.recluster(distances, before.tolist())
    # who knows how far it is from any cluster is in one
    assert (now[~np.isnan(distances).all(axis=1)] >= 0).all()


def test_ties_go_to_the_first_and_who_knows_nothing_stays():
    nan = np.nan
    distances = np.array([[2, 1, 1], [nan, nan, nan], [nan, nan, nan], [nan, 5, 4], [np.inf, nan, 9]])
    before = np.array([2, 1, -1, 0, 0])
    assert graph.reclustered(distances, before).tolist() == [1, 1, -1, 2, 2]


# -- MERGE ------------------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 6), st.integers(1, 15), st.integers(0, 8), st.integers(1, 5))
@MANY
def test_clusters_within_the_threshold_become_one(seed, k, n, threshold, least):
    apart = distances_of(seed, k, 0.2)
    assignment = np.random.default_rng(seed + 1).integers(-1, k, n)
    assignment[0] = k - 1  # somebody is somewhere
    home = graph.merged(apart, assignment, threshold, least)
    assert home.tolist() == reference.merge(apart, assignment.tolist(), threshold, least)
    assert set(home.tolist()) - {-1} == set(range(home.max() + 1)) != set()
    sizes = np.bincount(assignment[assignment >= 0], minlength=k)
    assert (home[sizes == 0] == -1).all()
    of_each = np.bincount(home[assignment[assignment >= 0]] + 1, minlength=home.max() + 2)[1:]
    lost = int(sizes.sum() - of_each.sum())
    if (of_each >= least).any():
        assert (of_each >= least).all()  # and of those that are lost there are too few in any one place
    else:
        assert lost == 0


@given(SEEDS, st.integers(2, 6), st.integers(2, 12), st.integers(0, 8), st.integers(1, 4))
@MANY
def test_merging_does_not_depend_on_the_numbers_of_the_clusters(seed, k, n, threshold, least):
    apart, rng = distances_of(seed, k), np.random.default_rng(seed + 1)
    assignment, order = rng.integers(0, k, n), rng.permutation(k)  # cluster order[j] is number j now
    number = np.argsort(order)
    home = graph.merged(apart, assignment, threshold, least)
    other = graph.merged(apart[np.ix_(order, order)], number[assignment], threshold, least)
    assert partition(home[assignment]) == partition(other[number[assignment]])
    assert ((home == -1) == (other[number] == -1)).all()


@pytest.mark.parametrize(
    ("assignment", "least", "home"),
    [
        ([0, 0, 1, 1, 2, 2, 3, 3], 2, [0, 0, 1, 2]),
        ([0, 1, 2, 2, 3, 3], 2, [0, 0, 1, 2]),  # two of one client each are two together
        ([0, 1, 2, 2, 3], 2, [0, 0, 1, -1]),  # one alone is too small
        ([0, 0, 2, 2, 2, 3, 3], 2, [0, -1, 1, 2]),  # a cluster that nobody is in
        ([0, 0, 2, 2, 2, 2, 3, 3], 4, [-1, -1, 0, -1]),
        ([0, 1, 2, 3], 3, [0, 0, 1, 2]),  # all are too small: all are kept
        ([-1, -1, 2, 2], 2, [-1, -1, 0, -1]),
    ],
)
def test_small_and_empty_clusters_are_dropped(assignment, least, home):
    apart = np.full((4, 4), 5.0)
    apart[0, 1] = apart[1, 0] = 1
    assert graph.merged(apart, np.array(assignment), 1.0, least).tolist() == home


def test_an_empty_cluster_merges_nobody():
    # 0 and 2 are near 1 alone, and nobody is in 1 any more
    apart = np.array([[0.0, 1, 9], [1, 0, 1], [9, 1, 0]])
    assert graph.merged(apart, np.array([0, 0, 2, 2]), 1.0, 1).tolist() == [0, -1, 1]
    assert graph.merged(apart, np.array([0, 1, 2, 2]), 1.0, 1).tolist() == [0, 0, 0]
