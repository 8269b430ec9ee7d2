"""Parts compose: weight sharing, settling, revival and drawn participants in one run, against NumPy."""

import numpy as np
import pytest
from support.observers import Remember
from support.references import ifca_with_parts

import coterie as ct
from coterie import keys
from coterie.clustering.history import History
from coterie.models import stacked

DIM, K, CLIENTS, ROUNDS, STARTS = 3, 4, 14, 24, 3
GAMMA, TAU, SETTLE, RECHECK, PARTICIPANTS = 0.05, 3, 2, 3, 9
LEARNER = ct.Learner(ct.models.Linear(bias=True), "squared", ct.SGD(lr=GAMMA, steps=TAU))


def population(seed):
    """Clients with one slope for all, and an intercept of their cluster's own."""
    rng = np.random.default_rng(seed)
    w, b = rng.standard_normal(DIM), np.array([-2.0, 0.0, 1.0, 4.0])
    xs = [rng.standard_normal((n, DIM)) for n in rng.integers(4, 12, CLIENTS)]
    ys = [x @ w + b[i % K] + rng.standard_normal(len(x)) for i, x in enumerate(xs)]
    return ct.Shards.from_lists(xs, ys)


class Apart:
    """An initialiser: of each start's models some fit nobody."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, server, key, k):
        models = self.rng.standard_normal((k, DIM + 1))
        models[-2:, DIM] += 40
        return stacked.from_matrix(models.astype(np.float32), server.learner.shapes(server.spec))
        yield


def is_weight(name):
    return name.endswith("weight")


@pytest.mark.parametrize("seed", range(2))
def test_all_of_them_in_one_run_do_what_each_of_them_says(seed):
    train, watch = population(seed), Remember()
    settings = {"share": is_weight, "settle": SETTLE, "recheck": RECHECK, "empty": "revive"}
    several = ct.IFCA(
        k=K,
        rounds=ROUNDS,
        n_init=STARTS,
        keep_best_after=1.0,
        init=Apart(seed),
        participation=PARTICIPANTS,
        **settings,
    ).fit(train, LEARNER, seed=seed, observers=[watch])
    # the bias is that of a feature which is always 1
    clients = [(np.c_[x, np.ones(len(x))].astype(float), np.asarray(y, float)) for x, y in train]
    tokens = keys.tokens(train.ids)
    drawn = [keys.participants(seed, t, tokens, PARTICIPANTS) for t in range(ROUNDS)]
    first, last = watch.moments[0].states.models, watch.moments[-1].states.models
    by_start, matters = [], []
    for r in range(STARTS):
        start = np.asarray(stacked.to_matrix(stacked.take(first, r)), float)

        def expected(start=start, **parts):
            weights = np.arange(DIM + 1) < DIM
            each = {"shared": weights, "settle": SETTLE, "recheck": RECHECK, "revive": True}
            return ifca_with_parts(clients, start, GAMMA, TAU, drawn, **{**each, **parts})

        thetas, clusters, alone = expected()
        models = stacked.to_matrix(stacked.take(last, r))
        np.testing.assert_allclose(models, thetas, rtol=1e-3, atol=1e-3)
        mine = History(several.history.records, CLIENTS, r)
        np.testing.assert_array_equal(mine.assignments(), clusters)
        by_start.append(alone)
        without = ({"shared": None}, {"settle": None}, {"revive": False})
        matters.append([(expected(**part)[1] != clusters).any() for part in without])
    assert np.any(matters, axis=0).all()  # of every part
    # of what is shared one copy is sent in any case, so that only biases are spared
    bias, weights, number = 4, DIM * 4, 4
    spared = np.all(by_start, axis=0).sum(axis=1) * (K - 1) * bias * STARTS
    whole = PARTICIPANTS * STARTS * (weights + K * bias + number + number)  # and round, only
    assert [record.bytes_spared for record in several.history] == spared.tolist()
    assert [record.bytes_down for record in several.history] == (whole - spared).tolist()
    assert spared.any()
    one_model = np.sum(by_start, axis=(0, 2))
    assert [log.losses for log in several.history.logs] == (K * (STARTS * PARTICIPANTS - one_model)).tolist()
