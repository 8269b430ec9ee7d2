"""IFCA against a NumPy reference, and what must hold whatever the data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from references import ifca, ifca_gradients

import coterie as ct
from coterie import keys
from coterie.algorithms import rounds as driver
from coterie.errors import LearnerError, SettingError
from coterie.models import stacked

DIM, K = 6, 3
SIZES = [5, 9, 3, 20, 7, 12, 4, 8, 15, 6, 10, 11]
LR, STEPS = 0.05, 4


def population(seed=0, sizes=SIZES, noise=0.3):
    return ct.data.mixed_regression(
        k=K, clients=len(sizes), examples=list(sizes), dim=DIM, noise=noise, scale=2.0, seed=seed
    )


def learner(**local):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(**{"lr": LR, "steps": STEPS, **local}))


def start(seed=0, k=K):
    return np.random.default_rng(seed).standard_normal((k, DIM)).astype(np.float32)


def matrix(found):
    return np.asarray(stacked.to_matrix(found.models), float)


def clients_of(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("participation", "weight", "decay"), [(1.0, "clients", 1.0), (0.5, "examples", 0.9), (5, "clients", 0.8)]
)
def test_agrees_with_the_paper_line_by_line(seed, participation, weight, decay):
    data, rounds = population(seed), 8
    algorithm = ct.IFCA(k=K, rounds=rounds, init=start(seed), participation=participation, weight=weight)
    found = algorithm.fit(data.train, learner(decay=decay), seed=seed)
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(SIZES))
    drawn = [keys.participants(seed, t, tokens, count) for t in range(rounds)]
    thetas, assigned, losses = ifca(
        clients_of(data), start(seed).astype(float), LR, STEPS, drawn, decay, weight == "examples"
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.history.assignments()[-1], assigned)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-3)
    final = [[np.mean((y - x @ theta) ** 2) for theta in thetas] for x, y in clients_of(data)]
    np.testing.assert_array_equal(found.assignment, np.argmin(final, axis=1))
    np.testing.assert_allclose(found.losses, final, rtol=1e-3, atol=1e-4)


def drawn_by(algorithm, data, seed):
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(data.train))
    return [keys.participants(seed, t, tokens, count) for t in range(algorithm.rounds)]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("normalise", [None, "all", "cluster"])
@pytest.mark.parametrize(("participation", "weight"), [(1.0, "clients"), (0.5, "examples")])
def test_gradient_averaging_agrees_with_the_paper_line_by_line(seed, normalise, participation, weight):
    data = population(seed)
    algorithm = ct.IFCA(
        k=K,
        rounds=8,
        init=start(seed),
        participation=participation,
        weight=weight,
        average="gradients",
        normalise=normalise,
    )
    found = algorithm.fit(data.train, learner(lr=0.2, decay=0.9), seed=seed)
    thetas = ifca_gradients(
        clients_of(data),
        start(seed).astype(float),
        0.2,
        drawn_by(algorithm, data, seed),
        0.9,
        weight == "examples",
        normalise == "cluster",
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


def test_one_full_step_is_the_same_by_gradients_and_by_models():
    data = population()
    for normalise in ("all", "cluster"):
        settings = {"k": K, "rounds": 5, "init": start(), "normalise": normalise}
        gradients = ct.IFCA(average="gradients", **settings).fit(data.train, learner())
        models = ct.IFCA(average="models", **settings).fit(data.train, learner(steps=1))
        np.testing.assert_allclose(matrix(gradients), matrix(models), rtol=1e-4, atol=1e-5)


def test_gradients_of_random_batches_are_averaged_where_there_is_a_batch_size():
    data, few = population(), learner(batch_size=2)
    settings = {"k": K, "rounds": 1, "init": start(), "average": "gradients"}
    one, other = (ct.IFCA(**settings).fit(data.train, few, seed=seed) for seed in (0, 1))
    whole = ct.IFCA(**settings).fit(data.train, learner())
    assert not np.allclose(matrix(one), matrix(other)) and not np.allclose(matrix(one), matrix(whole))


def test_gradients_need_a_step_size_and_settings_a_meaning():
    data = population()
    adam = ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=1))
    with pytest.raises(SettingError, match=r"needs a step size: give local=SGD\(lr"):
        ct.IFCA(k=2, average="gradients").fit(data.train, adam)
    with pytest.raises(SettingError, match="average must be 'models' or 'gradients', not 'both'"):
        ct.IFCA(k=2, average="both").fit(data.train, learner())
    with pytest.raises(SettingError, match="normalise must be 'cluster' or 'all', not 'none'"):
        ct.IFCA(k=2, normalise="none").fit(data.train, learner())


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_clusters_of_a_mixture_of_regressions(seed):
    data = ct.data.mixed_regression(k=3, clients=30, examples=40, dim=10, noise=0.2, scale=3.0, seed=seed)
    found = ct.IFCA(k=3, rounds=40, n_init=10).fit(data.train, learner(lr=0.1), seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert found.k == 3
    assert ct.metrics.parameter_distance(found.models, data.models) < 0.15


def test_restarts_run_side_by_side_and_equal_single_runs():
    data = population()
    several = ct.IFCA(k=K, rounds=5, n_init=3).fit(data.train, learner(), seed=1)
    single = ct.IFCA(k=K, rounds=5, n_init=1).fit(data.train, learner(), seed=1)
    np.testing.assert_allclose(several.history.restarts[:, 0], single.history.restarts[:, 0], rtol=1e-5)
    assert several.history.restarts.shape == (5, 3)
    assert len({round(x, 6) for x in several.history.restarts[0]}) == 3  # the starts differ


def test_the_restart_with_the_lowest_training_loss_is_kept():
    data = population(noise=0.01)
    found = ct.IFCA(k=K, rounds=30, n_init=6).fit(data.train, learner(lr=0.1), seed=2)
    kept = found.losses.min(axis=1).mean()
    assert kept == pytest.approx(found.evaluate(data.train).loss, rel=1e-4)
    runs = found.history.restarts[-1]
    assert found.history.restart == int(np.argmin(runs))
    assert runs.max() > 2 * runs.min()  # the choice mattered


def test_minibatches_and_restarts_do_not_share_randomness():
    data = population()
    local = learner(steps=None, epochs=2, batch_size=3)
    same_start = ct.IFCA(k=K, rounds=2, init=start()).fit(data.train, local, seed=0)
    other_seed = ct.IFCA(k=K, rounds=2, init=start()).fit(data.train, local, seed=1)
    assert not np.allclose(matrix(same_start), matrix(other_seed))


def test_an_empty_cluster_keeps_its_model():
    far = start()
    far[1] = 1e3
    found = ct.IFCA(k=K, rounds=3, init=far).fit(population().train, learner())
    np.testing.assert_array_equal(matrix(found)[1], far[1])
    assert found.sizes[1] == 0 and found.k == 2
    assert all(len(r.sizes) < 2 or r.sizes[1] == 0 for r in found.history)


def test_ties_go_to_the_first_model():
    equal = np.repeat(start(k=1), K, axis=0)
    found = ct.IFCA(k=K, rounds=1, init=equal).fit(population().train, learner())
    assert (found.history.assignments()[0] == 0).all()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31 - 1), order=st.permutations(range(len(SIZES))))
def test_any_population_gives_a_valid_partition_that_does_not_depend_on_order(seed, order):
    data = population(seed)
    algorithm = ct.IFCA(k=K, rounds=3, n_init=2, participation=0.75)
    found = algorithm.fit(data.train, learner(), seed=seed)
    assert found.assignment.shape == (len(SIZES),)
    assert set(found.assignment) <= set(range(K))
    assert found.sizes.sum() == len(SIZES)
    np.testing.assert_array_equal(found.ids, data.train.ids)
    shuffled = algorithm.fit(data.train[np.array(order)], learner(), seed=seed)
    np.testing.assert_array_equal(shuffled.ids, np.array(order))
    np.testing.assert_array_equal(shuffled.assignment, found.assignment[np.array(order)])
    np.testing.assert_allclose(matrix(shuffled), matrix(found), rtol=1e-4, atol=1e-5)


def test_chunks_of_rounds_change_nothing_but_rounding():
    data = population()
    algorithm = ct.IFCA(k=K, rounds=7, n_init=2, participation=0.5)
    one, many = (algorithm.fit(data.train, learner(), seed=3, chunk=c) for c in (1, 3))
    np.testing.assert_allclose(matrix(one), matrix(many), rtol=1e-5, atol=1e-6)
    assert [r.round for r in many.history] == list(range(7))


def test_rounds_with_other_participants_compile_once():
    data = population()
    algorithm = ct.IFCA(k=K, rounds=6, n_init=1, participation=5)
    before = driver._compiled._cache_size()
    algorithm.fit(data.train, learner(), seed=0)
    assert driver._compiled._cache_size() == before + 1


def test_a_client_that_never_answers_is_left_out_and_never_guessed():
    data = population()
    simulation = ct.Simulation(data.train, drop=0.5)
    found = ct.IFCA(k=K, rounds=4, n_init=2).fit(simulation, learner(), seed=1)
    answered = [r.answered for r in found.history]
    assert all(0 <= a < len(SIZES) for a in answered) and len(set(answered)) > 1
    known = found.history.assignments()
    assert ((known[1:] == known[:-1]) | (known[1:] >= 0)).all()
    assert all(r.bytes_up == r.answered * up_bytes(2) for r in found.history)


def up_bytes(restarts):
    return restarts * (DIM * 4 + 4 + 4)  # model, cluster, loss


def test_history_tells_what_travelled():
    data = population()
    found = ct.IFCA(k=K, rounds=2, n_init=2, participation=5).fit(data.train, learner(), seed=0)
    for record in found.history:
        assert record.asked == record.answered == 5
        assert record.bytes_down == 5 * 2 * (K * DIM * 4 + 4)  # models, round
        assert record.bytes_up == 5 * up_bytes(2)
        assert record.seconds > 0
    assert found.history[0].changed == 5
    (last,) = found.history.events  # everybody is asked for the loss under all models of both restarts
    assert (last.name, last.after, last.asks) == ("finish", 2, 1)
    assert last.bytes_down == len(SIZES) * 2 * K * DIM * 4 and last.bytes_up == len(SIZES) * 2 * K * 4
    assert last.sizes[found.history.restart] == found.sizes.tolist()
    weighed = ct.IFCA(k=K, rounds=1, n_init=2, weight="examples").fit(data.train, learner(), seed=0)
    assert weighed.history[0].bytes_down == len(SIZES) * 2 * (K * DIM * 4 + 4 + 1)  # and by_examples
    assert weighed.history[0].bytes_up == len(SIZES) * (up_bytes(2) + 2 * 4)  # and the weight


def test_models_may_be_given_as_a_matrix_or_as_a_stack():
    data = population()
    found = ct.IFCA(k=K, rounds=2, init=start()).fit(data.train, learner())
    again = ct.IFCA(
        k=K,
        rounds=2,
        init=stacked.from_matrix(start(), learner().for_data(data.train.spec).shapes(data.train.spec)),
    )
    np.testing.assert_array_equal(matrix(found), matrix(again.fit(data.train, learner())))
    longer = ct.IFCA(k=K, rounds=3, init=found.models).fit(data.train, learner())
    np.testing.assert_allclose(longer.history[0].loss, found.evaluate(data.train).loss, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"k": 13}, "at least as many clients; there are 12"),
        ({"n_init": 0}, "n_init"),
        ({"rounds": 0}, "rounds"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"participation": 0}, "participation"),
        ({"participation": 99}, "more than the 12 clients"),
        ({"weight": "money"}, "weight"),
        ({"init": np.zeros((2, DIM))}, "2 initial models"),
        ({"init": np.zeros((K, DIM + 1))}, "shape"),
        ({"init": {"other": np.zeros(3)}}, "neither"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    algorithm = dataclasses.replace(ct.IFCA(k=K, rounds=1), **change)
    with pytest.raises(SettingError, match=words):
        algorithm.fit(population().train, learner())


def test_fit_wants_clients():
    with pytest.raises(SettingError, match="Shards"):
        ct.IFCA(k=2).fit(np.zeros((3, 2)), learner())


def test_divergence_is_said_and_not_returned():
    with pytest.raises(LearnerError, match="diverged in round"):
        ct.IFCA(k=K, rounds=40, n_init=1).fit(population().train, learner(lr=50.0))
    with pytest.raises(LearnerError, match="diverged in the last round"):
        ct.IFCA(k=K, rounds=1, n_init=1).fit(population().train, learner(lr=1e30))


def test_works_with_any_model_that_has_init_and_apply():
    class Affine:
        def init(self, key, x):
            return {"a": jax.random.normal(key, (x.shape[1],)), "b": jnp.zeros(())}

        def apply(self, params, x):
            return x @ params["a"] + params["b"]

    data = population(noise=0.05)
    found = ct.IFCA(k=K, rounds=60, n_init=8).fit(
        data.train, ct.Learner(Affine(), "squared", ct.SGD(lr=0.1, steps=5)), seed=0
    )
    assert found.models["a"].shape == (K, DIM)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


def test_rounds_run_on_the_host_where_they_cannot_be_compiled():
    """The way of data that does not fit on a device, and of any federation of real clients."""
    data = population()
    algorithm = ct.IFCA(k=K, rounds=3, n_init=2, participation=0.5)
    compiled = algorithm.fit(ct.Simulation(data.train), learner(), seed=1)
    on_host = algorithm.fit(ct.Simulation(data.train, resident=False), learner(), seed=1, chunk=2)
    np.testing.assert_allclose(matrix(compiled), matrix(on_host), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(compiled.history.assignments(), on_host.history.assignments())
    assert [r.bytes_up for r in compiled.history] == [r.bytes_up for r in on_host.history]
