"""Stable identities: a client whose cluster no longer changes is sent its own model alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.observers import Remember
from support.references import ifca_with_parts

import coterie as ct
from coterie import keys
from coterie.algorithms.parts.settling import Settling
from coterie.clustering.history import History
from coterie.federation.protocol import Answers
from coterie.models import stacked

DIM, K, CLIENTS = 5, 3, 12
MODEL, NUMBER = DIM * 4, 4  # bytes
LR, STEPS = 0.1, 2
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=STEPS))


def population(seed=0, examples=20, scale=3.0):
    return ct.data.mixed_regression(
        k=K, clients=CLIENTS, examples=examples, dim=DIM, noise=0.3, scale=scale, seed=seed
    )


def apart(seed):
    """Models so far from the true ones that clients change their cluster on the way, some after long."""
    return 2 * np.random.default_rng(seed).standard_normal((K, DIM)).astype(np.float32)


def by_hand(data, start, seed, participation, rounds, **settings):
    clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]
    tokens = keys.tokens(data.train.ids)
    drawn = [keys.participants(seed, t, tokens, participation) for t in range(rounds)]
    return ifca_with_parts(clients, start.astype(float), LR, STEPS, drawn, **settings)


# seeds with which settled clients change their cluster, so that every round of a look at all models matters
@pytest.mark.parametrize(
    ("seed", "participation"), [(2, 7), (4, 7), pytest.param(4, CLIENTS, marks=pytest.mark.slow)]
)
def test_each_client_is_settled_and_rechecked_when_it_should_be(seed, participation):
    data, start, rounds = population(seed, 6, scale=1.0), apart(seed), 20
    found = ct.IFCA(k=K, rounds=rounds, init=start, settle=2, recheck=3, participation=participation).fit(
        data.train, LEARNER, seed=seed
    )

    def expected(**settings):
        return by_hand(data, start, seed, participation, rounds, **settings)

    thetas, clusters, alone = expected(settle=2, recheck=3)
    np.testing.assert_array_equal(found.history.assignments(), clusters)
    np.testing.assert_allclose(stacked.to_matrix(found.models), thetas, rtol=1e-3, atol=1e-4)
    whole = K * MODEL + NUMBER + NUMBER  # models, round, only
    for record, log, one in zip(found.history, found.history.logs, alone.sum(axis=1), strict=True):
        assert record.bytes_spared == one * (K - 1) * MODEL
        assert record.bytes_down == participation * whole - record.bytes_spared
        assert record.bytes_up == participation * (MODEL + NUMBER + NUMBER)  # model, cluster, loss
        assert log.losses == K * (participation - one)  # who is told its model need not look for it
    assert found.history.total("bytes_spared") == alone.sum() * (K - 1) * MODEL > 0
    # a round too early or too late, or no second look, would have come to other clusters
    settled_before = np.cumsum(alone, axis=0)[:-1] > 0
    assert (settled_before & (clusters[1:] != clusters[:-1])).any()
    for settle, recheck in ((1, 3), (3, 3), (2, 2), (2, 4), (2, 1000), (None, 3)):
        other = expected(settle=settle, recheck=recheck)
        assert (other[1] != clusters).any()


@pytest.mark.parametrize(
    ("after", "recheck", "alone"),
    [(1, 2, "010101010101"), (1, 3, "011011011011"), (2, 3, "001101101101"), (3, 4, "000111011101")],
)
def test_all_models_are_sent_every_so_many_times_after_settling(after, recheck, alone):
    # a digit for a client whose cluster has stayed the same for 0, 1, 2, ... of its rounds: 1 if it is told
    steady, cluster = jnp.arange(len(alone)), jnp.full(len(alone), 7)
    only = Settling(after, recheck).only(steady, cluster)
    assert only.tolist() == [7 if digit == "1" else -1 for digit in alone]


def test_only_a_client_that_answers_has_stayed_anywhere():
    before, now = jnp.asarray([0, 1, 2, 0, -1]), jnp.asarray([0, 2, 2, 0, 1])
    asked, answered = jnp.asarray([4, 1, 0, 2]), jnp.asarray([True, True, True, False])
    answers = Answers(asked, answered, None, now[asked], jnp.ones(4), None, None)
    steady = Settling(2).update(jnp.asarray([3, 3, 3, 3, 0]), before, now, answers)
    assert steady.tolist() == [4, 0, 3, 3, 0]  # stayed, moved, did not answer, was not asked, came


class Apart:
    """An initialiser: models of which clients change their mind, other ones for every start."""

    def __call__(self, server, key, k):
        return stacked.from_matrix(2 * jax.random.normal(key, (k, DIM)), server.learner.shapes(server.spec))
        yield


@pytest.mark.slow
# seeds with which starts would end elsewhere if clients had to be settled in all of them to be so in one
@pytest.mark.parametrize(
    ("seed", "participation"), [(5, 7), pytest.param(11, CLIENTS, marks=pytest.mark.slow)]
)
def test_a_start_is_what_it_would_be_without_others_beside_it(seed, participation):
    rounds, starts, watch = 20, 3, Remember()
    data = population(seed, 6, scale=1.0)
    settings = {"k": K, "rounds": rounds, "settle": 2, "recheck": 3, "participation": participation}
    settings |= {"keep_best_after": 1.0}
    several = ct.IFCA(init=Apart(), n_init=starts, **settings).fit(
        data.train, LEARNER, seed=seed, observers=[watch]
    )
    first, last = watch.moments[0].states.models, watch.moments[-1].states.models
    alone, matters = [], []
    for r in range(starts):
        one = ct.IFCA(init=stacked.take(first, r), **settings).fit(data.train, LEARNER, seed=seed)
        mine = History(several.history.records, CLIENTS, r)
        np.testing.assert_array_equal(mine.assignments(), one.history.assignments())
        models = stacked.to_matrix(stacked.take(last, r))
        np.testing.assert_allclose(models, stacked.to_matrix(one.models), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mine.restarts[:, r], one.history.restarts[:, 0], rtol=1e-5)

        start = np.asarray(stacked.to_matrix(stacked.take(first, r)))
        args = data, start, seed, participation, rounds
        _, clusters, told = by_hand(*args, settle=2, recheck=3)
        np.testing.assert_array_equal(mine.assignments(), clusters)
        alone.append(told)
        matters.append((by_hand(*args)[1] != clusters).any())
    assert any(matters)
    # they share a message, so that nothing is spared unless a client is told its model in all of them
    of_all = np.all(alone, axis=0)
    spared = [record.bytes_spared for record in several.history]
    assert spared == (of_all.sum(axis=1) * starts * (K - 1) * MODEL).tolist()
    assert any(spared) and (of_all != alone[0]).any()
    compared = K * (starts * participation - np.sum(alone, axis=(0, 2)))
    assert [log.losses for log in several.history.logs] == compared.tolist()
