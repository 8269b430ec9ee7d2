"""What a client can be asked, against NumPy on linear regression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bare_model import Theta
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie import keys
from coterie.learn import tasks
from coterie.learn.shard import Shard
from coterie.models import stacked

K, D, CAPACITY = 3, 4, 9
KEY = jax.random.key(3)


LEARNER = ct.Learner(Theta(), "squared", ct.SGD(0.05, steps=2, decay=0.5))


def problem(size=5, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((CAPACITY, D)), rng.standard_normal(CAPACITY)
    models = rng.standard_normal((K, D))
    return *(a.astype(np.float32) for a in (x, y, models)), size


def shard(x, y, size):
    return Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))


def loss_of(theta, x, y, size):
    return np.mean([(y[i] - x[i] @ theta) ** 2 for i in range(size)])


def trained(theta, x, y, size, lr, steps=2):
    theta = theta.astype(float)
    for _ in range(steps):
        theta = theta - lr * np.mean([2 * (x[i] @ theta - y[i]) * x[i] for i in range(size)], axis=0)
    return theta


def compiled(task, learner=LEARNER):
    return jax.jit(lambda *arguments: task(learner, *arguments))


choose_and_train, choose_and_gradient, train, losses, evaluate = map(
    compiled,
    (tasks.choose_and_train, tasks.choose_and_gradient, tasks.train, tasks.losses, tasks.evaluate),
)


def asked(models, round_=0, by_examples=False):
    content = {"models": jnp.asarray(models), "round": jnp.asarray(round_)}
    return content | ({"by_examples": jnp.asarray(True)} if by_examples else {})


# -- the cluster identity ------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "row, cluster",
    [
        ([3, 1, 2], 1),
        ([1, 1, 1], 0),
        ([2, 1, 1], 1),
        ([NAN, 5, 4], 2),
        ([NAN, 5, NAN], 1),
        ([NAN, NAN, NAN], 0),
        ([INF, INF, 7], 2),
        ([NAN, -INF, 0], 1),
    ],
)
def test_the_lowest_loss_wins_the_first_in_a_tie_and_never_a_nan(row, cluster):
    chosen = tasks.lowest(jnp.array(row, jnp.float32))
    assert chosen == cluster and chosen.dtype == jnp.int32


@given(
    st.lists(
        st.lists(
            st.one_of(st.just(NAN), st.floats(-3, 3, width=32, allow_subnormal=False)), min_size=3, max_size=3
        ),
        min_size=4,
        max_size=4,
    )
)
@settings(max_examples=30, deadline=None)
def test_lowest_of_many_rows_is_that_of_each(rows):
    rows = np.array(rows, np.float32)
    wanted = [
        min(range(3), key=lambda j: (np.isnan(row[j]), row[j] if row[j] == row[j] else 0)) for row in rows
    ]
    assert np.asarray(tasks.lowest(jnp.asarray(rows))).tolist() == wanted


# -- the tasks -----------------------------------------------------------------------------------------------


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.integers(0, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_choose_and_train_improves_the_model_of_lowest_loss(size, seed, round_, by_examples):
    x, y, models, _ = problem(seed=seed)
    reply = choose_and_train(asked(models, round_, by_examples), None, shard(x, y, size), KEY)
    each = [loss_of(theta, x, y, size) for theta in models]
    best = int(np.argmin(each))
    assert reply.cluster == best
    assert reply.report.keys() == {"loss"}
    assert reply.report["loss"] == pytest.approx(each[best], rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(
        reply.value, trained(models[best], x, y, size, 0.05 * 0.5**round_), rtol=1e-4, atol=1e-5
    )
    assert reply.weight == (size if by_examples else 1)


def test_a_client_of_equal_models_takes_the_first():
    x, y, models, size = problem()
    assert choose_and_train(asked(models[[2, 2, 2]]), None, shard(x, y, size), KEY).cluster == 0


def test_a_model_that_diverged_is_never_chosen():
    x, y, models, size = problem()
    for diverged in range(K):
        broken = models.copy()
        broken[diverged] = np.nan
        reply = choose_and_train(asked(broken), None, shard(x, y, size), KEY)
        assert reply.cluster != diverged and np.isfinite(reply.value).all()


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_choose_and_gradient_sends_the_gradient_of_the_model_of_lowest_loss(size, seed, by_examples):
    x, y, models, _ = problem(seed=seed)
    reply = choose_and_gradient(asked(models, 0, by_examples), None, shard(x, y, size), KEY)
    each = [loss_of(theta, x, y, size) for theta in models]
    best = int(np.argmin(each))
    assert reply.cluster == best and reply.weight == (size if by_examples else 1)
    assert reply.report["loss"] == pytest.approx(each[best], rel=1e-4, abs=1e-6)
    stepped = trained(models[best], x, y, size, 1.0, steps=1)
    np.testing.assert_allclose(models[best] - reply.value, stepped, rtol=1e-4, atol=1e-4)


def test_train_improves_the_clients_own_model():
    x, y, models, size = problem()
    each = {"model": jnp.asarray(models[0]), "takes_part": jnp.array([True])}
    reply = train({"rounds": jnp.array([1])}, each, shard(x, y, size), KEY)
    assert reply.report["loss"] == pytest.approx([loss_of(models[0], x, y, size)], rel=1e-4)
    np.testing.assert_allclose(reply.value, trained(models[0], x, y, size, 0.025), rtol=1e-4, atol=1e-5)
    assert reply.weight == 1 and reply.cluster == 0


def test_rounds_trained_together_are_the_rounds_one_by_one():
    learner = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=0.05, steps=2, batch_size=3))
    x, y, _, size = problem()
    mine = shard(x, y, size)
    model = learner.init(KEY, ct.Shards.from_lists([x], [y]).spec)
    run = compiled(tasks.train, learner)
    numbers, takes_part = jnp.array([4, 5, 6]), jnp.array([True, False, True])
    together = run({"rounds": numbers}, {"model": model, "takes_part": takes_part}, mine, KEY)
    for t in range(3):
        each = {"model": model, "takes_part": takes_part[t : t + 1]}
        reply = run({"rounds": numbers[t : t + 1]}, each, mine, KEY)
        np.testing.assert_allclose(together.report["loss"][t], reply.report["loss"][0], rtol=1e-6)
        moved = stacked.to_matrix(jax.tree.map(lambda a, b: (a - b)[None], reply.value, model))
        assert bool(jnp.abs(moved).max() > 0) == bool(takes_part[t])
        model = reply.value
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), together.value, model)


def test_losses_are_those_of_every_model():
    x, y, models, size = problem()
    reply = losses({"models": jnp.asarray(models)}, None, shard(x, y, size), KEY)
    np.testing.assert_allclose(reply.report["losses"], [loss_of(m, x, y, size) for m in models], rtol=1e-4)
    assert reply.value is None


@pytest.mark.parametrize("model", range(K))
def test_evaluate_looks_at_the_clients_model(model):
    x, y, models, size = problem()
    reply = evaluate({"models": jnp.asarray(models)}, {"only": jnp.asarray(model)}, shard(x, y, size), KEY)
    assert reply.report["loss"] == pytest.approx(loss_of(models[model], x, y, size), rel=1e-4)
    assert np.isnan(reply.report["accuracy"])
    assert reply.report["examples"] == size


def test_evaluate_counts_the_labels_that_are_right():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CAPACITY, D)).astype(np.float32), rng.integers(0, 2, CAPACITY)
    weights = rng.standard_normal((K, D, 2)).astype(np.float32)
    reply = compiled(tasks.evaluate, ct.Learner(Theta(), "cross_entropy"))(
        {"models": jnp.asarray(weights)}, {"only": jnp.asarray(2)}, shard(x, y, 6), KEY
    )
    right = [(x[i] @ weights[2]).argmax() == y[i] for i in range(6)]
    assert reply.report["accuracy"] == pytest.approx(np.mean(right))


# -- carrying out --------------------------------------------------------------------------------------------


def draw(learner, broadcast, each, shard, key):
    """A task whose reply depends on all that it is given."""
    return tasks.Reply(
        report={"lot": jax.random.uniform(key), "sent": broadcast["a"] + 10 * each, "size": shard.size},
        value=broadcast["a"] * jnp.ones(2),
        cluster=each,
    )


def carry_out(broadcast, each, token, key, replicas):
    x, y, _, size = problem()
    return tasks.carry_out(draw, LEARNER, broadcast, each, shard(x, y, size), token, key, replicas)


TOKEN = keys.words(keys.tokens(["ann"]))[0]


def test_a_client_draws_from_its_own_key():
    reply = carry_out({"a": jnp.asarray(1.0)}, jnp.asarray(2), TOKEN, KEY, None)
    assert reply.report["lot"] == jax.random.uniform(keys.of_client(KEY, TOKEN))
    assert reply.report["sent"] == 21 and reply.report["size"] == 5
    other = carry_out({"a": jnp.asarray(1.0)}, jnp.asarray(2), keys.words(keys.tokens(["bob"]))[0], KEY, None)
    assert other.report["lot"] != reply.report["lot"]


def test_cluster_and_weight_travel_as_numbers_of_fixed_type():
    reply = carry_out({"a": jnp.asarray(1.0)}, jnp.asarray(2, jnp.int8), TOKEN, KEY, None)
    assert reply.cluster.dtype == jnp.int32 and reply.weight.dtype == jnp.float32
    assert reply.cluster == 2 and reply.weight == 1


def test_replicas_are_separate_calls_with_keys_folded_from_the_clients():
    broadcast, each = {"a": jnp.array([1.0, 2.0, 3.0])}, jnp.array([2, 0, 1])
    together = carry_out(broadcast, each, TOKEN, KEY, 3)
    own = keys.of_client(KEY, TOKEN)
    x, y, _, size = problem()
    for r in range(3):
        alone = draw(
            LEARNER, {"a": broadcast["a"][r]}, each[r], shard(x, y, size), jax.random.fold_in(own, r)
        )
        for name, value in alone.report.items():
            assert together.report[name][r] == value
        np.testing.assert_array_equal(together.value[r], alone.value)
        assert together.cluster[r] == each[r] and together.weight[r] == 1
    assert len(set(together.report["lot"].tolist())) == 3


def test_replicas_of_choose_and_train_are_those_of_each_start():
    x, y, models, size = problem()
    learner = ct.Learner(Theta(), "squared", ct.SGD(0.05, epochs=1, batch_size=2))
    starts = np.stack([models, models[::-1], 2 * models])
    broadcast = {
        "models": jnp.asarray(starts),
        "round": jnp.zeros(3, int),
        "by_examples": jnp.ones(3, bool),
    }

    @jax.jit
    def together(broadcast, shard):
        return tasks.carry_out(tasks.choose_and_train, learner, broadcast, None, shard, TOKEN, KEY, 3)

    alone, replies = compiled(tasks.choose_and_train, learner), together(broadcast, shard(x, y, size))
    for r in range(3):
        key = jax.random.fold_in(keys.of_client(KEY, TOKEN), r)
        one = alone(asked(starts[r], 0, True), None, shard(x, y, size), key)
        np.testing.assert_allclose(replies.value[r], one.value, rtol=1e-5, atol=1e-6)
        assert replies.cluster[r] == one.cluster and replies.weight[r] == one.weight
