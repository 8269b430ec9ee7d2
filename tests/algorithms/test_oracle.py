"""Oracle: clients that are told their cluster, against NumPy references."""

import numpy as np
import pytest
from support.observers import Remember
from support.references import local_update, loss

import coterie as ct
from coterie import keys
from coterie.errors import SettingError
from coterie.models import stacked

LR, STEPS, DIM, CLIENTS, ROUNDS = 0.05, 3, 4, 8, 4
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=STEPS))
DATA = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=7, dim=DIM, noise=0.3, seed=0)
PAIRS = [(np.asarray(x, float), np.asarray(y, float)) for x, y in DATA.train]
TRUTH = np.array([2, 0, 1, 1, 0, 2, 1, 0])


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


def fitted(truth, train=DATA.train, **settings):
    """What it finds, and what it started with."""
    watch = Remember()
    found = ct.Oracle(truth, rounds=ROUNDS, **settings).fit(train, LEARNER, seed=1, observers=[watch])
    return found, matrix(stacked.take(watch.moments[0].states.models, 0))


def expected(models, truth, participants=None):
    """Rounds by hand; a client that is told -1 chooses once, and keeps to it."""
    models, truth = models.copy(), np.array(truth)
    for members in participants or [range(CLIENTS)] * ROUNDS:
        before = models.copy()
        for i in members:
            if truth[i] < 0:
                truth[i] = int(np.argmin([loss(w, *PAIRS[i]) for w in before]))
        for j in {truth[i] for i in members}:
            mine = [i for i in members if truth[i] == j]
            models[j] = np.mean([local_update(before[j], *PAIRS[i], LR, STEPS) for i in mine], axis=0)
    return models, truth


@pytest.fixture(scope="module")
def plain():
    return fitted(TRUTH)


def test_each_model_is_trained_by_its_clients_alone(plain):
    found, first = plain
    models, _ = expected(first, TRUTH)
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.assignment, TRUTH)
    assert found.k == 3 and not np.allclose(first[0], first[1])
    assert all(r.changed == 0 and r.sizes == (3, 3, 2) for r in found.history)


def test_of_clients_that_are_drawn_each_trains_the_model_it_is_told():
    tokens = keys.tokens(DATA.train.ids)
    found, first = fitted(TRUTH, participation=3)
    models, _ = expected(
        first, TRUTH, participants=[keys.participants(1, t, tokens, 3) for t in range(ROUNDS)]
    )
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.assignment, TRUTH)


@pytest.mark.parametrize(
    "truth",
    [
        TRUTH.tolist(),
        TRUTH.astype(np.int8),
        10 * TRUTH + 5,
        TRUTH - 7.5,
        np.array(["a", "b", "c"])[TRUTH],
        dict(enumerate(TRUTH.tolist())),
        {str(i): ["a", "b", "c"][c] for i, c in enumerate(TRUTH)},
        dict(reversed(list(enumerate(TRUTH)))),  # in another order
        {np.int64(i): c for i, c in enumerate(TRUTH)},
        {**dict(enumerate(TRUTH.tolist())), "somebody": 2, 99: 0},  # and clients that are not there
    ],
)
def test_the_truth_may_be_given_by_position_or_by_id_with_any_labels(truth, plain):
    found, _ = fitted(truth)
    np.testing.assert_array_equal(found.assignment, TRUTH)  # labels are numbered as they are sorted
    np.testing.assert_array_equal(matrix(found.models), matrix(plain[0].models))


def test_the_truth_is_by_id_whatever_the_order_of_the_clients(plain):
    order = np.random.default_rng(0).permutation(CLIENTS)
    by_id, _ = fitted(dict(enumerate(TRUTH)), DATA.train[order])
    by_position, _ = fitted(TRUTH[order], DATA.train[order])
    for found in (by_id, by_position):
        np.testing.assert_array_equal(found.ids, order)
        np.testing.assert_array_equal(found.assignment, TRUTH[order])
        np.testing.assert_allclose(matrix(found.models), matrix(plain[0].models), rtol=1e-4, atol=1e-5)


def test_a_client_of_unknown_truth_takes_the_model_of_lowest_loss():
    known = {i: c for i, c in enumerate(TRUTH.tolist()) if i not in (3, 5)}
    found, first = fitted(known)
    models, truth = expected(first, [known.get(i, -1) for i in range(CLIENTS)])
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.assignment, truth)
    # it is sent all models in the first round, and then the one it took
    one, model = DIM * 4 + 4 + 4, DIM * 4
    assert found.history[0].bytes_down == CLIENTS * one + 2 * 2 * model
    assert found.history[1].bytes_down == CLIENTS * one


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (None, "the oracle needs the true clusters: give truth, such as data.truth"),
        (TRUTH[:-1], "truth has 7 labels for 8 clients"),
        ([], "truth has no labels"),
        ({}, "truth has no labels"),
        ([0, "a"] * 4, "all of them numbers or all of them words"),
        ([0, None] * 4, "all of them numbers or all of them words"),
        ([[0], [1]] * 4, "all of them numbers or all of them words"),
        ({i: i for i in range(9)}, "k=9 clusters need at least as many clients; there are 8"),
    ],
)
def test_a_truth_that_cannot_be_is_refused(truth, words):
    with pytest.raises(SettingError, match=words) as raised:
        fitted(truth)
    assert "\n" not in str(raised.value)
