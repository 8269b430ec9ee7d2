"""Discover against a slow version of it, and what must hold whatever the data."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.buckets import many_buckets
from support.observers import Remember
from support.references_discover import Reference

import coterie as ct
from coterie.algorithms.discovered import confidence
from coterie.errors import SettingError
from coterie.learn.halves import sketch
from coterie.models import stacked

GAMMA, TAU, DIM, CLIENTS = 0.05, 3, 4, 12
SIZES = [8, 16, 12, 10, 13, 9, 11, 14, 16, 12, 10, 15]
LEARNER = ct.Learner(ct.models.Linear(bias=False), "squared", ct.SGD(lr=GAMMA, steps=TAU))
SETTINGS = {"rounds": 6, "alone": 8, "sweep": 3}
LONGER = {"rounds": 12, "alone": 24, "sweep": 3}


def population(seed, k=2, noise=0.3, sizes=SIZES, **more):
    return ct.data.mixed_regression(
        k=k, clients=len(sizes), examples=list(sizes), dim=DIM, noise=noise, scale=2.0, seed=seed, **more
    )


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


def same_groups(one, other):
    return ct.metrics.adjusted_rand(one, other) == 1


# few clients with few examples each, of one to four groups, and clients that differ within groups: between
# them groups are split in vain, clients move, and some leave; in longer runs some are not split any more, and
# if none is, they train for longer
@pytest.mark.parametrize(
    ("seed", "k", "noise", "spread", "settings"),
    [
        (5, 2, 0.05, 0.8, SETTINGS),
        pytest.param(4, 3, 1.0, 0.4, SETTINGS, marks=pytest.mark.slow),
        pytest.param(4, 2, 0.05, 0.8, LONGER, marks=pytest.mark.slow),
        pytest.param(4, 3, 0.5, 0.0, LONGER, marks=pytest.mark.slow),
        pytest.param(2, 1, 1.0, 0.0, SETTINGS, marks=pytest.mark.slow),
        pytest.param(3, 2, 0.1, 0.8, SETTINGS, marks=pytest.mark.slow),
        pytest.param(7, 4, 0.1, 0.0, SETTINGS, marks=pytest.mark.slow),
    ],
)
def test_it_is_what_a_slow_version_of_it_says(seed, k, noise, spread, settings):
    data, watch = population(seed, k, noise, spread=spread), Remember()
    found = ct.Discover(**settings).fit(data.train, LEARNER, seed=seed, observers=[watch])
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    w0 = matrix(stacked.take(watch.moments[0].states.first, 0))[0]
    slow = Reference(clients, data.train.tokens, w0, GAMMA, TAU, **settings)
    groups, models = slow.fit()
    for g, members in enumerate(groups):
        assert set(found.assignment[members]) <= {g}
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-3, atol=1e-3)
    places = [moment.place for moment in watch.moments]
    assert {(place.first, place.last) for place in places if place.first < place.last} == slow.stretches
    if seed == 5:
        assert slow.merges and slow.left
    if settings == LONGER:
        assert slow.waited and (slow.refused or slow.left)
    own, cost = slow.confidence(found.assignment)
    np.testing.assert_allclose(found.confidence.margin, own[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.confidence.chance, own[1], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.confidence.alone_margin, own[2], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.confidence.alone_chance, own[3], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.confidence.merging, cost, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_found_that_nobody_could_see_alone(seed):
    """Ten examples of twenty coordinates: a client by itself cannot know its model."""
    data = ct.data.mixed_regression(k=3, clients=45, examples=12, dim=20, noise=0.1, seed=seed)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
    found = ct.Discover(rounds=20).fit(data.train, learner, seed=seed)
    assert found.k == 3 and ct.metrics.misclustering(found.assignment, data.truth) == 0
    oracle = ct.Oracle(data.truth, rounds=60).fit(data.train, learner, seed=seed)
    assert found.evaluate(data.test).loss < 1.1 * oracle.evaluate(data.test).loss


@pytest.mark.slow
@pytest.mark.parametrize("examples", [6, 40])
def test_clients_that_are_alike_are_one_group(examples):
    for seed in range(2):
        data = ct.data.mixed_regression(k=1, clients=30, examples=examples, dim=5, noise=1.0, seed=seed)
        learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
        assert ct.Discover(rounds=10).fit(data.train, learner, seed=seed).k == 1


@pytest.mark.slow
def test_clients_that_have_nothing_in_common_stay_alone():
    data = ct.data.mixed_regression(k=10, clients=10, examples=60, dim=5, noise=0.2, seed=0)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
    assert ct.Discover(rounds=10).fit(data.train, learner, seed=0).k == 10


@pytest.mark.slow
def test_handwriting_is_parted_by_its_angles_and_by_nothing_else():
    learner = ct.Learner(ct.models.MLP(hidden=(64,)), local=ct.SGD(lr=0.1, steps=10))
    rotated = ct.data.rotated_digits(clients=24, rotations=(0, 90, 180), seed=0)
    found = ct.Discover(rounds=20).fit(rotated.train, learner, seed=0)
    assert found.k == 3 and ct.metrics.misclustering(found.assignment, rotated.truth) == 0
    alike = ct.data.rotated_digits(clients=24, rotations=(0,), seed=0)
    assert ct.Discover(rounds=20).fit(alike.train, learner, seed=0).k == 1


# -- what must hold whatever the data -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    data = population(0)
    return data, ct.Discover(**SETTINGS).fit(data.train, LEARNER, seed=0)


def test_every_client_has_one_group_and_every_model_is_a_number(found):
    data, clustering = found
    assert clustering.ids.tolist() == data.train.ids.tolist()
    assert clustering.assignment.min() >= 0 and clustering.assignment.max() < len(matrix(clustering.models))
    assert np.isfinite(matrix(clustering.models)).all()


def test_the_order_of_clients_changes_nothing(found):
    data, clustering = found
    order = np.random.default_rng(0).permutation(CLIENTS)
    shuffled = ct.Discover(**SETTINGS).fit(data.train[order], LEARNER, seed=0)
    assert same_groups(shuffled.assignment, clustering.assignment[order])
    ours, theirs = matrix(clustering.models)[clustering.assignment[order]], matrix(shuffled.models)
    np.testing.assert_allclose(theirs[shuffled.assignment], ours, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_padding_changes_nothing(found):
    _, clustering = found
    with many_buckets:
        other = ct.Discover(**SETTINGS).fit(population(0).train, LEARNER, seed=0)
    np.testing.assert_array_equal(other.assignment, clustering.assignment)
    np.testing.assert_allclose(matrix(other.models), matrix(clustering.models), rtol=1e-3, atol=1e-4)


def test_the_history_says_in_words_what_was_done(found):
    _, clustering = found
    texts = [event.text for event in clustering.history.events]
    assert texts[0].startswith("1 group. Examples at even and at odd places do not differ: z = ")
    assert (
        "halves agree beyond chance by" in texts[1]
        and "1 group split in two, to see whether that is of use." in texts[1]
    )
    (final,) = [event for event in clustering.history.events if event.name == "final"]
    assert "PRUNE: no pair to be merged; the least that keeps two apart is " in final.text
    assert "Nobody leaves to be alone." in final.text
    assert final.text.endswith(f"FINAL: {len(final.details['apart'])} groups.")


@pytest.mark.slow
def test_clients_with_one_or_two_examples_join_those_they_are_like():
    sizes = [1, 2, 2, *[30] * 12]
    data = population(5, 2, 0.2, sizes)
    learner = ct.Learner(ct.models.Linear(bias=False), "squared", ct.SGD(lr=0.05, steps=10))
    found = ct.Discover(rounds=10).fit(data.train, learner, seed=0)
    assert np.isfinite(matrix(found.models)).all()
    assert same_groups(found.assignment[3:], data.truth[3:])


@pytest.mark.slow
def test_who_does_not_answer_stays_where_it_is(found):
    data, _ = found
    clients = ct.Simulation(data.train, drop=0.2)
    clustering = ct.Discover(**SETTINGS).fit(clients, LEARNER, seed=0)
    assert clustering.k >= 1 and np.isfinite(matrix(clustering.models)).all()


@pytest.mark.slow
def test_a_part_of_the_clients_trains_in_a_round(found):
    data, _ = found
    clustering = ct.Discover(**SETTINGS, participation=0.5).fit(data.train, LEARNER, seed=0)
    assert all(record.asked == CLIENTS // 2 for record in clustering.history)


@pytest.mark.slow
def test_clients_count_as_often_as_they_have_examples(found):
    """Where the sizes differ, and nowhere else."""
    data, clustering = found
    weighed = ct.Discover(**SETTINGS, weight="examples").fit(data.train, LEARNER, seed=0)
    assert same_groups(weighed.assignment, clustering.assignment)
    assert not np.allclose(matrix(weighed.models), matrix(clustering.models), rtol=1e-3)
    equal = population(0, sizes=[12] * CLIENTS)
    one, other = (
        ct.Discover(**SETTINGS, weight=weight).fit(equal.train, LEARNER, seed=0)
        for weight in ("clients", "examples")
    )
    np.testing.assert_allclose(matrix(one.models), matrix(other.models), rtol=1e-4, atol=1e-5)


# -- halves that differ -------------------------------------------------------------------------------------


def first_event(change):
    data = population(1, 2, 0.3, [20] * 30)
    xs, ys = zip(*data.train, strict=True)
    changed = [y + change(x[:, 0], np.arange(len(y))) for x, y in zip(xs, ys, strict=True)]
    shards = ct.data.Shards.from_lists(list(xs), changed)
    return ct.Discover(**SETTINGS).fit(shards, LEARNER, seed=0).history.events[0]


@pytest.mark.slow
def test_it_is_noticed_that_examples_at_odd_places_are_others():
    event = first_event(lambda x, place: x * (place % 2))
    assert event.details["drift"] > 5 and "differ from those at odd ones" in event.text
    # what changes in time is in both halves alike
    event = first_event(lambda x, place: x * (place >= 10))
    assert abs(event.details["drift"]) < 3


# -- confidence ---------------------------------------------------------------------------------------------


def test_how_sure_it_is_outlives_the_disk(found, tmp_path):
    _, clustering = found
    clustering.save(tmp_path)
    kept = ct.load(tmp_path).confidence
    for name, values in clustering.confidence.arrays("").items():
        np.testing.assert_array_equal(getattr(kept, name), values)
    assert kept.second.shape == (CLIENTS,) and kept.merging.shape == (clustering.k, clustering.k)


def test_a_client_that_moves_in_the_end_is_as_sure_of_its_second_best():
    state = SimpleNamespace(judged=[[0, 1, 0.5, 0.01, 2.0, 0.1]] * 3, merging=np.zeros((2, 3, 3)))
    sure = confidence(state, np.array([0, 1, 2]))
    assert sure.second.tolist() == [1, 0, -1]
    np.testing.assert_allclose(sure.margin, [0.5, -0.5, np.nan])
    np.testing.assert_allclose(sure.chance, [0.01, 0.99, np.nan])
    np.testing.assert_allclose(sure.alone_margin, [2.0, np.nan, np.nan])


def test_a_sketch_keeps_inner_products():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 100, 5000))
    b = a + b
    rough = np.array([np.vdot(sketch(x), sketch(y)) for x, y in zip(a, b, strict=True)])
    exact = (a * b).sum(1)
    assert rough.mean() == pytest.approx(exact.mean(), rel=0.05)
    assert (rough - exact).std() < 2 * 5000 * np.sqrt(2 / 256)
    np.testing.assert_array_equal(sketch({"w": jnp.arange(6.0)}), np.arange(6.0))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sweep": 0}, "sweep must be a whole number from 1 up"),
        ({"alone": 0}, "alone must be a whole number from 1 up"),
        ({"error": 0.0}, "error must be a probability above 0 and below 1, not 0.0"),
        ({"error": 1.0}, "error must be a probability"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, says):
    with pytest.raises(SettingError, match=says):
        ct.Discover(**wrong).fit(population(0).train, LEARNER)


@pytest.mark.slow
def test_models_are_trained_on_the_devices_that_there_are():
    data = population(0)
    one = ct.Simulation(data.train, devices=jax.local_devices()[:1])
    several = ct.Simulation(data.train)
    ours, theirs = (ct.Discover(**SETTINGS).fit(clients, LEARNER, seed=0) for clients in (one, several))
    np.testing.assert_array_equal(ours.assignment, theirs.assignment)
    assert jnp.allclose(matrix(ours.models), matrix(theirs.models), rtol=1e-3, atol=1e-4)
