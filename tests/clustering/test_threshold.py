"""Where to cut: a number, a share of all pairs, or the gap between near and far clients."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import graph, threshold
from coterie.errors import SettingError

MANY = settings(max_examples=100, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


def euclidean(points):
    return np.linalg.norm(points[:, None] - points[None], axis=2)


def in_groups(sizes, near, far, seed=0):
    """Distances drawn from the range `near` within groups and from the range `far` between them."""
    truth, rng = np.repeat(np.arange(len(sizes)), sizes), np.random.default_rng(seed)
    within = truth[:, None] == truth[None, :]
    drawn = np.triu(np.where(within, rng.uniform(*near, within.shape), rng.uniform(*far, within.shape)), 1)
    return drawn + drawn.T, truth


def groups(distances, least=2):
    """The groups that an automatic threshold leads to, and how it was chosen."""
    cut = threshold.choose("auto", distances, least)
    return graph.components(distances, cut.threshold), cut


# -- automatic --------------------------------------------------------------------------------------------


@given(SEEDS, st.lists(st.integers(3, 9), min_size=2, max_size=6), st.integers(1, 3), st.integers(-20, 20))
@MANY
def test_a_gap_is_found_whatever_the_sizes_and_the_scale(seed, sizes, least, power):
    """Near ones are from 1 to 2 apart, far ones from 10 to 20: the longest leap is that from 2 to 10.

    Lengths from 1 to 2 have a standard deviation of at most 1/2. So for 6 clients or more a leap is a gap if
    it is longer than (2.5 + 40 / 6) / 2 < 5.
    """
    scale = 10.0**power
    distances, truth = in_groups(sizes, (scale, 2 * scale), (10 * scale, 20 * scale), seed)
    found, cut = groups(distances, least)
    assert found.tolist() == truth.tolist()
    low, high = cut.gap
    assert low <= 2 * scale < cut.threshold < 10 * scale <= high
    assert cut.threshold == pytest.approx((low + high) / 2)


@given(SEEDS, st.integers(2, 10), st.integers(-20, 20))
@MANY
def test_it_grows_with_the_distances(seed, dim, power):
    points = np.random.default_rng(seed).standard_normal((12, dim))
    points[:5] += 3  # which may or may not be a gap
    scale = 2.0**power
    plain, scaled = (threshold.choose("auto", euclidean(points) * by, 2) for by in (1, scale))
    assert scaled.threshold == pytest.approx(scale * plain.threshold, rel=1e-6)
    assert (scaled.gap is None) == (plain.gap is None)


@given(SEEDS, st.integers(0, 3))
@MANY
def test_it_does_not_depend_on_the_order_of_the_clients(seed, apart):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((14, 4))
    points[:5] += 3 * apart
    order = rng.permutation(14)
    one, other = (threshold.choose("auto", euclidean(p), 2) for p in (points, points[order]))
    assert one.threshold == pytest.approx(other.threshold, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 10, 100])
@pytest.mark.parametrize("clients", [10, 20, 50])
def test_clients_that_are_all_alike_are_one_group(clients, dim):
    """A gap is seen at most twice in 100 draws; see the comment at the bound."""
    rng = np.random.default_rng([clients, dim])
    seen = 0
    for _ in range(100):
        found, cut = groups(euclidean(rng.standard_normal((clients, dim))))
        if cut.gap is None:
            assert (found == 0).all() and "no visible gap" in cut.reason
        else:
            seen += 1
    assert seen <= 2


@pytest.mark.parametrize("dim", [2, 5, 30])
@pytest.mark.parametrize("sizes", [(10, 10), (3, 30), (4, 6, 15), (5,) * 6])
def test_clouds_of_clients_are_told_apart(sizes, dim):
    # so that the bound above is no tighter than it has to be
    right = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, dim])
        centres = rng.standard_normal((len(sizes), dim))
        while np.sort(euclidean(centres)[np.triu_indices(len(sizes), 1)])[0] < 1:
            centres = rng.standard_normal((len(sizes), dim))
        truth = np.repeat(np.arange(len(sizes)), sizes)
        points = 12 * np.sqrt(dim) * centres[truth] + rng.standard_normal((len(truth), dim))
        right += groups(euclidean(points))[0].tolist() == truth.tolist()
    assert right >= 18


def test_groups_at_very_unequal_distances_are_all_found():
    for seed in range(20):
        distances, truth = in_groups([6, 5, 4], (0.3, 0.4), (8, 9), seed)
        nearer = np.isin(truth, [0, 1])
        between = nearer[:, None] & nearer[None, :] & (truth[:, None] != truth[None, :])
        distances[between] = 2
        found, cut = groups(distances)
        assert found.tolist() == truth.tolist()
        assert cut.gap[0] <= 0.4 and cut.gap[1] == 2


def test_an_outlier_neither_hides_a_gap_nor_makes_one():
    for seed in range(20):
        distances, truth = in_groups([6, 5, 1], (0.3, 0.4), (2, 2.2), seed)
        distances[-1, :-1] = distances[:-1, -1] = 100
        found, cut = groups(distances)
        assert found.tolist() == truth.tolist() and cut.gap[1] < 3
        alone = np.ix_(truth != 1, truth != 1)  # one group and the outlier
        found, cut = groups(distances[alone])
        assert cut.gap is None and (found == 0).all()


def test_a_client_of_which_nothing_is_known_changes_nothing():
    distances, truth = in_groups([4, 5], (1, 2), (20, 21))
    known = threshold.choose("auto", distances, 2)
    more = np.full((11, 11), np.nan)
    places = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10])
    more[np.ix_(places, places)] = distances
    cut = threshold.choose("auto", more, 2)
    assert (cut.threshold, cut.gap, cut.reason) == (known.threshold, known.gap, known.reason)
    assert (
        graph.components(more, cut.threshold, np.isin(range(11), places))[places].tolist() == truth.tolist()
    )
    for share in ("30%", 7.0):
        assert threshold.choose(share, more, 2) == threshold.choose(share, distances, 2)
    # a distance that is infinite is as good as unknown
    more[0, places] = more[places, 0] = np.inf
    assert threshold.choose("auto", more, 2).threshold == known.threshold


def test_few_clients_of_many_are_judged_as_few_clients():
    # of few clients that are all alike, some leap far by chance
    rng = np.random.default_rng(0)
    leaps = 0
    for _ in range(100):
        distances = np.full((60, 60), np.nan)
        points = rng.standard_normal((8, 2))
        points[:4] += 2
        distances[:8, :8] = euclidean(points)
        alone = threshold.choose("auto", distances[:8, :8], 2)
        assert threshold.choose("auto", distances, 2) == alone
        leaps += alone.gap is not None
    assert 0 < leaps < 100


def test_groups_too_small_to_be_clusters_make_no_gap():
    distances, truth = in_groups([3, 3, 3], (1, 2), (20, 21))
    for least, seen in ((1, True), (2, True), (3, True), (4, False)):
        found, cut = groups(distances, least)
        assert (cut.gap is not None) == seen
        assert found.tolist() == (truth.tolist() if seen else [0] * 9)
    # most clients must be in groups that are large enough
    many_alone, _ = in_groups([3, 3, 1, 1, 1], (1, 2), (20, 21))
    few_alone, _ = in_groups([3, 3, 1, 1], (1, 2), (20, 21))
    assert groups(many_alone)[1].gap is None and groups(few_alone)[1].gap is not None


def test_clients_that_are_alike_to_the_last_digit_are_one_group():
    for value in (0.0, 3.0):
        distances = np.full((6, 6), value)
        found, cut = groups(distances)
        assert (found == 0).all() and cut.gap is None and cut.threshold == value
    twins, truth = in_groups([3, 3], (0, 0), (5, 5))
    found, cut = groups(twins)
    assert found.tolist() == truth.tolist() and cut.gap == (0, 5)


def test_two_clients_are_one_group():
    for least in (1, 2):
        assert groups(np.array([[0, 3.0], [3.0, 0]]), least)[0].tolist() == [0, 0]


# -- given ------------------------------------------------------------------------------------------------


def test_a_number_is_taken_as_it_is():
    distances, _ = in_groups([4, 5], (1, 2), (20, 21))
    for given_ in (0, 3, 0.77, np.float32(2.5)):
        cut = threshold.choose(given_, distances, 2)
        assert cut == threshold.Cut(float(given_), "the threshold was given")


@given(SEEDS, st.integers(3, 12), st.integers(1, 100))
@MANY
def test_a_share_of_the_pairs_is_within_the_threshold(seed, n, percent):
    points = np.random.default_rng(seed).standard_normal((n, 3))
    distances = euclidean(points)
    cut = threshold.choose(f"{percent}%", distances, 2)
    pairs = [distances[i, j] for i in range(n) for j in range(i)]
    within = sum(pair <= cut.threshold * (1 + 1e-9) for pair in pairs)
    assert abs(within - percent / 100 * len(pairs)) <= 1
    assert f"{percent}%" in cut.reason and cut.gap is None


def test_the_whole_is_the_longest_distance():
    distances, _ = in_groups([4, 5], (1, 2), (20, 21))
    assert threshold.choose("100%", distances, 2).threshold == distances.max()


@pytest.mark.parametrize("good", ["auto", "25%", "0.5%", "100%", 0, 1, 0.77, np.float32(0.5), np.int64(3)])
def test_what_can_be_a_threshold(good):
    threshold.check(good)


@pytest.mark.parametrize(
    "bad",
    ["", "many", "%", "0%", "101%", "-5%", "nan%", "1", -1, -0.1, np.nan, np.inf, True, None, [1.0]],
)
def test_what_cannot(bad):
    with pytest.raises(SettingError, match=r"threshold must be 'auto', a distance, or a share of all pairs"):
        threshold.check(bad)


@pytest.mark.parametrize("setting", ["auto", "25%", 1.0])
def test_without_two_clients_there_is_nothing_to_compare(setting):
    nothing = np.full((3, 3), np.nan)
    nothing[1, 1] = 0
    with pytest.raises(SettingError, match="fewer than two of them answered"):
        threshold.choose(setting, nothing, 2)


# -- what is told of it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["auto", "25%", 3, np.float32(0.5)])
@pytest.mark.parametrize(
    "distances",
    [
        in_groups([4, 5], (1, 2), (20, 21))[0],
        in_groups([4, 5], (1, 2), (20, 21))[0].astype(np.float32),
        euclidean(np.random.default_rng(0).standard_normal((7, 2))),
        np.zeros((3, 3)),
        np.full((2, 2), 0.3),
    ],
)
def test_details_are_plain_values_that_count_every_pair(distances, setting):
    distances = distances.copy()
    if len(distances) > 3:
        distances[3] = distances[:, 3] = np.nan
    told = threshold.details(threshold.choose(setting, distances, 2), distances)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    known = len(distances) - (len(distances) > 3)
    edges, counts = told["histogram"]["edges"], told["histogram"]["counts"]
    assert sum(counts) == known * (known - 1) // 2
    assert len(edges) == len(counts) + 1 and edges == sorted(edges)
    pairs = threshold.of_pairs(distances)
    assert edges[0] <= pairs.min() and pairs.max() <= edges[-1]
    assert told["threshold"] >= 0 and told["reason"]
    if told["gap"] is not None:
        # nothing is in the gap, as far as a tree of the nearest can tell: the threshold is
        low, high = told["gap"]
        assert low < told["threshold"] < high


def test_only_pairs_are_counted_and_each_of_them_once():
    distances = np.array([[9.0, 1, 2], [1, 9, 3], [2, 3, 9]])  # the diagonal is nobody's distance
    assert threshold.of_pairs(distances).tolist() == [1, 2, 3]
