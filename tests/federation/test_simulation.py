"""The engine: what is asked is answered right, however clients are batched, spread, or stored."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from support.buckets import many_buckets

import coterie as ct
from coterie.aggregate import Summing
from coterie.errors import ClientError, LearnerError, SettingError
from coterie.federation import simulation as engine
from coterie.learn.task import Reply, Task, per_client
from coterie.learn.tasks import ChooseAndTrain, CountExamples, MeasureLosses
from coterie.models import stacked

DIM, K = 5, 3
SIZES = [1, 7, 5, 6, 8, 1, 6, 8, 7, 5]  # in two buckets
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))


@many_buckets
def population(seed):
    return ct.data.mixed_regression(
        k=2, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.3, seed=seed
    ).train


@pytest.fixture(scope="module")
def shards():
    return population(3)


@pytest.fixture(scope="module")
def models():
    return jnp.asarray(np.random.default_rng(0).standard_normal((K, DIM)), jnp.float32)


def of(shards, **settings):
    return ct.Simulation(shards, **{"batch": 2, **settings}).with_learner(LEARNER)


def as_models(matrix):
    return stacked.from_matrix(matrix, LEARNER.for_data(SPEC).shapes(SPEC))


SPEC = ct.data.Spec((DIM,), "float32", (), "float32")


def choose(models, starts=None):
    task = ChooseAndTrain(as_models(models), jnp.asarray(2), by_examples=True)
    if starts is None:
        return task
    return jax.tree.map(lambda a: jnp.stack([a * (1 + r) for r in range(starts)]).astype(a.dtype), task)


def measure(models):
    return MeasureLosses(as_models(models))


def train(simulation, models, **options):
    return simulation.ask(choose(models), key=jax.random.key(7), **{"reduce": Summing(K), **options})


def assert_same(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


class Number(eqx.Module):
    n: Array


class Draw(Task):
    """Quickly compiled, and depends on the client's data, size and key."""

    factor: Array

    def __call__(self, client):
        rows = jnp.where(client.shard.mask[:, None], client.shard.x, 0).sum(0)
        size = client.shard.size
        value = self.factor * jax.random.uniform(client.key) * rows
        return Reply(Number(jax.random.bits(client.key)), value, cluster=size % K, weight=size)


def draw(simulation, **options):
    return simulation.ask(Draw(jnp.asarray(2.0)), key=jax.random.key(7), **options)


class Repeat(Task):
    """Tells all that the client is told, and how many examples it has."""

    models: Array
    own: Array = per_client()

    def __call__(self, client):
        told = self.models.sum() + 10 * self.own + 100 * client.only + 1000 * client.shard.size
        return Reply(Number(told), value=self.own)


def test_losses_are_each_clients_own_mean(shards, models):
    answers = of(shards).ask(measure(models))
    expected = [[np.mean((y - x @ theta) ** 2) for theta in np.asarray(models)] for x, y in shards]
    np.testing.assert_allclose(answers.report.losses, expected, rtol=1e-5)
    np.testing.assert_array_equal(answers.clients, np.arange(len(SIZES)))
    assert np.asarray(answers.answered).all()


@pytest.mark.parametrize(
    "settings",
    # on one device, three at once of the larger five: the last three are not all new
    [{"batch": 1}, {"batch": 100}, {"devices": 1, "batch": 3}, {"resident": False}, {"debug": True}],
    ids=str,
)
def test_results_do_not_depend_on_how_clients_are_computed(shards, settings):
    if "devices" in settings:
        settings = settings | {"devices": jax.local_devices()[: settings["devices"]]}
    plain, other = of(shards), of(shards, **settings)
    chosen = np.array([8, 1, 5, 4, 7, 2])
    assert_same(*(draw(each, clients=each.select(chosen), reduce=Summing(K)) for each in (plain, other)))


@pytest.mark.parametrize(
    "settings", [{}, {"sample_space": False}, {"resident": False}, {"debug": True}], ids=str
)
def test_features_of_one_byte_are_scaled_on_the_device(settings):
    rng = np.random.default_rng(0)
    bytes_, y = rng.integers(0, 256, (60, 30), np.uint8), rng.standard_normal(60, np.float32)
    owner = np.repeat(np.arange(6), 10)
    stored = of(ct.Shards.from_flat(bytes_, y, owner, scale=1 / 255), **settings)
    assert all(rows.x.dtype == np.uint8 for rows in stored._rows)
    seen = of(ct.Shards.from_flat(bytes_ / 255, y, owner), sample_space=False)
    models = rng.standard_normal((K, 30))
    as_models = stacked.from_matrix(
        jnp.asarray(models, jnp.float32), LEARNER.for_data(seen.spec).shapes(seen.spec)
    )
    task = ChooseAndTrain(as_models, jnp.asarray(2))
    assert_same(*(each.ask(task, key=jax.random.key(7), reduce=Summing(K)) for each in (stored, seen)))


def test_memory_mapped_shards_can_stay_on_disk(shards, models, tmp_path):
    shards.save(tmp_path)
    on_disk = ct.Shards.open(tmp_path)
    assert isinstance(on_disk.buckets[0].x, np.memmap)
    assert_same(of(shards).ask(measure(models)), of(on_disk, resident=False).ask(measure(models)))


def test_reduction_equals_the_sum_of_the_replies(shards, models):
    simulation = of(shards)
    single = train(simulation, models, reduce=None)
    sums = train(simulation, models).value
    cluster, weight = np.asarray(single.cluster), np.asarray(SIZES, float)
    values = np.asarray(stacked.to_matrix(single.value))
    for j in range(K):
        mine = cluster == j
        np.testing.assert_allclose(
            stacked.to_matrix(sums.total)[j], weight[mine] @ values[mine], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(sums.weight[j], weight[mine].sum())


def test_starts_equal_separate_asks(shards, models):
    simulation, task = of(shards), MeasureLosses(choose(models, starts=2).models)
    both = simulation.ask(task, key=jax.random.key(1), starts=2)
    assert both.answered.shape == both.cluster.shape == both.weight.shape == (2, len(SIZES))
    for r in range(2):
        alone = simulation.ask(stacked.take(task, r)).report.losses
        np.testing.assert_allclose(both.report.losses[r], alone, rtol=1e-5)
        np.testing.assert_array_equal(both.of_start(r).report.losses, both.report.losses[r])


def test_starts_reduce_separately(shards):
    simulation, task = of(shards), Draw(jnp.array([1.0, 3.0]))
    options = {"key": jax.random.key(1), "starts": 2}
    sums = simulation.ask(task, reduce=Summing(K), **options).value
    kept = simulation.ask(task, **options)
    for r in range(2):
        member = np.eye(K)[np.asarray(kept.cluster)[r]] * np.asarray(SIZES)[:, None]
        np.testing.assert_allclose(sums.total[r], member.T @ np.asarray(kept.value[r]), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(sums.weight[r], member.sum(0))


@pytest.mark.parametrize("how", [{}, {"resident": False}, {"debug": True}], ids=str)
def test_each_client_is_told_what_is_its_own_by_every_start(shards, how):
    simulation, sizes, rng = of(shards, **how), np.array(SIZES), np.random.default_rng(0)
    sent, own, only = (rng.integers(-1, K, (2, count)) for count in (K, len(SIZES), len(SIZES)))
    told = sent.sum(1, keepdims=True) + 10 * own + 100 * only + 1000 * sizes
    chosen = np.array([9, 0, 5, 1])
    clients = simulation.select(chosen)
    task, mine = Repeat(jnp.asarray(sent), jnp.asarray(own[:, chosen])), jnp.asarray(only[:, chosen])
    both = simulation.ask(task, only=mine, clients=clients, starts=2)
    np.testing.assert_array_equal(both.report.n, told[:, chosen])
    np.testing.assert_array_equal(both.value, own[:, chosen])
    alone = simulation.ask(Repeat(task.models[1], task.own[1]), only=mine[1], clients=clients)
    np.testing.assert_array_equal(alone.report.n, told[1, chosen])


def test_order_of_clients_changes_nothing(shards, models):
    order = np.random.default_rng(0).permutation(len(SIZES))
    with many_buckets:
        one, other = of(shards), of(shards[order])
    a, b = train(one, models, reduce=None), train(other, models, reduce=None)
    assert_same(stacked.take(a.value, order), b.value)
    np.testing.assert_array_equal(np.asarray(a.cluster)[order], b.cluster)
    drawn = [np.asarray(draw(each).report.n) for each in (one, other)]
    np.testing.assert_array_equal(drawn[0][order], drawn[1])
    assert len(set(drawn[0].tolist())) == len(SIZES)


def test_a_dropped_client_counts_nowhere_and_is_named(shards):
    answers = draw(of(shards, drop=0.4), reduce=Summing(K))
    answered = np.asarray(answers.answered)
    assert 0 < answered.sum() < len(SIZES)
    np.testing.assert_allclose(answers.value.weight.sum(), np.asarray(SIZES)[answered].sum())
    for key, same in ((7, True), (8, False)):  # drawn anew in every ask
        other = of(shards, drop=0.4).ask(Draw(jnp.asarray(1.0)), key=jax.random.key(key), reduce=Summing(K))
        assert (np.asarray(other.answered) == answered).all() == same


def test_simulations_of_equal_shape_share_a_program_and_not_their_data(shards, models):
    a = of(shards)
    other = population(4)
    first = a.ask(measure(models))
    compiled = engine._ask._cache_size()
    second = of(other).ask(measure(models))
    assert engine._ask._cache_size() == compiled
    assert not np.allclose(first.report.losses, second.report.losses)


def test_bytes_are_those_of_the_arrays_that_travel(shards, models):
    answers = train(of(shards), models)
    assert answers.traffic.down == K * DIM * 4 + 4  # models, round; a setting is but a word
    assert answers.traffic.up == DIM * 4 + 4 + 4 + 4  # model, cluster, weight, loss


def memory(simulation, task, reduce=None):
    kind, everybody, each = task.split()
    program = engine._ask.lower(
        simulation, kind, reduce, None, everybody, each, None, None, jax.random.key(0)
    )
    return program.compile().memory_analysis().temp_size_in_bytes


def big_population(clients, width=256):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, 4, width), dtype=np.float32)
    return ct.Shards.from_lists(list(x), list(x[..., 0]))


@pytest.fixture(scope="module")
def single_device():
    return {"devices": jax.local_devices()[:1]}


@pytest.mark.slow
def test_summed_models_need_the_memory_of_one_batch(single_device):
    """Twice the clients at the same batch: no more memory beyond the data and the small reports."""
    width, learner = 256, ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=2))
    needed = {}
    for clients in (64, 128):
        simulation = ct.Simulation(big_population(clients), batch=4, **single_device).with_learner(learner)
        one = simulation._learner.init(jax.random.key(0), simulation.spec)
        task = ChooseAndTrain(jax.tree.map(lambda a: a[None].repeat(2, 0), one), jnp.asarray(0))
        needed[clients] = memory(simulation, task, Summing(2))
    per_client_model = width * 4
    assert needed[128] - needed[64] < 64 * per_client_model / 4


@pytest.mark.slow
def test_broadcast_models_are_evaluated_without_a_copy_per_client(single_device):
    clients, k, hidden = 128, 4, 64
    learner = ct.Learner(ct.models.MLP(hidden=(hidden,)), "squared")
    simulation = ct.Simulation(big_population(clients), batch=clients, **single_device).with_learner(learner)
    one = simulation._learner.init(jax.random.key(0), simulation.spec)
    task = MeasureLosses(jax.tree.map(lambda a: a[None].repeat(k, 0), one))
    copies = clients * k * sum(a.size for a in jax.tree.leaves(one)) * 4
    assert memory(simulation, task) < copies / 8


class Stumble(Task):
    """Fails at a client with exactly seven examples."""

    def __call__(self, client):
        if client.shard.x.shape[0] == 7:
            raise ZeroDivisionError("seven")
        return Reply(Number(client.shard.size))


class Poisoned(Task):
    def __call__(self, client):
        return Reply(Number(jnp.where(client.shard.size == 6, jnp.nan, 1.0)))


def test_debug_mode_names_client_and_task(shards):
    simulation = of(shards, debug=True)
    with pytest.raises(ClientError, match=r"client 1 failed in task 'Stumble'.*seven"):
        simulation.ask(Stumble())
    with pytest.raises(ClientError, match=r"client 3 failed in task 'Poisoned'.*'report\.n'.*NaN"):
        simulation.ask(Poisoned())


def test_precision_is_explicit_and_recorded(shards):
    assert of(shards).describe()["precision"] == "float32"
    assert of(shards, precision="bfloat16").describe()["precision"] == "bfloat16"
    assert {"device", "devices", "batch", "jax"} <= of(shards).describe().keys()


@pytest.mark.parametrize("settings", [{}, {"sample_space": False}, {"resident": False}], ids=str)
def test_bfloat16_rounds_what_clients_compute_and_nothing_else(settings):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 40), np.float32), rng.standard_normal(60, np.float32)
    shards = ct.Shards.from_flat(x, y, np.repeat(np.arange(6), 10))
    half = of(shards, precision="bfloat16", **settings)
    assert all(rows.x.dtype == jnp.bfloat16 and rows.y.dtype == jnp.float32 for rows in half._rows)
    models = jnp.asarray(rng.standard_normal((K, 40)), jnp.float32)
    like = LEARNER.for_data(shards.spec).shapes(shards.spec)
    task = ChooseAndTrain(stacked.from_matrix(models, like), jnp.asarray(2))
    plain, rounded = (
        each.ask(task, key=jax.random.key(7)) for each in (of(shards, sample_space=False), half)
    )
    assert {leaf.dtype for leaf in jax.tree.leaves((rounded.value, rounded.report))} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(rounded.cluster, plain.cluster)
    np.testing.assert_allclose(rounded.report.loss, plain.report.loss, rtol=0.02)
    start = models[plain.cluster]
    moved, expected = (np.asarray(stacked.to_matrix(each.value) - start) for each in (rounded, plain))
    assert 0 < np.abs(moved - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": "some"}, "batch"),
        ({"precision": "int4"}, "precision"),
        ({"drop": 1.0}, "drop"),
    ],
)
def test_impossible_settings_are_refused(shards, settings, words):
    with pytest.raises(SettingError, match=words):
        ct.Simulation(shards, **settings)


def test_asking_needs_a_learner_that_fits_and_clients_that_exist(shards):
    with pytest.raises(SettingError, match="with_learner"):
        ct.Simulation(shards).ask(CountExamples())
    with pytest.raises(LearnerError, match="cross_entropy needs integer"):
        ct.Simulation(shards).with_learner(ct.Learner(ct.models.MLP()))
    with pytest.raises(SettingError, match="between 0 and 9"):
        of(shards).select(np.array([10]))
    with pytest.raises(SettingError, match="this task has no models"):
        of(shards).ask(CountExamples(), only=np.zeros(len(SIZES), np.int32))
