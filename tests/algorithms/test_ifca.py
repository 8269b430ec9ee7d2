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
ROUNDS, STARTS, SOME = 5, 3, 5  # the same wherever it does not matter: every other number is another program


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


def several(**settings):
    return ct.IFCA(**{"k": K, "rounds": ROUNDS, "n_init": STARTS, "participation": SOME, **settings})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("participation", "weight", "decay"),
    [(1.0, "clients", 1.0), (0.5, "examples", 0.9), (SOME, "clients", 0.8)],
)
def test_agrees_with_the_paper_line_by_line(seed, participation, weight, decay):
    data = population(seed)
    algorithm = ct.IFCA(k=K, rounds=ROUNDS, init=start(seed), participation=participation, weight=weight)
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
    ("average", "participation", "weight", "normalise"),
    [
        ("gradients", 1.0, "clients", None),
        ("gradients", 3, "clients", None),  # of 12, who are m all the same
        ("gradients", 3, "clients", "clients"),
        ("gradients", 3, "clients", "participants"),
        ("gradients", 3, "clients", "cluster"),
        ("gradients", 3, "examples", "participants"),
        ("models", 3, "clients", "clients"),  # one full step is the same by models
    ],
)
def test_gradient_averaging_agrees_with_the_paper_line_by_line(
    seed, average, participation, weight, normalise
):
    data = population(seed)
    algorithm = ct.IFCA(
        k=K,
        rounds=ROUNDS,
        init=start(seed),
        participation=participation,
        weight=weight,
        average=average,
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_finds_the_clusters_of_a_mixture_of_regressions(seed):
    data = ct.data.mixed_regression(k=3, clients=30, examples=40, dim=10, noise=0.2, scale=3.0, seed=seed)
    found = ct.IFCA(k=3, rounds=40, n_init=10).fit(data.train, learner(lr=0.1), seed=seed)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert found.k == 3
    assert ct.metrics.parameter_distance(found.models, data.models) < 0.15


def test_starts_run_side_by_side_and_each_is_as_if_it_ran_alone():
    data, watch = population(noise=1.0), Remember()
    found = several().fit(data.train, learner(), seed=1, observers=[watch])
    before, after = watch.moments[0].states, watch.moments[-1].states
    assert found.history.restarts.shape == (ROUNDS, STARTS)
    assert len({round(x, 6) for x in found.history.restarts[0]}) == STARTS  # the starts differ
    for r in range(STARTS):
        single = ct.IFCA(k=K, rounds=ROUNDS, init=stacked.take(before.models, r), participation=SOME)
        alone = single.fit(data.train, learner(), seed=1)
        np.testing.assert_allclose(found.history.restarts[:, r], alone.history.restarts[:, 0], rtol=1e-5)
        mine = History(found.history.records, len(SIZES), r)
        np.testing.assert_array_equal(mine.assignments(), alone.history.assignments())
        models = stacked.to_matrix(stacked.take(after.models, r))
        np.testing.assert_allclose(models, matrix(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_first_of_several_starts_is_the_only_one_of_one():
    data, local = population(), learner(steps=None, epochs=1, batch_size=4)
    three, single = (
        ct.IFCA(k=K, rounds=3, n_init=n_init).fit(data.train, local, seed=1) for n_init in (3, 1)
    )
    np.testing.assert_allclose(three.history.restarts[:, 0], single.history.restarts[:, 0], rtol=1e-5)


class OneRight:
    """An initialiser: the true models for one of the starts, and between them for the others."""

    def __init__(self, right, truth):
        self.right, self.truth, self.made = right, truth, 0

    def __call__(self, server, key, k):
        models = self.truth if self.made == self.right else np.repeat(self.truth.mean(0)[None], k, axis=0)
        self.made += 1
        return stacked.from_matrix(models.astype(np.float32), server.learner.shapes(server.spec))
        yield


@pytest.mark.parametrize("right", range(STARTS))
def test_the_start_with_the_lowest_training_loss_is_kept(right):
    data = population(noise=0.01)
    init = OneRight(right, data.models)
    found = several(init=init).fit(data.train, learner(), seed=2)
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

    def __init__(self, models):
        self.models = models

    def __call__(self, server, key, k):
        return self.models
        yield


@pytest.mark.slow
@pytest.mark.parametrize("average", ["models", pytest.param("gradients", marks=pytest.mark.slow)])
def test_seeds_rounds_and_starts_draw_other_minibatches(average):
    data, local = population(), learner(steps=1, batch_size=3)

    def rounds_of(models, seed):
        """The models of both starts after each of two rounds."""
        watch = Remember()
        algorithm = ct.IFCA(k=K, rounds=2, n_init=2, init=Same(models), average=average)
        algorithm.fit(data.train, local, seed=seed, observers=[watch])
        return [[stacked.take(m.states.models, r) for r in range(2)] for m in watch.moments[-2:]]

    def differ(one, other):
        return not np.allclose(stacked.to_matrix(one), stacked.to_matrix(other))

    begin = stacked.from_matrix(start(), local.for_data(data.train.spec).shapes(data.train.spec))
    first, then = rounds_of(begin, seed=0)
    assert differ(first[0], rounds_of(begin, seed=1)[0][0])
    assert differ(*first)
    # a round that drew the batches of the one before would take the same step again
    assert differ(then[0], rounds_of(first[0], seed=0)[0][0])


def test_an_empty_cluster_keeps_its_model():
    far = start()
    far[1] = 1e3
    found = ct.IFCA(k=K, rounds=ROUNDS, init=far).fit(population().train, learner())
    np.testing.assert_array_equal(matrix(found)[1], far[1])
    assert found.sizes[1] == 0 and found.k == 2
    assert all(len(r.sizes) < 2 or r.sizes[1] == 0 for r in found.history)


def test_ties_go_to_the_first_model():
    equal = np.repeat(start(k=1), K, axis=0)
    found = ct.IFCA(k=K, rounds=ROUNDS, init=equal).fit(population().train, learner())
    assert (found.history.assignments()[0] == 0).all()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31 - 1), order=st.permutations(range(len(SIZES))))
def test_any_population_gives_a_valid_partition_that_does_not_depend_on_order(seed, order):
    data = population(seed)
    algorithm = several()
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
    algorithm = several(rounds=ROUNDS + 1)  # as no other test has it
    before = driver.compiled_round._cache_size()
    algorithm.fit(data.train, learner(), seed=0)
    assert driver.compiled_round._cache_size() == before + 1


def test_a_client_that_does_not_answer_is_left_out_and_never_guessed():
    data, seed = population(), 1
    simulation = ct.Simulation(data.train, drop=0.5)
    found = ct.IFCA(k=K, rounds=ROUNDS, init=start()).fit(simulation, learner(), seed=seed)
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
    found = several().fit(data.train, learner(), seed=0)
    for record in found.history:
        assert record.asked == record.answered == SOME
        assert record.bytes_down == SOME * STARTS * (K * DIM * 4 + 4)  # models, round
        assert record.bytes_up == SOME * up_bytes(STARTS)
        assert record.seconds > 0
    for log in found.history.logs:
        assert log.losses == SOME * STARTS * K and log.updates == SOME * STARTS
    assert found.history[0].changed == SOME
    (last,) = found.history.events  # everybody is asked for the loss under all models of all starts
    assert (last.name, last.after, last.asks) == ("finish", ROUNDS, 1)
    assert last.bytes_down == len(SIZES) * STARTS * K * DIM * 4
    assert last.bytes_up == len(SIZES) * STARTS * K * 4
    assert last.sizes[found.history.restart] == found.sizes.tolist()
    assert last.losses == len(SIZES) * STARTS * K and last.updates == 0
    weighed = ct.IFCA(k=K, rounds=ROUNDS, init=start(), participation=0.5, weight="examples")
    record = weighed.fit(data.train, learner(), seed=0).history[0]
    assert record.bytes_down == 6 * (K * DIM * 4 + 4)
    assert record.bytes_up == 6 * (up_bytes(1) + 4)  # and the weight


def test_models_may_be_given_as_a_matrix_or_as_a_stack():
    data = population()
    found = ct.IFCA(k=K, rounds=ROUNDS, init=start()).fit(data.train, learner())
    again = ct.IFCA(
        k=K,
        rounds=ROUNDS,
        init=stacked.from_matrix(start(), learner().for_data(data.train.spec).shapes(data.train.spec)),
    )
    np.testing.assert_array_equal(matrix(found), matrix(again.fit(data.train, learner())))
    longer = ct.IFCA(k=K, rounds=ROUNDS, init=found.models).fit(data.train, learner())
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
        ({"empty": "drop"}, "empty must be 'keep' or 'revive', not 'drop'"),
        ({"settle": 0}, "settle must be a number of rounds from 1 up"),
        ({"settle": 2, "recheck": 1}, "recheck must be a number of rounds from 2 up"),
        ({"settle": 2, "resample": True}, "leave settle out"),
        ({"rounds": 4, "resample": True}, "2 examples per round of each client, 8 in all; client 0 has 5"),
        ({"init": np.zeros((2, DIM))}, "2 initial models"),
        ({"init": np.zeros((K, DIM + 1))}, "shape"),
        ({"init": {"other": np.zeros(3)}}, "neither"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    usual, data = ct.IFCA(k=K, rounds=1), population().train
    with pytest.raises(SettingError, match=words) as raised:
        dataclasses.replace(usual, **change).fit(data, learner(steps=1))
    assert is_one_sentence(raised)


def is_one_sentence(raised):
    text = str(raised.value)
    return text.endswith(".") and ". " not in text and "\n" not in text


@pytest.mark.parametrize(
    ("local", "words"),
    [
        (ct.SGD(lr=0.1, steps=2), "and more than one step of the local update would be ignored"),
        (ct.SGD(lr=0.1, epochs=1, batch_size=3), "and epochs of the local update would be ignored"),
        (ct.SGD(lr=0.1, steps=1, momentum=0.9), "and momentum of the local"),
        (ct.SGD(lr=0.1, steps=1, weight_decay=0.1), "and weight_decay of the local"),
        (ct.SGD(lr=0.1, steps=1, clip=1.0), "and clip of the local"),
        (ct.SGD(lr=0.1, steps=1, proximal=0.1), "and the proximal term of the local"),
        (ct.Proximal(lr=0.1), "and the proximal term of the local"),
        (ct.Optax(optax.adam(0.1), steps=1), r"needs a step size: give local=SGD\(lr"),
    ],
)
def test_what_a_server_that_takes_the_steps_cannot_do_is_refused(local, words):
    of_local = ct.Learner(ct.models.Linear(), "squared", local)
    with pytest.raises(SettingError, match=words) as raised:
        ct.IFCA(k=2, rounds=1, average="gradients").fit(population().train, of_local)
    assert is_one_sentence(raised)


def test_fit_wants_clients():
    with pytest.raises(SettingError, match="Shards"):
        ct.IFCA(k=2).fit(np.zeros((3, 2)), learner())


def test_divergence_is_said_and_not_returned():
    with pytest.raises(LearnerError, match="diverged in round"):
        ct.IFCA(k=K, rounds=ROUNDS, init=start()).fit(population().train, learner(lr=1e10))
    with pytest.raises(LearnerError, match="diverged in the last round"):
        ct.IFCA(k=K, rounds=1, init=start()).fit(population().train, learner(lr=1e30))


@pytest.mark.slow
def test_works_with_any_model_that_has_init_and_apply():
    class Affine:
        def init(self, key, x):
            return {"a": jax.random.normal(key, (x.shape[1],)), "b": jnp.zeros(())}

        def apply(self, params, x):
            return x @ params["a"] + params["b"]

    data, watch = population(), Remember()
    local = ct.Learner(Affine(), "squared", ct.SGD(lr=LR, steps=STEPS))
    found = ct.IFCA(k=K, rounds=ROUNDS, n_init=1).fit(data.train, local, observers=[watch])
    # what is added is the weight of a feature that is always 1
    clients = [(np.c_[x, np.ones(len(x))], y) for x, y in clients_of(data)]
    first = stacked.take(watch.moments[0].states.models, 0)
    assert first["a"].shape == (K, DIM) and (first["b"] == 0).all()
    begin = np.c_[first["a"], first["b"]].astype(float)
    thetas, _, _ = ifca(clients, begin, LR, STEPS, [range(len(SIZES))] * ROUNDS)
    np.testing.assert_allclose(np.c_[found.models["a"], found.models["b"]], thetas, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_rounds_run_on_the_host_where_they_cannot_be_compiled():
    """The way of data that does not fit on a device, and of any federation of real clients."""
    data = population()
    compiled = several().fit(ct.Simulation(data.train), learner(), seed=1)
    on_host = several().fit(ct.Simulation(data.train, resident=False), learner(), seed=1)
    np.testing.assert_allclose(matrix(compiled), matrix(on_host), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(compiled.history.assignments(), on_host.history.assignments())
    assert [r.bytes_up for r in compiled.history] == [r.bytes_up for r in on_host.history]
