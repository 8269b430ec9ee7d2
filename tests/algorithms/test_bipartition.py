"""When clients part by more than noise: the automatic gamma of CFL, against slow versions and many draws."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.algorithms.bipartition import Bipartition, Rule, bipartition, cosines, explained

AUTO = Rule()


def noise(n, dim, seed, centred=True):
    """Updates of clients that are all alike, of a cluster at rest: nothing but noise, of unequal lengths."""
    rng = np.random.default_rng(seed)
    updates = rng.uniform(0.5, 2, (n, 1)) * rng.standard_normal((n, dim))
    return updates - updates.mean(axis=0) if centred else updates


def groups(k, n, dim, strength, seed):
    """Updates of k groups of clients, each with a direction of its own, in noise."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    own = strength * rng.standard_normal((k, dim))
    updates = own[truth] + rng.standard_normal((n, dim))
    return updates - updates.mean(axis=0), truth


def parted(updates, rule=AUTO):
    """The parts that clients of such updates are split in, or None."""
    similarity = cosines(updates @ updates.T)
    cut = bipartition(similarity)
    return cut if rule.parts(cut, similarity) and min(cut.sizes) >= rule.min_size else None


def is_right(cut, truth):
    """Whether a cluster was split, and no true cluster was."""
    return cut is not None and not set(truth[cut.one]) & set(truth[cut.other])


# -- what two parts explain -------------------------------------------------------------------------------


def explained_by_vectors(updates, one, other):
    units = [u / np.linalg.norm(u) for u in updates]
    middle = sum(units) / len(units)
    means = {tuple(part): sum(units[i] for i in part) / len(part) for part in (one, other)}
    between = sum(len(part) * np.sum((mean - middle) ** 2) for part, mean in means.items())
    total = sum(np.sum((unit - middle) ** 2) for unit in units)
    left = {i: units[i] - mean for part, mean in means.items() for i in part}
    squares = [
        (left[i] @ left[j] / np.linalg.norm(left[i]) / np.linalg.norm(left[j])) ** 2
        for i in one
        for j in other
    ]
    dimensions = 1 / np.mean(squares)
    return between / total / (1 / np.sqrt(len(units) - 1) + 1 / np.sqrt(dimensions)) ** 2


@given(st.integers(0, 10**6), st.integers(4, 9), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_what_parts_explain_is_that_of_the_vectors(seed, n, dim):
    updates = noise(n, dim, seed, centred=False)
    order = np.random.default_rng(seed).permutation(n)
    one, other = np.sort(order[:2]), np.sort(order[2:])
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    # of clients of one direction nothing is left, and nothing can be said
    assume(
        all(
            np.linalg.norm(units[part] - units[part].mean(axis=0), axis=1).min() > 0.01
            for part in (one, other)
        )
    )
    found = explained(Bipartition(one, other, 0.0), cosines(updates @ updates.T))
    assert found == pytest.approx(explained_by_vectors(updates, one.tolist(), other.tolist()), rel=1e-6)


@given(st.integers(0, 10**6), st.integers(4, 12))
@settings(max_examples=40, deadline=None)
def test_neither_names_nor_lengths_matter(seed, n):
    updates, _ = groups(2, n, 6, 1.0, seed)
    rng = np.random.default_rng(seed)
    order, scale = rng.permutation(n), rng.uniform(0.1, 10, (n, 1))
    cut, again = parted(updates), parted((scale * updates)[order])
    assert (cut is None) == (again is None)
    if cut is not None:
        assert {frozenset(cut.one), frozenset(cut.other)} == {
            frozenset(order[again.one]),
            frozenset(order[again.other]),
        }


@pytest.mark.parametrize(("n", "dim"), [(20, 20), (20, 200), (50, 20), (50, 200)])
def test_no_two_parts_of_noise_explain_more_than_its_strongest_direction(n, dim):
    for seed in range(10):
        updates = noise(n, dim, seed)
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        values = np.linalg.svd(units - units.mean(axis=0), compute_uv=False) ** 2
        edge = (1 / np.sqrt(n - 1) + 1 / np.sqrt(dim)) ** 2
        assert values[0] / values.sum() == pytest.approx(edge, rel=0.3)
        assert explained(bipartition(cosines(updates @ updates.T)), cosines(updates @ updates.T)) < 1.2


# -- the automatic gamma ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "most"), [(5, 5), (20, 2), (200, 2)])
@pytest.mark.parametrize("n", [10, 20, 40])
def test_noise_alone_seldom_parts_clients(n, dim, most):
    """At most that many of 100 clusters; with gamma = 0, every one that parts into 2 or more."""
    split, always = (
        sum(parted(noise(n, dim, seed), rule) is not None for seed in range(100))
        for rule in (AUTO, Rule(gamma=0.0))
    )
    assert split <= most and always > split


@pytest.mark.parametrize(
    ("k", "n", "dim", "strength"),
    [(2, 20, 20, 1.5), (2, 50, 1000, 0.3), (4, 24, 20, 2.0), (3, 30, 200, 1.0), (8, 48, 20, 3.0)],
)
def test_groups_in_noise_are_parted(k, n, dim, strength):
    right = [
        is_right(parted(updates), truth)
        for updates, truth in (groups(k, n, dim, strength, s) for s in range(20))
    ]
    assert sum(right) >= 19


def test_a_direction_that_is_weak_in_every_client_is_seen_in_many():
    """Updates of 1,000 numbers with a tenth of a group's direction in each.

    A client is hardly more similar to the nearest of its group than to one of another.
    """
    for seed in range(5):
        updates, truth = groups(2, 50, 1000, 0.35, seed)
        similarity = cosines(updates @ updates.T)
        cut = bipartition(similarity)
        nearest = np.where(np.eye(50, dtype=bool), -1, similarity).max(axis=1).min()
        assert nearest < 0.2 and np.sqrt((1 - cut.across) / (1 - nearest)) < 1.1
        assert is_right(cut, truth) and AUTO.noise(cut, similarity) == 0 and AUTO.parts(cut, similarity)


def test_groups_that_part_along_the_same_directions_in_both_parts_are_parted_by_their_nearest():
    # what the means of two parts leave is no noise here: it says nothing of how much noise there is
    rng = np.random.default_rng(0)
    corners = np.array([[a, b, c] for a in (4, -4) for b in (2, -2) for c in (1, -1)], float)
    truth = np.arange(24) % 8
    updates = np.hstack([corners[truth], np.zeros((24, 7))]) + 0.05 * rng.standard_normal((24, 10))
    similarity = cosines(updates @ updates.T)
    cut = bipartition(similarity)
    assert explained(cut, similarity) < 1.5 and is_right(parted(updates), truth)


def test_a_given_gamma_is_taken_as_it_is():
    updates = np.array([[1.0, 0], [1, 0.1], [-0.6, 0.8], [-0.6, 0.9]])
    similarity = cosines(updates @ updates.T)
    cut = bipartition(similarity)
    gap = np.sqrt((1 - cut.across) / 2)
    for gamma, parts in ((0.0, True), (gap - 0.01, True), (gap, False), (0.99, False)):
        assert Rule(gamma=gamma).noise(cut, similarity) == gamma
        assert Rule(gamma=gamma).parts(cut, similarity) == parts


@pytest.mark.parametrize(
    ("updates", "parts"),
    [
        ([[1, 0], [1, 0], [-1, 0], [-1, 0]], True),  # without noise
        ([[1, 0], [1, 0], [1, 0], [1, 0]], False),  # of one direction
        ([[0, 0], [0, 0], [0, 0], [0, 0]], False),  # that are nothing
        ([[1], [2], [-1], [-3]], True),  # of one number, which has two directions only
        ([[1, 0], [-1, 0]], False),  # nobody has a fellow
        ([[1, 0], [-1, 0], [-1, 0.1]], False),  # the first has none
    ],
)
def test_few_updates_and_equal_ones(updates, parts):
    updates = np.array(updates, float)
    similarity = cosines(updates @ updates.T)
    cut = bipartition(similarity)
    assert np.isfinite(explained(cut, similarity))
    assert AUTO.parts(cut, similarity) == parts


# -- whole runs, of several seeds each --------------------------------------------------------------------


def runs(draw, learner, rounds, seeds=5):
    """The number of clusters found by each run, and how many runs found the true ones."""
    found, right = [], 0
    for seed in range(seeds):
        data = draw(seed)
        result = ct.CFL(rounds=rounds).fit(ct.Simulation(data.train, batch=8), learner, seed=seed)
        found.append(result.k)
        right += result.k == data.truth.max() + 1 and not ct.metrics.misclustering(
            result.assignment, data.truth
        )
    return found, right


def linear(rate):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=rate, steps=5))


NETWORK = ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(lr=0.5, steps=10))


def regressions(*sizes, **more):
    return lambda seed: ct.data.mixed_regression(*sizes, **more, seed=seed)


def digits(*rotations):
    return lambda seed: ct.data.rotated_digits(clients=16, rotations=rotations, unseen=0, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "learner", "rounds", "least"),
    [
        (regressions(2, 20, 40, 20, noise=0.5), linear(0.02), 30, 5),
        (regressions(2, 20, 40, 20, noise=0.5), linear(0.1), 30, 5),
        (regressions(4, 24, 48, 10, noise=0.5, scale=3.0), linear(0.05), 20, 5),
        # of more coordinates than a client has examples
        (regressions(2, 30, 40, 300, noise=0.01), linear(0.01), 40, 5),
        (regressions(2, 30, 40, 300, noise=0.01), linear(0.02), 40, 5),
        (digits(0, 90), NETWORK, 30, 4),
        (digits(0, 90, 180, 270), NETWORK, 50, 5),
        (digits(0), NETWORK, 30, 4),  # all alike
    ],
)
def test_the_clusters_are_found_and_split_no_further(draw, learner, rounds, least):
    assert runs(draw, learner, rounds)[1] >= least


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "spread"), [(5, 0.0), (20, 0.0), (10, 0.3)])
def test_regressions_that_are_all_alike_stay_together(dim, spread):
    draw = regressions(1, 24, 40, dim, noise=0.5, spread=spread)
    found, right = runs(draw, linear(0.1), 30, seeds=6)
    assert right >= 5 and max(found) <= 2
