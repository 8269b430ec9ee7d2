"""What a client of a soft clustering can be asked, against NumPy on linear regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bare_model import Theta

import coterie as ct
from coterie.flower import JaxClient, Own, wire
from coterie.learn.catalogue import TASKS
from coterie.learn.local import Objective, Pull
from coterie.learn.shard import Shard
from coterie.learn.soft import CountNearest, TrainBetween
from coterie.learn.task import Client
from coterie.models import stacked

K, D, CAPACITY = 3, 4, 9
KEY = jax.random.key(3)
LR, STEPS, DECAY = 0.05, 4, 0.5


LEARNER = ct.Learner(Theta(), "squared", ct.SGD(LR, steps=STEPS, decay=DECAY))


@jax.jit
def reply_of(task, shard, learner=LEARNER):
    return task(Client(learner, shard, KEY))


def count_nearest(models, shard):
    return reply_of(CountNearest(jnp.asarray(models)), shard)


def problem(size, seed=0):
    """Examples, garbage behind them, and k models."""
    rng = np.random.default_rng(seed)
    x, y, models = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((CAPACITY, D), CAPACITY, (K, D))
    )
    x[size:] *= 100
    return x, y, models, Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))


# -- importance ----------------------------------------------------------------------------------------------


@given(st.integers(1, CAPACITY), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_example_counts_for_the_model_that_fits_it_best(size, seed):
    x, y, models, shard = problem(size, seed)
    counts, total = np.zeros(K, int), np.zeros(K)
    for i in range(size):
        losses = [float(y[i] - x[i] @ model) ** 2 for model in models]
        counts[int(np.argmin(losses))] += 1
        total += losses
    reply = count_nearest(models, shard)
    assert reply.report.counts.tolist() == counts.tolist()
    assert reply.report.counts.dtype == jnp.int32
    np.testing.assert_allclose(reply.report.losses, total / size, rtol=1e-4)
    assert reply.value is None


def test_the_first_of_equal_models_counts():
    _, _, models, shard = problem(7)
    reply = count_nearest(models[[1, 1, 1]], shard)
    assert reply.report.counts.tolist() == [7, 0, 0]
    twice = count_nearest(models[[0, 1, 1]], shard).report.counts
    assert twice[2] == 0 and twice[1] > 0 and twice.sum() == 7


@pytest.mark.parametrize("broken", range(K))
def test_a_model_that_diverged_fits_no_example(broken):
    _, _, models, shard = problem(8)
    others = [j for j in range(K) if j != broken]
    alone = count_nearest(models[[*others, others[1]]], shard)
    models[broken] = np.nan
    counts = count_nearest(models, shard).report.counts
    assert counts[broken] == 0
    assert counts[np.array(others)].tolist() == alone.report.counts[:2].tolist()


def test_examples_that_no_model_fits_count_for_the_first():
    _, _, models, shard = problem(8)
    counts = count_nearest(jnp.full_like(models, jnp.nan), shard).report.counts
    assert counts.tolist() == [8, 0, 0]


# -- training ------------------------------------------------------------------------------------------------


def descent(w, x, y, centres, pulls, lr, steps=STEPS, proximal=0.0):
    """Gradient descent on the mean of (y - <x, w>)^2 and sum_s pulls_s / 2 * |w - c_s|^2, term by term."""
    start = w = w.astype(float)
    for _ in range(steps):
        slope = -2 * x.T.astype(float) @ (y - x @ w) / len(y) + proximal * (w - start)
        for centre, pull in zip(centres, pulls, strict=True):
            slope = slope + pull * (w - centre)
        w = w - lr * slope
    return w


def minimum(w, x, y, centres, pulls, eta):
    """argmin of the same and |w - start|^2 / (2 eta), by the normal equations."""
    left = 2 * x.T @ x / len(y) + (sum(pulls) + 1 / eta) * np.eye(D)
    right = 2 * x.T @ y / len(y) + w / eta
    for centre, pull in zip(centres, pulls, strict=True):
        right = right + pull * centre
    return np.linalg.solve(left, right)


def lots(seed):
    rng = np.random.default_rng(seed + 1)
    return rng.standard_normal(D).astype(np.float32), rng.random(K).astype(np.float32)


def asked(centres, own, pulls, round_=0):
    return TrainBetween(centres, jnp.asarray(round_), own, jnp.asarray(pulls))


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_a_clients_own_model_goes_down_between_the_centres(size, seed, round_):
    x, y, centres, shard = problem(size, seed)
    own, pulls = lots(seed)
    reply = reply_of(asked(jnp.asarray(centres), jnp.asarray(own), 3 * pulls, round_), shard)
    wanted = descent(own, x[:size], y[:size], centres, 3 * pulls, LR * DECAY**round_)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)
    # the loss is that before the update, without what draws it elsewhere
    loss = np.mean((y[:size] - x[:size] @ own) ** 2)
    np.testing.assert_allclose(reply.report.loss, loss, rtol=1e-4)
    assert reply.cluster == 0 and reply.weight == 1


def test_without_a_pull_it_trains_alone():
    x, y, centres, shard = problem(6)
    own, _ = lots(0)
    reply = reply_of(asked(jnp.asarray(centres), jnp.asarray(own), np.zeros(K, np.float32)), shard)
    wanted = descent(own, x[:6], y[:6], centres, np.zeros(K), LR)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)


def test_the_rules_own_proximal_term_is_added():
    x, y, centres, shard = problem(6)
    own, pulls = lots(0)
    learner = ct.Learner(Theta(), "squared", ct.SGD(LR, steps=STEPS, proximal=2.5))
    reply = reply_of(asked(jnp.asarray(centres), jnp.asarray(own), pulls), shard, learner)
    wanted = descent(own, x[:6], y[:6], centres, pulls, LR, proximal=2.5)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(wanted - descent(own, x[:6], y[:6], centres, pulls, LR)).max() > 0.01


class Unmarked(ct.models.Linear):
    """A linear model that does not say so."""

    linear_in_parameters = False


@pytest.mark.parametrize("model, tolerance", [(ct.models.Linear, 1e-4), (Unmarked, 2e-3)])
def test_proximal_finds_the_minimum(model, tolerance):
    spec = ct.Shards.from_lists([np.zeros((2, D))], [np.zeros(2)]).spec
    model = ct.Learner(model(), "squared").for_data(spec).model
    one = ct.Learner(model, "squared").shapes(spec)
    for eta, size, factor in ((0.3, 3, 1.0), (0.3, 9, 5.0), (1e4, 9, 1.0), (1e4, 9, 0.0)):
        x, y, centres, shard = problem(size, seed=size)
        own, pulls = lots(size)
        trees = stacked.from_matrix(centres, one), stacked.take(stacked.from_matrix(own[None], one), 0)
        learner = ct.Learner(model, "squared", ct.Proximal(lr=eta, steps=200))
        reply = reply_of(asked(*trees, factor * pulls), shard, learner)
        found = stacked.to_matrix(jax.tree.map(lambda a: a[None], reply.value))[0]
        wanted = minimum(own, x[:size].astype(float), y[:size], centres, factor * pulls, eta)
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_a_pull_has_the_slope_of_its_definition():
    away = jnp.array([1.0, -2.0])
    pull = Pull({"a": jnp.zeros(2)}, 3.0)
    assert pull({"a": away}) == pytest.approx(1.5 * 5)
    np.testing.assert_allclose(jax.grad(pull)({"a": away})["a"], 3 * away)
    objective = Objective(lambda w, x, y: 0 * y, pull=pull)
    assert objective.mean({"a": away}, None, jnp.ones(2), jnp.ones(2, bool)) == pytest.approx(7.5)


# -- over a network ------------------------------------------------------------------------------------------


def test_a_client_knows_both_tasks_by_name():
    assert TASKS["CountNearest"] is CountNearest and TASKS["TrainBetween"] is TrainBetween


def letter(task, spec, model):
    """A task as one client is sent it."""
    kind, everybody, each = task.split()
    return wire.Request(
        client="a",
        task=kind.name,
        settings=wire.settings_to_send(kind),
        split="train",
        spec=spec,
        starts=None,
        key=np.array([7, 8], np.uint32),
        everybody=wire.flatten(everybody, model),
        each=wire.flatten(each, model),
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    "local", [ct.SGD(0.1, steps=3), ct.SGD(0.1, steps=3, proximal=0.5, clip=0.7)], ids=["plain", "clipped"]
)
def test_a_pytorch_client_does_as_a_jax_client_does(local):
    torch = pytest.importorskip("torch")
    from support.torch_nets import Linear

    from coterie.torch import TorchClient

    data = ct.data.mixed_regression(clients=2, k=2, dim=5, examples=20, seed=3)
    x, y = data.train.client(0)
    examples = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    ours = JaxClient(ct.Learner(ct.models.Linear(), "squared", local), Own("a", data.train[[0]], None))
    theirs = TorchClient("a", Linear(), examples, loss="squared", local=local)
    spec = data.train.spec
    model = ct.Learner(ct.models.Linear(), "squared").for_data(spec).shapes(spec)
    rng = np.random.default_rng(0)
    draw = {"models": rng.standard_normal((K, 5)), "model": rng.standard_normal((1, 5))}
    models, own = (stacked.from_matrix(draw[name].astype(np.float32), model) for name in draw)
    broken = jax.tree.map(lambda a: a.at[0].set(np.nan).at[2].set(a[1]), models)
    pulls = np.array([0.2, 3.0, 0.7], np.float32)
    round_, start = np.int32(2), stacked.take(own, 0)
    asks = [
        CountNearest(models),
        CountNearest(broken),
        TrainBetween(models, round_, start, pulls),
        TrainBetween(models, round_, start, 0 * pulls),
    ]
    replies = []
    for task in asks:
        ask = letter(jax.device_get(task), spec, model)
        expected, got = ours.carry_out(ask), theirs.carry_out(ask)
        assert got.keys() == expected.keys()
        for name, array in expected.items():
            assert (got[name].shape, got[name].dtype) == (array.shape, array.dtype), name
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
        replies.append(got)
    assert replies[0]["report/counts"].sum() == 20 and (replies[0]["report/counts"] > 0).all()
    assert replies[1]["report/counts"].tolist() == [0, 20, 0]
    drawn, alone = (reply["value:layers.0.weight"] for reply in replies[2:])
    assert np.abs(drawn - alone).max() > 0.05
