"""Moment descent against NumPy references of the paper's Phase 1, and what it is for."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exchanges import Overheard, carried_out, server_of, started
from support.in_process import InProcessGrid, app_of
from support.references_moments import eps, groups, moment, pairs, phase_1, weight

import coterie as ct
from coterie import keys
from coterie.data.shards import Shards
from coterie.errors import LearnerError, SettingError
from coterie.flower import FlowerFederation
from coterie.initialise.anchors import Anchors
from coterie.learn.tasks import CountExamples
from coterie.models import stacked

LEARNER = ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(lr=0.2, steps=5))
DIM, K = 5, 2
# every number of clients, examples and anchors is compiled: mostly 20, at most 16 and 6
SIZES = [1, 3, 10, 4, 12, 9, 1, 9, 3, 14, 4, 11, 4, 16, 13, 10, 3, 12, 10, 9]
EQUAL = [16] * 20
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def population(seed=0, sizes=SIZES, dim=DIM, k=K):
    return ct.data.mixed_regression(
        k=k, clients=len(sizes), examples=sizes, dim=dim, noise=0.2, scale=2.0, seed=seed
    )


def recorded(shards, learner=LEARNER, silent=lambda number, name: [], **options):
    """A federation of which every ask is kept."""
    # programs for one device compile faster, and most tests are about little else
    options = {"devices": jax.local_devices()[:1]} | options
    simulation = ct.Simulation(shards, **options).with_learner(learner.for_data(shards.spec))
    return Overheard(simulation, silent, junk=77)


def traces(settings, federation, starts=1, k=K, seed=0, learner=LEARNER):
    """What each start passes through."""
    server = server_of(federation, learner, seed)
    return carried_out(federation, *[settings.trace(server, server.start_key(r), k) for r in range(starts)])


def traced(settings, shards, k=K, seed=0, learner=LEARNER, **options):
    """What the only start passes through, and whom it asked for it."""
    federation = recorded(shards, learner, **options)
    (trace,) = traces(settings, federation, k=k, seed=seed, learner=learner)
    return trace, federation


def matrix(models, lead=1):
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(models)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=-1)


def thetas(trace):
    """The anchors' models at every time."""
    return [matrix(anchors.models) for anchors in trace]


def tasks(federation, name):
    """What was asked of that name, by the first start."""
    return [stacked.take(ask.task, 0) for ask in federation.named(name)]


def as_float(shards):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in shards]


# -- the paper, line by line ------------------------------------------------------------------------------


VARIANTS = [
    ("two", {}),
    ("pairs", {"clients": 9, "warm": False}),
    ("two", {"noise": 0.3}),
    ("pairs", {"fresh": True, "noise": 0.1}),
    ("pairs", {"anchor_estimator": "two", "draw": "uniform"}),
    ("two", {"anchor_estimator": "pairs", "stopping": "conference"}),
]


@pytest.mark.parametrize(
    "estimator, more, seed",
    [("pairs", {}, 0), *(pytest.param(*each, 1, marks=pytest.mark.slow) for each in VARIANTS)],
    ids=lambda value: ", ".join(value) or "all clients" if isinstance(value, dict) else str(value),
)
def test_agrees_with_the_paper_line_by_line(estimator, more, seed):
    data = population(seed)
    bounds = {"alpha": 0.8, "beta": 1.1, "epsilon": 0.1, "separation": 2.0}
    settings = ct.MomentDescent(
        **{"anchors": 6, "iterations": 3, "subspace_iterations": 2, "power_iterations": 3000}
        | {"estimator": estimator}
        | bounds
        | more
    )
    trace, federation = traced(settings, data.train, seed=seed)
    asks = tasks(federation, "MultiplyMoment")[::2]  # the first one of each iteration
    bases = [matrix(task.directions, 2).swapaxes(1, 2) for task in asks]
    asked = [ask.clients for ask in federation.named("MultiplyMoment")[::2]]
    start, anchors = thetas(trace)[0][0], trace[0].ids
    noise = None
    if settings.noise:  # what clients got beyond the models that the server had
        copies = [np.stack([matrix(copy, 2) for copy in (task.first, task.second)]) for task in asks]
        noise = [
            (copy - before).swapaxes(0, 1) for copy, before in zip(copies, thetas(trace)[:-1], strict=True)
        ]
    wanted = phase_1(
        as_float(data.train),
        anchors,
        start,
        asked,
        bases,
        2,
        estimator,
        alpha=0.8,
        beta=1.1,
        least=0.1 * 2.0 * (0.8 / math.sqrt(2) if settings.stopping == "journal" else 1),
        noise=noise,
        parts=3 if settings.fresh else None,
        anchor_estimator=settings.anchor_estimator,
        for_good=settings.stopping == "journal",
    )
    for found, theta in zip(thetas(trace)[1:], wanted, strict=True):
        np.testing.assert_allclose(found, theta, **CLOSE)
    assert max(np.abs(wanted[-1] - start).max(axis=1)) > 0.3  # they have moved


@pytest.mark.parametrize(
    ("seed", "estimator"),
    [(0, "pairs"), *(pytest.param(seed, "two", marks=pytest.mark.slow) for seed in range(2))],
)
def test_the_iteration_finds_the_singular_vectors(seed, estimator):
    data = population(seed, sizes=EQUAL)
    common = {"anchors": 6, "iterations": 1, "estimator": estimator, "alpha": 1.0, "beta": 1.0}
    common["power_iterations"] = 3000  # where it begins depends on the basis: not when it has ended
    trace, federation = traced(ct.MomentDescent(**common, subspace="svd"), data.train)
    assert len(federation.asks) == 1 + (1 + 1)  # the sizes, the whole moment, and the step
    (task,) = tasks(federation, "DescendMoment")
    found = matrix(task.subspace, 2)[0]  # of any anchor: all are in one place
    start = thetas(trace)[0][0]
    content = [pairs(*[eps(x, y, start)] * 2, estimator) for x, y in as_float(data.train)]
    y = moment(content, [weight(n, estimator) for n in data.train.sizes])
    left, size, _ = np.linalg.svd(y)
    assert size[K - 1] > 1.05 * size[K]  # else there is no such subspace
    np.testing.assert_allclose(found.T @ found, left[:, :K] @ left[:, :K].T, **CLOSE)
    steps = 2 * math.ceil(8 / math.log(size[K - 1] / size[K]))
    iterated, _ = traced(ct.MomentDescent(**common, subspace_iterations=steps), data.train)
    np.testing.assert_allclose(thetas(iterated)[1], thetas(trace)[1], **CLOSE)


def test_alpha_and_beta_are_the_curvature_of_all_clients_in_the_anchors_subspace():
    data = population(sizes=EQUAL)
    settings = ct.MomentDescent(anchors=6, iterations=1, subspace_iterations=40, epsilon=0.1, separation=2.0)
    _, federation = traced(settings, data.train)
    assert [task.curvature for task in tasks(federation, "MultiplyMoment")] == [False] * 39 + [True]
    (task,) = tasks(federation, "DescendMoment")
    x = np.concatenate([x for x, _ in as_float(data.train)])
    for h in range(6):
        u = matrix(task.subspace, 2)[h]
        values = np.linalg.eigvalsh(u @ (x.T @ x / len(x)) @ u.T)
        assert float(task.rate[h]) == pytest.approx(values[0] / (2 * values[-1] ** 2), rel=1e-3)
        assert float(task.least[h]) == pytest.approx(0.1 * values[0] * 2.0 / math.sqrt(2), rel=1e-3)


@pytest.mark.slow
def test_the_scale_of_the_loss_does_not_matter():
    """Gradients twice as large, curvature twice as large: the same steps, and they stop as soon."""
    data = population(3)
    one, two = (
        traced(
            ct.MomentDescent(anchors=6, iterations=4),
            data.train,
            learner=learner,
        )[0]
        for learner in (LEARNER, ct.Learner(ct.models.Linear(), "squared"))
    )
    np.testing.assert_allclose(thetas(one)[-1], thetas(two)[-1], **CLOSE)
    np.testing.assert_array_equal(one[-1].stopped, two[-1].stopped)
    assert one[-1].stopped.any() and not one[1].stopped.all()


def test_a_stopped_anchor_stays_and_when_all_have_stopped_nobody_is_asked():
    data = population()
    settings = ct.MomentDescent(anchors=6, iterations=4, epsilon=0.4, separation=3.0, alpha=1.0, beta=1.0)
    trace, federation = traced(settings, data.train)
    for before, after in itertools.pairwise(trace):
        assert (after.stopped | ~before.stopped).all()
        same = (matrix(before.models) == matrix(after.models)).all(axis=1)
        assert same[before.stopped].all()
    assert trace[-1].stopped.any()
    lazy = ct.MomentDescent(anchors=6, iterations=4, epsilon=100.0, separation=3.0)
    trace, federation = traced(lazy, data.train)
    assert len(trace) == 5 and trace[1].stopped.all() and len(federation.named("DescendMoment")) == 1
    np.testing.assert_array_equal(thetas(trace)[0], thetas(trace)[-1])


@pytest.mark.slow
def test_in_the_conference_version_an_anchor_below_the_threshold_is_asked_again_and_may_go_on():
    data = population(0, sizes=EQUAL)
    common = {"anchors": 6, "iterations": 8, "clients": 9, "alpha": 1.0, "beta": 1.0, "separation": 2.0}
    trace, federation = traced(ct.MomentDescent(**common, epsilon=0.15, stopping="conference"), data.train)
    asks = tasks(federation, "DescendMoment")
    assert len(asks) == 8
    for task in asks:  # epsilon Delta, without alpha / sqrt(2), whoever has stopped before
        np.testing.assert_allclose(task.least, 0.3, rtol=1e-6)
    stopped = np.array([anchors.stopped for anchors in trace])
    theta = np.array(thetas(trace))
    went_on = stopped[1:-1] & ~stopped[2:]
    assert went_on.any()  # other clients are asked in each iteration, and find another residual
    moved = (theta[2:] != theta[1:-1]).any(axis=2)
    np.testing.assert_array_equal(moved, ~stopped[2:])
    for_good, _ = traced(ct.MomentDescent(**common, epsilon=0.15 * math.sqrt(2)), data.train)
    stopped = np.array([anchors.stopped for anchors in for_good])
    assert stopped.any() and not (stopped[:-1] & ~stopped[1:]).any()


def test_exchanges_are_one_for_the_sizes_and_per_iteration_those_of_the_subspace_and_one():
    data, settings = population(), ct.MomentDescent(anchors=6, iterations=3, subspace_iterations=6)
    _, federation = traced(settings, data.train)
    assert len(federation.asks) == 1 + 3 * (6 + 1)
    assert type(federation.asks[0].task) is CountExamples


# -- line 16 ----------------------------------------------------------------------------------------------


def anchors_at(theta, heard=None):
    theta = np.asarray(theta, np.float32)
    count = len(theta)
    heard = np.ones(count, bool) if heard is None else np.asarray(heard)
    return Anchors(np.zeros(count, int), jnp.asarray(theta), np.zeros(count), np.zeros(count, bool), heard)


@given(st.integers(0, 10**6), st.floats(0.5, 4))
@settings(max_examples=30, deadline=None)
def test_with_a_separation_groups_are_chains_of_close_anchors(seed, separation):
    theta = np.random.default_rng(seed).standard_normal((9, 2))
    label = np.array(groups(theta.astype(np.float32), separation))
    sizes = {g: (label == g).sum() for g in dict.fromkeys(label)}
    largest = sorted(sizes, key=lambda g: -sizes[g])[:2]
    if len(sizes) < 2:
        with pytest.raises(LearnerError, match="in 1 groups, fewer than k=2"):
            anchors_at(theta).centres(2, separation)
        return
    wanted = {tuple(theta[label == g].mean(axis=0).round(3)) for g in largest}
    found = np.asarray(anchors_at(theta).centres(2, separation))
    np.testing.assert_allclose(sorted(map(tuple, found)), sorted(wanted), atol=2e-3)


@pytest.mark.parametrize(
    ("labels", "order"), [([0, 0, 1, 2, 2, 2, 0], [0, 1, 2]), ([2, 1, 0, 0, 0, 0, 0], [2, 1, 0])]
)
def test_without_one_they_are_joined_into_k_groups(labels, order):
    true, labels = np.array([[5.0, 0], [0, 5], [-5, 0]]), np.array(labels)
    theta = true[labels] + 0.3 * np.random.default_rng(0).standard_normal((7, 2))
    wanted = [theta[labels == j].mean(axis=0) for j in order]  # in the order of their first members
    np.testing.assert_allclose(anchors_at(theta).centres(3), wanted, rtol=1e-5)


def test_anchors_that_never_answered_are_in_no_group():
    theta = [[0.0, 0], [9, 9], [1, 1], [9, 8], [50, 50]]
    found = np.asarray(anchors_at(theta, [True, True, True, True, False]).centres(2))
    np.testing.assert_allclose(found, [[0.5, 0.5], [9, 8.5]])
    with pytest.raises(LearnerError, match="1 anchors have answered, fewer than k=2"):
        anchors_at(theta, [True, False, False, False, False]).centres(2)


# -- who are the anchors, who is asked --------------------------------------------------------------------


def drawn(settings, shards, starts=1, k=K):
    """Who are the anchors of each start, and who is asked in each iteration, without a run."""
    server = server_of(ct.Simulation(shards, devices=jax.local_devices()[:1]), LEARNER)
    sizes, anchors, asked = np.array(shards.sizes), [], []
    for r in range(starts):
        own = keys.numbered(server.start_key(r), 1)[0]
        anchors.append(settings._anchors(server, own, sizes, k))
        asked.append(settings._asked(server, sizes, anchors[-1]))
    return np.array(anchors), asked


def test_anchors_are_the_largest_clients_and_lots_decide_among_equals():
    sizes = np.array([3, 9, 9, 9, 9, 20, 1, 9, 30, 9])
    anchors, _ = drawn(ct.MomentDescent(anchors=4), population(sizes=sizes).train, starts=8)
    assert anchors.shape == (8, 4)
    assert all(sorted(sizes[row]) == [9, 9, 20, 30] for row in anchors)
    assert len({frozenset(row) for row in anchors.tolist()}) > 3
    assert len({row.tolist().index(8) for row in anchors}) > 1  # and their order tells nothing


def test_anchors_drawn_uniformly_are_any_clients_that_have_a_pair():
    sizes = np.array([3, 9, 9, 9, 9, 20, 1, 9, 30, 9])
    settings = ct.MomentDescent(anchors=4, draw="uniform")
    anchors, _ = drawn(settings, population(sizes=sizes).train, starts=200)
    assert anchors.shape == (200, 4) and all(len(set(row)) == 4 for row in anchors.tolist())
    times = np.bincount(anchors.ravel(), minlength=10)
    assert times[6] == 0  # a single example
    # each of nine is drawn with probability 4 / 9: 89 times, with a standard deviation of 7
    assert times[sizes > 1].min() > 55 and times.max() < 125


@pytest.mark.parametrize(
    "k, sizes, anchors, number",
    [
        (2, [20] * 40, None, 15),  # 4 log(2 / 0.05)
        (3, [20] * 40, None, 25),
        (3, [20] * 12 + [4] * 40, None, 12),  # no more than have 3 k examples
        (3, [20] * 2 + [4] * 30, None, 25),  # unless they are too few
        (3, [20] * 30, math.ceil(3 * 3 * math.log(3)), 10),  # as printed
    ],
)
def test_the_number_of_anchors(k, sizes, anchors, number):
    data = population(sizes=sizes, k=k)
    assert drawn(ct.MomentDescent(anchors), data.train, k=k)[0].shape == (1, number)


def test_anchors_by_id():
    data = population()
    named = Shards.from_lists(*zip(*data.train, strict=True), [f"c{i}" for i in range(len(SIZES))])
    anchors, _ = drawn(ct.MomentDescent(anchors=["c9", "c4", "c11"]), named, starts=2)
    assert all(set(row) == {4, 9, 11} for row in anchors.tolist())
    anchors, _ = drawn(ct.MomentDescent(anchors=np.array([9, 4])), data.train)
    assert set(anchors[0].tolist()) == {4, 9}


def test_clients_with_one_example_are_not_asked_for_pairs():
    able = [i for i, n in enumerate(SIZES) if n > 1]
    _, (asked,) = drawn(ct.MomentDescent(anchors=4), population().train)
    assert [each.tolist() for each in asked] == [able] * 5
    _, (asked, other) = drawn(ct.MomentDescent(anchors=4, clients=7), population().train, starts=2)
    assert len({tuple(each) for each in asked}) == 5
    assert all(len(set(each)) == 7 and set(each) <= set(able) for each in asked)
    np.testing.assert_array_equal(asked, other)  # the same for all starts, which share the exchange


def test_fresh_clients_are_other_ones_in_each_iteration_and_no_anchors():
    settings = ct.MomentDescent(anchors=3, iterations=4, fresh=True)
    for anchors, asked in zip(*drawn(settings, population(sizes=[8] * 30).train, starts=2), strict=True):
        everyone = np.concatenate(asked)
        assert len(asked) == 4 and len(set(everyone.tolist())) == len(everyone) == 4 * ((30 - 3) // 4)
        assert not set(anchors) & set(everyone)


# -- what must not matter ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_order_of_the_clients_does_not_matter():
    data = population(1)
    settings = ct.MomentDescent(anchors=6, iterations=2, noise=0.2, clients=12)
    order = np.random.default_rng(0).permutation(len(SIZES))
    both = (traces(settings, recorded(shards), starts=2) for shards in (data.train, data.train[order]))
    for wanted, turned in zip(*both, strict=True):
        np.testing.assert_array_equal(wanted[0].ids, turned[0].ids)
        np.testing.assert_allclose(matrix(wanted[-1].models), matrix(turned[-1].models), **CLOSE)
        np.testing.assert_allclose(matrix(wanted[-1].centres(K)), matrix(turned[-1].centres(K)), **CLOSE)


@pytest.mark.slow
def test_neither_padding_nor_batches_nor_other_starts_matter():
    data = population(2, sizes=[5, 6, 7, 9, 12])
    settings = ct.MomentDescent(anchors=3, iterations=1, subspace_iterations=2, alpha=1.0, beta=1.0)
    trace, alone = traced(settings, data.train)
    wanted = thetas(trace)[-1]
    spread, _ = traced(settings, data.train, batch=1, devices=None)
    np.testing.assert_allclose(thetas(spread)[-1], wanted, **CLOSE)
    together = recorded(data.train)
    many = [thetas(trace)[-1] for trace in traces(settings, together, starts=3)]
    assert len(together.asks) == len(alone.asks)  # starts share every exchange
    np.testing.assert_allclose(many[0], wanted, **CLOSE)
    assert not np.allclose(many[1], many[2], atol=1e-2)


def test_the_call_gives_the_groups_of_the_last_iteration():
    data = population()
    settings = ct.MomentDescent(anchors=6)
    federation = recorded(data.train)
    (trace,), (models,) = traces(settings, federation), started(federation, LEARNER, settings, K)
    assert matrix(models).shape == (K, DIM)
    np.testing.assert_array_equal(matrix(models), matrix(trace[-1].centres(K)))
    assert len(trace) == 1 + settings.iterations


@pytest.mark.slow
def test_theta_0_is_the_models_own_or_normal_of_a_given_scale():
    federation = recorded(population(sizes=[4] * 10, dim=400).train)

    def first(**more):
        """Where the anchors of two starts begin, (starts, anchors, d)."""
        lazy = ct.MomentDescent(anchors=3, iterations=1, subspace_iterations=2, **more)
        return np.array([thetas(trace)[0] for trace in traces(lazy, federation, starts=2)])

    fresh = started(federation, LEARNER, ct.Random(), 1, starts=2)
    for start, models in zip(first(), fresh, strict=True):
        np.testing.assert_array_equal(start, np.repeat(matrix(models), 3, axis=0))
    start = first(scale=2.0)
    assert (start == start[:, :1]).all() and not np.allclose(start[0], start[1])
    np.testing.assert_allclose(np.linalg.norm(start, axis=2), 2, rtol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "dim"), [(1, 4), (3, 2)])
def test_one_cluster_and_more_clusters_than_parameters(k, dim):
    data = population(sizes=[15] * 20, dim=dim, k=k)
    trace, _ = traced(ct.MomentDescent(anchors=8), data.train, k=k)
    assert np.isfinite(matrix(trace[-1].centres(k))).all()
    assert errors(trace[-1], data).mean() < 0.5 * errors(trace[0], data).mean()


# -- those who do not answer ------------------------------------------------------------------------------


def but(task, *clients):
    """Those clients answer no ask of a task."""
    return lambda number, name: clients if name == task else []


def test_an_anchor_that_does_not_answer_keeps_its_model():
    data = population()
    settings = ct.MomentDescent(anchors=6, iterations=2)
    trace, _ = traced(settings, data.train, silent=but("DescendMoment", 9))
    quiet = trace[0].ids == 9
    assert quiet.sum() == 1 and not trace[-1].heard[quiet] and trace[-1].heard[~quiet].all()
    assert not trace[-1].stopped[quiet]
    usual, _ = traced(settings, data.train)
    np.testing.assert_array_equal(thetas(trace)[-1][quiet], thetas(trace)[0][quiet])
    np.testing.assert_allclose(thetas(trace)[1][~quiet], thetas(usual)[1][~quiet], **CLOSE)


def test_who_does_not_tell_its_size_is_no_anchor_but_is_asked_for_pairs():
    settings = ct.MomentDescent(anchors=6, iterations=1, alpha=1.0, beta=1.0)
    trace, federation = traced(settings, population().train, silent=but("CountExamples", 9, 6))
    assert 9 not in trace[0].ids
    assert {9, 6} <= set(federation.named("MultiplyMoment")[0].clients.tolist())


@pytest.mark.slow
def test_it_gets_along_with_clients_that_drop_out():
    data = population(4, sizes=[20] * 60, dim=6)
    federation = ct.Simulation(data.train, drop=0.3, devices=jax.local_devices()[:1])
    found = ct.FedX(k=K, rounds=30, n_init=2, init=ct.MomentDescent()).fit(federation, LEARNER, seed=1)
    assert ct.metrics.misclustering(found.assignment, data.truth) < 0.05


# -- what it is for ---------------------------------------------------------------------------------------


def errors(anchors, data):
    """How far each anchor is from its own cluster's model."""
    return np.linalg.norm(matrix(anchors.models) - data.models[data.truth[anchors.ids]], axis=1)


@pytest.mark.slow
def test_features_of_any_covariance():
    rng = np.random.default_rng(0)
    root = np.linalg.qr(rng.standard_normal((20, 20)))[0] * np.sqrt(np.linspace(0.5, 2, 20))
    models = 2 * rng.standard_normal((2, 20)) / np.sqrt(20)
    truth = np.arange(80) % 2
    xs = [rng.standard_normal((40, 20)) @ root.T for _ in truth]
    ys = [x @ models[z] + 0.2 * rng.standard_normal(40) for x, z in zip(xs, truth, strict=True)]
    shards = Shards.from_lists(xs, ys)
    trace, _ = traced(ct.MomentDescent(anchors=8, iterations=10), shards, batch=80)
    error = np.linalg.norm(matrix(trace[-1].models) - models[truth[trace[0].ids]], axis=1)
    assert error.max() < 1 < 2 < np.linalg.norm(models[0] - models[1])
    found = ct.FedX(k=2, rounds=1, init=trace[-1].centres(2)).fit(ct.Simulation(shards, batch=80), LEARNER)
    assert ct.metrics.misclustering(found.history.assignments()[0], truth) == 0


@pytest.mark.slow
def test_logistic_regression():
    rng = np.random.default_rng(1)
    models = 3 * rng.standard_normal((2, 8, 3)) / np.sqrt(8)
    truth = np.arange(120) % 2
    xs = [rng.standard_normal((30, 8)) for _ in truth]
    ys = [np.argmax(x @ models[z] + rng.gumbel(size=(30, 3)), axis=1) for x, z in zip(xs, truth, strict=True)]
    shards = Shards.from_lists(xs, ys)
    learner = ct.Learner(ct.models.Linear(), "cross_entropy", ct.SGD(lr=0.5, steps=5))
    settings = ct.MomentDescent(anchors=10, iterations=8)
    simulation = ct.Simulation(shards, devices=jax.local_devices()[:1], batch=120)
    found = ct.FedX(k=2, rounds=20, n_init=1, init=settings).fit(simulation, learner)
    # by the very models of moment descent, and after training
    assert ct.metrics.misclustering(found.history.assignments()[0], truth) < 0.1
    assert ct.metrics.misclustering(found.assignment, truth) < 0.05


@pytest.mark.slow
def test_the_subspace_survives_noise_that_hides_the_models():
    data = ct.data.mixed_regression(k=2, clients=400, examples=20, dim=20, noise=0.2, scale=2.0, seed=2)
    trace, federation = traced(ct.MomentDescent(anchors=4, iterations=1, noise=0.5), data.train)
    (step,) = tasks(federation, "DescendMoment")
    sent = [
        matrix(copy, 2)  # (clients, anchors, d)
        for task in tasks(federation, "MultiplyMoment")
        for copy in (task.first, task.second)
    ]
    assert all(task.models is None for task in tasks(federation, "MultiplyMoment"))
    start = thetas(trace)[0]
    for copy in sent:
        assert np.linalg.norm(copy - start, axis=2).min() > 0.5  # about 2.2
    first, second = sent[:2]
    across = np.mean((first - start) * (second - start))
    assert abs(across) < 5 * 0.25 / np.sqrt(first.size)  # independent
    np.testing.assert_array_equal(sent[0], sent[3])  # exchanged in odd steps, but the same
    np.testing.assert_array_equal(sent[1], sent[2])
    u = matrix(step.subspace, 2)[0]
    residual = data.models - start[0]
    kept = np.linalg.norm(residual @ u.T, axis=1) / np.linalg.norm(residual, axis=1)
    assert (kept > 0.9).all()


# -- over a network ---------------------------------------------------------------------------------------

NAMES = [f"hospital-of-town-{i}" for i in range(10)]


def network():
    data = population(sizes=[3, 12, 3, 12, 12, 12, 3, 12, 1, 3])
    shards = Shards.from_lists(*zip(*data.train, strict=True), NAMES)
    grid = InProcessGrid([app_of(LEARNER, shards[[i]]) for i in range(len(NAMES))])
    settings = ct.MomentDescent(anchors=4, iterations=2, noise=0.2, estimator="two")
    flower = FlowerFederation(grid, min_clients=len(NAMES), poll=0.001)
    flower = flower.with_learner(LEARNER.for_data(shards.spec))
    simulated, real = (
        np.array([matrix(models) for models in started(federation, LEARNER, settings, K, starts=2)])
        for federation in (recorded(shards), flower)
    )
    return settings, simulated, real, grid, shards


@pytest.mark.slow
def test_over_flower_it_is_the_same_and_only_models_travel():
    settings, simulated, real, grid, shards = network()
    np.testing.assert_allclose(real, simulated, **CLOSE)
    assert grid.asks() == 1 + settings.iterations * (settings.subspace_iterations + 1)
    rows = np.concatenate([x for x, _ in shards])
    largest = 2 * settings.anchors * K * DIM  # starts, anchors, k, d
    seen = 0
    for name, node in zip(NAMES, grid.nodes.values(), strict=True):
        heard = [message.content for message in node.heard if message.metadata.message_type == "query.ask"]
        for content in [*heard, *node.said[1:]]:
            for record in content.array_records.values():
                for array in record.values():
                    numbers = array.numpy()
                    assert numbers.size <= largest
                    flat = numbers.reshape(-1, DIM) if numbers.size % DIM == 0 else np.empty((0, DIM))
                    apart = np.abs(flat[:, None].astype(float) - rows).max(axis=2)
                    assert apart.size == 0 or apart.min() > 1e-6
                    seen += 1
            for record in content.config_records.values():
                words = json.dumps(dict(record), default=str)
                assert not any(other in words for other in NAMES if other != name)
        asked = [content["ask"]["task"] for content in heard]
        size = shards.sizes[NAMES.index(name)]
        assert asked.count("CountExamples") == 1
        assert ("DescendMoment" in asked) <= (size >= 9)  # only anchors
        assert (size < 11) or asked.count("DescendMoment") == 2
        assert ("MultiplyMoment" in asked) == (size >= 2)
    assert seen > 100


# -- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"anchors": 0}, "anchors must be a number from 1 up or a list of client ids, not 0."),
        ({"anchors": "c1"}, "anchors must be a number from 1 up or a list of client ids, not 'c1'."),
        ({"iterations": 0}, "iterations must be at least 1, not 0."),
        ({"power_iterations": 0}, "power_iterations must be at least 1, not 0."),
        ({"clients": 0}, "clients must be at least 1, not 0."),
        ({"subspace_iterations": 3}, "subspace_iterations must be an even number from 2 up, not 3."),
        ({"subspace_iterations": 0}, "subspace_iterations must be an even number from 2 up, not 0."),
        ({"estimator": "all"}, "estimator must be 'pairs' or 'two', not 'all'."),
        ({"subspace": "qr"}, "subspace must be 'iteration' or 'svd', not 'qr'."),
        ({"draw": "first"}, "draw must be 'largest' or 'uniform', not 'first'."),
        ({"anchor_estimator": "all"}, "anchor_estimator must be 'pairs' or 'two', not 'all'."),
        ({"stopping": "v1"}, "stopping must be 'journal' or 'conference', not 'v1'."),
        ({"noise": -1.0}, "noise must not be negative, but is -1.0."),
        ({"alpha": 0.0}, "alpha must be positive, not 0.0."),
        ({"separation": -2.0}, "separation must be positive, not -2.0."),
        ({"scale": float("nan")}, "scale must be a number, not nan."),
    ],
)
def test_impossible_settings(wrong, message):
    with pytest.raises(SettingError) as error:
        ct.MomentDescent(**wrong)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sizes": [1] * 6}, "and 0 clients have as many examples"),
        ({"anchors": 1}, "needs k=2 anchors or more, each with 2 examples or more: 1 are wanted"),
        ({"anchors": 19}, "19 are wanted, and 18 clients have as many examples"),
        ({"anchors": [3, 99]}, "anchor '99' is none of the 20 clients"),
        ({"anchors": [3, 6]}, "client '6' cannot be an anchor: it has 1 examples, and needs 2"),
        ({"clients": 19}, "clients=19 are to be asked, but 18 have two examples"),
        (
            {"fresh": True, "anchors": 4, "clients": 9},
            "fresh=True needs 9 other clients in each of 2 iterations",
        ),
        (
            {"fresh": True, "iterations": 8, "anchors": 4},
            "each with 16 examples or more: 4 are wanted, and 1",
        ),
    ],
)
def test_too_few_clients(settings, message):
    sizes = settings.get("sizes", SIZES)
    settings = {"iterations": 2} | {name: value for name, value in settings.items() if name != "sizes"}
    with pytest.raises(SettingError, match=message):
        drawn(ct.MomentDescent(**settings), population(sizes=sizes).train)


def test_the_number_of_clusters_has_to_be_told():
    with pytest.raises(SettingError, match="moment descent has to be told the number of clusters: give k"):
        started(recorded(population().train), LEARNER, ct.MomentDescent(), None)


def test_steps_that_are_far_too_long_are_an_error_in_one_sentence():
    settings = ct.MomentDescent(anchors=6, iterations=30, alpha=1.0, beta=1e-3, epsilon=0.1)
    with pytest.raises(LearnerError, match=r"diverged in iteration [0-9]+: give it a larger beta"):
        traced(settings, population().train)
