"""Discover against a slow version of it, and what must hold whatever the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from support.buckets import many_buckets
from support.observers import Remember
from support.references_discover import Reference

import coterie as ct
from coterie.algorithms.discovered import Pairs, Told
from coterie.errors import SettingError
from coterie.models import stacked

GAMMA, TAU, DIM, CLIENTS = 0.05, 3, 4, 12
SIZES = [8, 16, 12, 10, 13, 9, 11, 14, 16, 12, 10, 15]
LEARNER = ct.Learner(ct.models.Linear(bias=False), "squared", ct.SGD(lr=GAMMA, steps=TAU))
SETTINGS = {"rounds": 6, "alone": 8, "sweep": 3}


def population(seed, k=2, noise=0.3, sizes=SIZES, **more):
    return ct.data.mixed_regression(
        k=k, clients=len(sizes), examples=list(sizes), dim=DIM, noise=noise, scale=2.0, seed=seed, **more
    )


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


def same_groups(one, other):
    return ct.metrics.adjusted_rand(one, other) == 1


# few clients with few examples each, of one to three groups, and clients that differ within groups: between
# them merges are refused, clients move, and some leave
@pytest.mark.parametrize(
    ("seed", "k", "noise", "spread"),
    [
        (0, 2, 0.3, 0.0),
        pytest.param(1, 3, 0.5, 0.0, marks=pytest.mark.slow),
        pytest.param(2, 1, 1.0, 0.0, marks=pytest.mark.slow),
        (3, 2, 0.1, 0.8),
        pytest.param(4, 3, 1.0, 0.4, marks=pytest.mark.slow),
    ],
)
def test_it_is_what_a_slow_version_of_it_says(seed, k, noise, spread):
    data, watch = population(seed, k, noise, spread=spread), Remember()
    found = ct.Discover(**SETTINGS).fit(data.train, LEARNER, seed=seed, observers=[watch])
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    w0 = matrix(stacked.take(watch.moments[0].states.first, 0))[0]
    slow = Reference(clients, w0, GAMMA, TAU, **SETTINGS)
    groups, models = slow.fit()
    for g, members in enumerate(groups):
        assert set(found.assignment[members]) <= {g}
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-3, atol=1e-3)
    rounds = [record.round for record in found.history]
    assert len(rounds) == SETTINGS["sweep"] * (len(slow.assignments) - 2) + SETTINGS["rounds"] or k == 1


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
    assert texts[0] == f"{CLIENTS} groups, {texts[0].split(', ')[1]}"
    assert any("moved" in text or "undone" in text for text in texts)
    (final,) = [event for event in clustering.history.events if event.name == "final"]
    assert final.text.endswith(f"FINAL: {len(final.details['apart'])} groups.")


@pytest.mark.slow
def test_few_seeds_take_in_the_others():
    data = ct.data.mixed_regression(k=2, clients=40, examples=30, dim=5, noise=0.2, seed=1)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=10))
    found = ct.Discover(rounds=10, seeds=8).fit(data.train, learner, seed=0)
    assert found.history.events[0].sizes[0] != [1] * 40 and len(found.history.events[0].sizes[0]) <= 8
    assert found.k == 2 and ct.metrics.misclustering(found.assignment, data.truth) == 0


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


# -- decisions ----------------------------------------------------------------------------------------------


def told(loss, group, examples=10):
    """Clients whose every example has the same loss, given for each group."""
    loss, group = np.asarray(loss, float), np.asarray(group)
    own = loss[np.arange(len(group)), group][:, None]
    others = Pairs(examples * (loss - own), examples * (loss - own) ** 2)
    nothing = Pairs(np.zeros(len(group)), np.zeros(len(group)))
    return Told(np.ones(len(group), bool), group, examples * loss, others, nothing, nothing)


def test_what_the_clients_of_a_group_lose_by_others():
    away, squares = told([[1, 2, 4], [1, 3, 5], [2, 1, 1]], [0, 0, 1]).between()
    np.testing.assert_allclose(away, [[0, 30, 70], [10, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(squares, [[0, 10 + 40, 90 + 160], [10, 0, 0], [0, 0, 0]])


def test_the_bound_is_that_of_one_false_objection_in_a_hundred():
    bound = ct.Discover(error=0.01)._bound(50)
    assert 2 * 50 * norm.sf(bound) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"sweep": 0}, "sweep must be a whole number from 1 up"),
        ({"seeds": 1}, "seeds must be a whole number from 2 up"),
        ({"alone": 0}, "alone must be a whole number from 1 up"),
        ({"error": 0.0}, "error must be a probability above 0 and below 1, not 0.0"),
        ({"error": 1.0}, "error must be a probability"),
        ({"margin": -1.0}, "margin must not be negative"),
        ({"objection": float("nan")}, "objection must be a number, not nan"),
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
