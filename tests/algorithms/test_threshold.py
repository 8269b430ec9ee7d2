"""Where to cut: a number, a share of all pairs, or the gap between near and far clients."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.algorithms import graph, threshold
from coterie.errors import SettingError
from coterie.papers.srfca.populations import POPULATIONS

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
    """Near ones are from 1 to 1.25 apart, far ones from 5 to 10.

    No leap between near ones is longer than 0.25, and one is a gap only if it is longer than 2.5 tenths of
    the mean. Their standard deviation is at most 1/8: so for 6 clients or more the leap from 1.25 to 5 is a
    gap, being longer than (2.5 + 60 / 6) / 8 < 1.6.
    """
    scale = 10.0**power
    distances, truth = in_groups(sizes, (scale, 1.25 * scale), (5 * scale, 10 * scale), seed)
    found, cut = groups(distances, least)
    assert found.tolist() == truth.tolist()
    low, high = cut.gap
    assert low <= 1.25 * scale < cut.threshold < 5 * scale <= high
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


@pytest.mark.parametrize(
    ("clients", "dim"),
    [
        (10, 2),
        (20, 100),
        *[
            pytest.param(clients, dim, marks=pytest.mark.slow)
            for clients, dim in [(10, 10), (10, 100), (20, 2), (20, 10), (50, 2), (50, 10), (50, 100)]
        ],
    ],
)
def test_clients_that_are_all_alike_seldom_have_a_gap(clients, dim):
    """A gap is seen at most 4 times in 100 draws; see the comment at the bound."""
    rng = np.random.default_rng([clients, dim])
    seen = 0
    for _ in range(100):
        _, cut = groups(euclidean(rng.standard_normal((clients, dim))))
        assert ("no visible gap" in cut.reason) == (cut.gap is None)
        seen += cut.gap is not None
    assert seen <= 4


@pytest.mark.parametrize("dim", [2, pytest.param(5, marks=pytest.mark.slow), 30])
@pytest.mark.parametrize("sizes", [(3, 30), (4, 6, 15), pytest.param((5,) * 6, marks=pytest.mark.slow)])
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


def nested(near, between, far, seed):
    """Two groups from `between` apart, and a third that is far from both, all of clients that are `near`."""
    distances, truth = in_groups([6, 5, 4], (0.75 * near, near), (far, 1.1 * far), seed)
    nearer = np.isin(truth, [0, 1])
    distances[nearer[:, None] & nearer[None, :] & (truth[:, None] != truth[None, :])] = between
    return distances, truth


@pytest.mark.parametrize(
    ("near", "between", "far"), [(0.4, 2, 8), (0.4, 2, 12), (0.5, 2, 8), (0.4, 2, 100), (0.4, 2, 2.5)]
)
def test_of_nested_groups_the_smallest_are_found(near, between, far):
    # whichever of the two leaps is the larger one
    for seed in range(20):
        distances, truth = nested(near, between, far, seed)
        found, cut = groups(distances)
        assert found.tolist() == truth.tolist()
        assert cut.gap[0] <= near and cut.gap[1] == between


def test_an_outlier_neither_hides_a_gap_nor_makes_one():
    for seed in range(20):
        distances, truth = in_groups([6, 5, 1], (0.3, 0.4), (2, 2.2), seed)
        distances[-1, :-1] = distances[:-1, -1] = 100
        found, cut = groups(distances)
        assert found.tolist() == truth.tolist() and cut.gap[1] < 3
        alone = np.ix_(truth != 1, truth != 1)  # one group and the outlier
        found, cut = groups(distances[alone])
        assert cut.gap is None and found.tolist() == [0] * 6 + [1]


@pytest.mark.parametrize("alone", [1, 4, 8, 10])
def test_clients_that_are_near_nobody_hide_no_gap(alone):
    # up to as many of them as there are clients in groups
    for seed in range(20):
        distances, truth = in_groups([6, 4, *[1] * alone], (0.3, 0.4), (2, 4), seed)
        found, cut = groups(distances)
        assert found.tolist() == truth.tolist() and 0.4 < cut.threshold < 2


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
    distances, truth = in_groups([3, 3, 3], (1, 1.25), (20, 21))
    for least, seen in ((1, True), (2, True), (3, True), (4, False)):
        found, cut = groups(distances, least)
        assert (cut.gap is not None) == seen
        assert found.tolist() == (truth.tolist() if seen else [0] * 9)
    # half of the clients must be in groups that are large enough
    many_alone, _ = in_groups([3, 3, *[1] * 7], (1, 1.25), (20, 21))
    few_alone, _ = in_groups([3, 3, *[1] * 6], (1, 1.25), (20, 21))
    assert groups(many_alone)[1].gap is None and groups(few_alone)[1].gap is not None


# -- where there is no gap --------------------------------------------------------------------------------


def reach(distances, others):
    """How far each client is from the farthest of so many others that are the nearest to it."""
    return np.array([sorted(np.delete(row, i))[others - 1] for i, row in enumerate(distances)])


@pytest.mark.parametrize("least", [1, 2, 3, 4, 6])
def test_without_a_gap_everybody_but_outliers_has_others_near(least):
    others, outliers = max(2, least - 1), 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        points = rng.standard_normal((12, 2))
        points[:2] += 6 * (seed % 2)
        distances = euclidean(points)
        cut = threshold.choose("auto", distances, least)
        if cut.gap is not None:
            continue
        far = reach(distances, others)
        low, high = np.quantile(far, [0.25, 0.75])
        inside = far <= high + 3 * (high - low)
        assert cut.threshold == far[inside].max()
        who = "every client has" if inside.all() else f"all but {(~inside).sum()} of 12 clients have"
        assert cut.reason.endswith(f"is {cut.threshold:.4g}, within which {who} {others} others")
        outliers += not inside.all()
        # so that there are clusters that are large enough, with most clients in them
        clustered = graph.of_size(graph.components(distances, cut.threshold), least) >= 0
        assert clustered[inside].all() and inside.mean() >= 0.75
    assert outliers > 0


def test_where_little_is_known_fewer_others_are_asked_for():
    distances = np.full((4, 4), np.nan)
    distances[0, 1] = distances[1, 0] = 1
    distances[2, 3] = distances[3, 2] = 2
    cut = threshold.choose("auto", distances, 2)
    assert cut.threshold == 2 and cut.reason.endswith("within which every client has 1 other")


def refined(points, cut, refines=2):
    """SR-FCA on clients whose models are points: the model of a cluster is their mean, as it would be for
    regressions with equal and orthogonal inputs."""
    labels = graph.of_size(graph.components(euclidean(points), cut), 2)
    for _ in range(refines):
        models = np.stack([points[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
        now = graph.reclustered(np.linalg.norm(points[:, None] - models[None], axis=2), labels)
        labels = graph.merged(euclidean(models), now, cut, 2)[now]
    return labels


def mixture(k, clients, dim, apart, seed):
    """Points around k centres that are about `apart` from each other, each about 1 from its centre."""
    rng = np.random.default_rng(seed)
    truth = np.arange(clients) % k
    centres = apart / np.sqrt(2 * dim) * rng.standard_normal((k, dim))
    return centres[truth] + rng.standard_normal((clients, dim)) / np.sqrt(dim), truth


def exact(k, clients, dim, apart, draws=30):
    """How often the automatic threshold ends with the true clusters, and how often it saw no gap."""
    right = unseen = 0
    for seed in range(draws):
        points, truth = mixture(k, clients, dim, apart, seed)
        cut = threshold.choose("auto", euclidean(points), 2)
        found = refined(points, cut.threshold)
        right += len(set(found)) == k == len(set(zip(found, truth, strict=True)))
        unseen += cut.gap is None
    return right, unseen


@pytest.mark.parametrize("clients", [10, 20, *[pytest.param(n, marks=pytest.mark.slow) for n in (40, 100)]])
@pytest.mark.parametrize("dim", [3, pytest.param(10, marks=pytest.mark.slow), 50])
def test_merging_makes_one_cluster_of_clients_that_are_all_alike(clients, dim):
    right, unseen = exact(1, clients, dim, 0)
    assert right >= 27 and unseen >= 28


def test_merging_does_not_do_so_for_models_of_one_number():
    # near ones are then on the same side of the others, and so are the means of a few of them: a known limit
    assert exact(1, 40, 1, 0)[0] <= 20


@pytest.mark.parametrize(("k", "clients", "apart"), [(2, 12, 2), (2, 40, 2.5), (4, 24, 3)])
def test_groups_without_a_gap_are_told_apart(k, clients, apart):
    # the longest distance, within which all are one, would end with one cluster
    right, unseen = exact(k, clients, 20, apart)
    assert right >= 24 and unseen >= 5


def whole_runs(draw, learner, distance, seeds=4):
    """Of how many draws SR-FCA finds the true clusters, and on how many of them it saw no gap."""
    right = unseen = 0
    for seed in range(seeds):
        data = draw(seed)
        clients = ct.Simulation(data.train, batch=8)
        found = ct.SRFCA(rounds=12, distance=distance).fit(clients, learner, seed=seed)
        right += (
            found.k == data.truth.max() + 1 and ct.metrics.misclustering(found.assignment, data.truth) == 0
        )
        unseen += found.history.events[0].details["gap"] is None
    return right, unseen


@pytest.mark.slow
def test_sr_fca_finds_two_regressions_that_no_gap_parts():
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=10))
    right, unseen = whole_runs(lambda seed: POPULATIONS["equal"].make(20, seed), learner, "l2")
    assert right == 4 and unseen >= 1


@pytest.mark.slow
def test_sr_fca_takes_networks_on_digits_that_are_all_alike_for_one_cluster():
    def draw(seed):
        return ct.data.rotated_digits(clients=20, rotations=(0,), unseen=0, seed=seed)

    learner = ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(lr=0.3, steps=5))
    assert whole_runs(draw, learner, "cross_loss", seeds=2) == (2, 2)


def test_clients_that_are_alike_to_the_last_digit_are_one_group():
    for value in (0.0, 3.0):
        distances = np.full((6, 6), value)
        found, cut = groups(distances)
        assert (found == 0).all() and cut.gap is None and cut.threshold == value
    for least in (1, 2):  # and so are two clients, however far they are from each other
        assert groups(np.array([[0, 3.0], [3.0, 0]]), least)[0].tolist() == [0, 0]
    twins, truth = in_groups([3, 3], (0, 0), (5, 5))
    found, cut = groups(twins)
    assert found.tolist() == truth.tolist() and cut.gap == (0, 5)


# -- given ------------------------------------------------------------------------------------------------


def test_a_number_is_taken_as_it_is():
    distances, _ = in_groups([4, 5], (1, 2), (20, 21))
    for given_ in (0, 3, 0.77, np.float32(2.5)):
        cut = threshold.choose(given_, distances, 2)
        assert cut == threshold.Threshold(float(given_), "the threshold was given")


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
