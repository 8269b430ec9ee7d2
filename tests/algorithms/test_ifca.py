"""IFCA against a NumPy reference, and what must hold whatever the data."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.observers import Remember
from support.references import ifca, ifca_gradients, loss

import coterie as ct
from coterie import keys
from coterie.algorithms import driver
from coterie.clustering.history import History
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


def drawn_by(algorithm, data, seed):
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(data.train))
    return [keys.participants(seed, t, tokens, count) for t in range(algorithm.rounds)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("participation", "weight", "decay"), [(1.0, "clients", 1.0), (0.5, "examples", 0.9), (5, "clients", 0.8)]
)
def test_agrees_with_the_paper_line_by_line(seed, participation, weight, decay):
    data = population(seed)
    algorithm = ct.IFCA(k=K, rounds=8, init=start(seed), participation=participation, weight=weight)
    found = algorithm.fit(data.train, learner(decay=decay), seed=seed)
    drawn = drawn_by(algorithm, data, seed)
    thetas, assigned, losses = ifca(
        clients_of(data), start(seed).astype(float), LR, STEPS, drawn, decay, weight == "examples"
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found.history.assignments()[-1], assigned)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-3)
    final = [[np.mean((y - x @ theta) ** 2) for theta in thetas] for x, y in clients_of(data)]
    np.testing.assert_array_equal(found.assignment, np.argmin(final, axis=1))
    np.testing.assert_allclose(found.losses, final, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("participation", "weight", "normalise"),
    [
        (1.0, "clients", None),
        (3, "clients", None),  # of 12, who are m all the same
        (3, "clients", "clients"),
        (3, "clients", "participants"),
        (0.5, "clients", "cluster"),
        (0.5, "examples", "participants"),
        (1.0, "examples", "cluster"),
    ],
)
def test_gradient_averaging_agrees_with_the_paper_line_by_line(seed, participation, weight, normalise):
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
    found = algorithm.fit(data.train, learner(lr=0.2, steps=1, decay=0.9), seed=seed)
    drawn = drawn_by(algorithm, data, seed)
    thetas = ifca_gradients(
        clients_of(data),
        start(seed).astype(float),
        0.2,
        drawn,
        0.9,
        weight == "examples",
        normalise or "clients",
    )
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)


def test_three_clients_of_twelve_move_a_model_by_a_twelfth_of_each_gradient():
    data = population()
    settings = {"k": K, "rounds": 1, "init": start(), "participation": 3, "average": "gradients"}
    step = learner(steps=1)
    printed, of_three = (
        matrix(ct.IFCA(normalise=normalise, **settings).fit(data.train, step)) - start()
        for normalise in (None, "participants")
    )
    assert np.abs(of_three).max() > 0.01
    np.testing.assert_allclose(printed, of_three * 3 / len(SIZES), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("normalise", ["cluster", "participants", "clients"])
def test_one_full_step_is_the_same_by_gradients_and_by_models(normalise):
    data = population()
    settings = {"k": K, "rounds": 5, "init": start(), "normalise": normalise, "participation": 5}
    gradients, models = (
        ct.IFCA(average=average, **settings).fit(data.train, learner(steps=1))
        for average in ("gradients", "models")
    )
    np.testing.assert_allclose(matrix(gradients), matrix(models), rtol=1e-4, atol=1e-5)


def test_gradients_of_random_batches_are_averaged_where_there_is_a_batch_size():
    data, few = population(), learner(steps=1, batch_size=2)
    settings = {"k": K, "rounds": 1, "init": start(), "average": "gradients"}
    one, other = (ct.IFCA(**settings).fit(data.train, few, seed=seed) for seed in (0, 1))
    whole = ct.IFCA(**settings).fit(data.train, learner(steps=1))
    assert not np.allclose(matrix(one), matrix(other)) and not np.allclose(matrix(one), matrix(whole))


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_clusters_of_a_mixture_of_regressions(seed):
    data = ct.data.mixed_regression(k=3, clients=30, examples=40, dim=10, noise=0.2, scale=3.0, seed=seed)
    found = ct.IFCA(k=3, rounds=40, n_init=10).fit(data.train, learner(lr=0.1), seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert found.k == 3
    assert ct.metrics.parameter_distance(found.models, data.models) < 0.15


def test_starts_run_side_by_side_and_each_is_as_if_it_ran_alone():
    data, watch = population(noise=1.0), Remember()
    settings = {"k": K, "rounds": 5, "participation": 0.75}
    several = ct.IFCA(n_init=3, **settings).fit(data.train, learner(), seed=1, observers=[watch])
    before, after = watch.moments[0].states, watch.moments[-1].states
    assert several.history.restarts.shape == (5, 3)
    assert len({round(x, 6) for x in several.history.restarts[0]}) == 3  # the starts differ
    for r in range(3):
        alone = ct.IFCA(init=stacked.take(before.models, r), **settings).fit(data.train, learner(), seed=1)
        np.testing.assert_allclose(several.history.restarts[:, r], alone.history.restarts[:, 0], rtol=1e-5)
        mine = History(several.history.records, len(SIZES), r)
        np.testing.assert_array_equal(mine.assignments(), alone.history.assignments())
        models = stacked.to_matrix(stacked.take(after.models, r))
        np.testing.assert_allclose(models, matrix(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_first_of_several_starts_is_the_only_one_of_one():
    data, local = population(), learner(steps=None, epochs=1, batch_size=4)
    several, single = (
        ct.IFCA(k=K, rounds=3, n_init=n_init).fit(data.train, local, seed=1) for n_init in (3, 1)
    )
    np.testing.assert_allclose(several.history.restarts[:, 0], single.history.restarts[:, 0], rtol=1e-5)


class OneRight:
    """An initialiser: the true models for one of the starts, and between them for the others."""

    def __init__(self, right, truth):
        self.right, self.truth, self.made = right, truth, 0

    def __call__(self, server, key, k):
        models = self.truth if self.made == self.right else np.repeat(self.truth.mean(0)[None], k, axis=0)
        self.made += 1
        return stacked.from_matrix(models.astype(np.float32), server.learner.shapes(server.spec))
        yield


@pytest.mark.parametrize("right", range(3))
def test_the_start_with_the_lowest_training_loss_is_kept(right):
    data = population(noise=0.01)
    init = OneRight(right, data.models)
    found = ct.IFCA(k=K, rounds=3, n_init=3, init=init).fit(data.train, learner(), seed=2)
    assert found.history.restart == right
    runs = found.history.restarts[-1]
    assert np.delete(runs, right).min() > 10 * runs[right]
    # lowest under the model that is best for each client, not by all models: the wrong ones do better there
    between = [loss(data.models.mean(0), x, y) for x, y in clients_of(data)]
    assert found.losses.mean() > np.mean(between)
    assert found.losses.min(axis=1).mean() == pytest.approx(found.evaluate(data.train).loss, rel=1e-4)
    np.testing.assert_allclose(matrix(found), data.models, atol=0.05)


class Same:
    """An initialiser: the same models for every start."""

    def __call__(self, server, key, k):
        return stacked.from_matrix(start(), server.learner.shapes(server.spec))
        yield


def test_seeds_rounds_and_starts_draw_other_minibatches():
    data, watch = population(), Remember()
    algorithm = ct.IFCA(k=K, rounds=2, n_init=2, init=Same())
    local = learner(steps=1, batch_size=3)
    one = algorithm.fit(data.train, local, seed=0, observers=[watch])
    other = algorithm.fit(data.train, local, seed=1)
    assert not np.allclose(matrix(one), matrix(other))
    first, then = (m.states.models for m in watch.moments[-2:])  # after each round
    starts = [stacked.to_matrix(stacked.take(first, r)) for r in range(2)]
    assert not np.allclose(*starts)
    # a round that drew the batches of the one before would take the same step again
    again = ct.IFCA(k=K, rounds=1, init=stacked.take(first, 0)).fit(data.train, local, seed=0)
    assert not np.allclose(matrix(again), stacked.to_matrix(stacked.take(then, 0)))


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


def test_rounds_with_other_participants_compile_once():
    data = population()
    algorithm = ct.IFCA(k=K, rounds=6, n_init=1, participation=5)
    before = driver.compiled_round._cache_size()
    algorithm.fit(data.train, learner(), seed=0)
    assert driver.compiled_round._cache_size() == before + 1


def test_a_client_that_does_not_answer_is_left_out_and_never_guessed():
    data, seed = population(), 1
    simulation = ct.Simulation(data.train, drop=0.5)
    found = ct.IFCA(k=K, rounds=6, init=start()).fit(simulation, learner(), seed=seed)
    everybody = range(len(SIZES))
    answered = [[i for i in everybody if str(i) not in r.missing["no answer"]] for r in found.history]
    assert [r.answered for r in found.history] == [len(members) for members in answered]
    assert all(r.asked == len(SIZES) for r in found.history) and len(set(map(len, answered))) > 1
    # a round is what it would be if those who answered were all who take part
    thetas, assigned, losses = ifca(clients_of(data), start().astype(float), LR, STEPS, answered)
    np.testing.assert_allclose(matrix(found), thetas, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-3)
    known = found.history.assignments()
    np.testing.assert_array_equal(known[0] >= 0, [i in answered[0] for i in everybody])
    np.testing.assert_array_equal(known[-1], assigned)
    for t in range(1, len(answered)):
        moved = np.flatnonzero(known[t] != known[t - 1])
        assert set(moved) <= set(answered[t])
    assert all(r.bytes_up == r.answered * up_bytes(1) for r in found.history)


def up_bytes(starts):
    return starts * (DIM * 4 + 4 + 4)  # model, cluster, loss


def test_history_tells_what_travelled():
    data = population()
    found = ct.IFCA(k=K, rounds=2, n_init=2, participation=5).fit(data.train, learner(), seed=0)
    for record in found.history:
        assert record.asked == record.answered == 5
        assert record.bytes_down == 5 * 2 * (K * DIM * 4 + 4)  # models, round
        assert record.bytes_up == 5 * up_bytes(2)
        assert record.seconds > 0
    for log in found.history.logs:
        assert log.losses == 5 * 2 * K and log.updates == 5 * 2
    assert found.history[0].changed == 5
    (last,) = found.history.events  # everybody is asked for the loss under all models of both starts
    assert (last.name, last.after, last.asks) == ("finish", 2, 1)
    assert last.bytes_down == len(SIZES) * 2 * K * DIM * 4 and last.bytes_up == len(SIZES) * 2 * K * 4
    assert last.sizes[found.history.restart] == found.sizes.tolist()
    assert last.losses == len(SIZES) * 2 * K and last.updates == 0
    weighed = ct.IFCA(k=K, rounds=1, n_init=2, weight="examples").fit(data.train, learner(), seed=0)
    assert weighed.history[0].bytes_down == len(SIZES) * 2 * (K * DIM * 4 + 4)
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
        ({"k": None}, r"k must be given, unless init=Components\(\) finds it"),
        ({"init": ct.Components()}, r"Components\(\) finds the number of clusters: leave k out"),
        ({"n_init": 0}, "n_init"),
        ({"rounds": 0}, "rounds"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.5}, "participation"),
        ({"participation": 0}, "participation"),
        ({"participation": True}, "participation"),
        ({"participation": 99}, "more than the 12 clients"),
        ({"weight": "money"}, "weight must be 'clients' or 'examples', not 'money'"),
        ({"average": "both"}, "average must be 'models' or 'gradients', not 'both'"),
        ({"normalise": "all"}, "normalise must be 'cluster' or 'participants' or 'clients', not 'all'"),
        ({"normalise": "clients", "weight": "examples"}, "use normalise='participants'"),
        ({"average": "gradients", "weight": "examples"}, "use normalise='participants'"),
        ({"init": np.zeros((2, DIM))}, "2 initial models"),
        ({"init": np.zeros((K, DIM + 1))}, "shape"),
        ({"init": {"other": np.zeros(3)}}, "neither"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    algorithm = dataclasses.replace(ct.IFCA(k=K, rounds=1), **change)
    with pytest.raises(SettingError, match=words) as raised:
        algorithm.fit(population().train, learner(steps=1))
    assert is_one_sentence(raised)


def is_one_sentence(raised):
    text = str(raised.value)
    return text.endswith(".") and ". " not in text and "\n" not in text


@pytest.mark.parametrize(
    ("local", "ignored"),
    [
        (ct.SGD(lr=0.1, steps=2), "more than one step"),
        (ct.SGD(lr=0.1, epochs=1, batch_size=3), "epochs"),
        (ct.SGD(lr=0.1, steps=1, momentum=0.9), "momentum"),
        (ct.SGD(lr=0.1, steps=1, weight_decay=0.1), "weight_decay"),
        (ct.SGD(lr=0.1, steps=1, clip=1.0), "clip"),
        (ct.SGD(lr=0.1, steps=1, proximal=0.1), "the proximal term"),
        (ct.Proximal(lr=0.1), "the proximal term"),
    ],
)
def test_what_a_server_that_takes_the_steps_would_ignore_is_refused(local, ignored):
    of_local = ct.Learner(ct.models.Linear(), "squared", local)
    with pytest.raises(SettingError, match=f"and {ignored} of the local update would be ignored") as raised:
        ct.IFCA(k=2, rounds=1, average="gradients").fit(population().train, of_local)
    assert is_one_sentence(raised)


def test_gradients_need_a_step_size():
    adam = ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=1))
    with pytest.raises(SettingError, match=r"needs a step size: give local=SGD\(lr"):
        ct.IFCA(k=2, average="gradients").fit(population().train, adam)


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
    on_host = algorithm.fit(ct.Simulation(data.train, resident=False), learner(), seed=1)
    np.testing.assert_allclose(matrix(compiled), matrix(on_host), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(compiled.history.assignments(), on_host.history.assignments())
    assert [r.bytes_up for r in compiled.history] == [r.bytes_up for r in on_host.history]
