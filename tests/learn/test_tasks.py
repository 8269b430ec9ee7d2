"""What a client can be asked, against NumPy on linear regression."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array
from support.bare_model import Theta

import coterie as ct
from coterie import keys
from coterie.learn import task as seam
from coterie.learn import tasks
from coterie.learn.catalogue import TASKS
from coterie.learn.moments import MultiplyMoment
from coterie.learn.shard import Shard
from coterie.learn.soft import TrainBetween
from coterie.learn.task import Client, Reply, Task, per_client
from coterie.learn.tasks import ChooseAndTrain, Evaluate, MeasureLosses, TrainAlone, WeighAndTrain
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


def trained(theta, x, y, size, lr, steps=2, mu=0.0):
    """Gradient descent on F(w) + mu/2 |w - w0|^2: FedProx's objective, and without mu that of FedAvg."""
    start = theta = theta.astype(float)
    for _ in range(steps):
        slope = np.mean([2 * (x[i] @ theta - y[i]) * x[i] for i in range(size)], axis=0)
        theta = theta - lr * (slope + mu * (theta - start))
    return theta


@jax.jit
def reply_of(task, shard, only=None, learner=LEARNER, key=KEY):
    return task(Client(learner, shard, key, only))


def choose(models, round_=0, **how):
    return ChooseAndTrain(jnp.asarray(models), jnp.asarray(round_), **how)


# -- the cluster identity ------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")


ROWS = [
    ([3, 1, 2], 1),
    ([1, 1, 1], 0),
    ([2, 1, 1], 1),
    ([NAN, 5, 4], 2),
    ([NAN, 5, NAN], 1),
    ([NAN, NAN, NAN], 0),
    ([INF, INF, 7], 2),
    ([NAN, -INF, 0], 1),
]


@pytest.mark.parametrize("row, cluster", ROWS)
def test_the_lowest_loss_wins_the_first_in_a_tie_and_never_a_nan(row, cluster):
    chosen = tasks.lowest(jnp.array(row, jnp.float32))
    assert chosen == cluster and chosen.dtype == jnp.int32
    rows, clusters = zip(*ROWS, strict=True)
    assert tuple(tasks.lowest(jnp.array(rows, jnp.float32)).tolist()) == clusters


# -- the tasks -----------------------------------------------------------------------------------------------


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.integers(0, 3), st.booleans())
@settings(max_examples=25, deadline=None)
def test_choose_and_train_improves_the_model_of_lowest_loss(size, seed, round_, by_examples):
    x, y, models, _ = problem(seed=seed)
    reply = reply_of(choose(models, round_, by_examples=by_examples), shard(x, y, size))
    each = [loss_of(theta, x, y, size) for theta in models]
    best = int(np.argmin(each))
    assert reply.cluster == best
    assert stacked.named(reply.report).keys() == {"loss"}
    assert reply.report.loss == pytest.approx(each[best], rel=1e-4, abs=1e-6)
    np.testing.assert_allclose(
        reply.value, trained(models[best], x, y, size, 0.05 * 0.5**round_), rtol=1e-4, atol=1e-5
    )
    assert reply.weight == (size if by_examples else 1)


def test_a_model_that_diverged_is_never_chosen():
    x, y, models, size = problem()
    for diverged in range(K):
        broken = models.copy()
        broken[diverged] = np.nan
        reply = reply_of(choose(broken), shard(x, y, size))
        assert reply.cluster != diverged and np.isfinite(reply.value).all()


@given(st.integers(1, CAPACITY), st.integers(0, 10**6), st.booleans())
@settings(max_examples=25, deadline=None)
def test_or_it_sends_the_gradient_of_that_model(size, seed, by_examples):
    x, y, models, _ = problem(seed=seed)
    reply = reply_of(choose(models, send="gradients", by_examples=by_examples), shard(x, y, size))
    each = [loss_of(theta, x, y, size) for theta in models]
    best = int(np.argmin(each))
    assert reply.cluster == best and reply.weight == (size if by_examples else 1)
    assert reply.report.loss == pytest.approx(each[best], rel=1e-4, abs=1e-6)
    stepped = trained(models[best], x, y, size, 1.0, steps=1)
    np.testing.assert_allclose(models[best] - reply.value, stepped, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("send", ["models", "gradients"])
@pytest.mark.parametrize("told", [-1, 0, 1, 2])
def test_a_client_that_is_told_a_model_takes_that_whatever_the_losses(told, send):
    x, y, models, size = problem()
    each = [loss_of(theta, x, y, size) for theta in models]
    takes = int(np.argmin(each)) if told < 0 else told
    reply = reply_of(choose(models, send=send), shard(x, y, size), jnp.asarray(told))
    assert reply.cluster == takes
    assert reply.report.loss == pytest.approx(each[takes], rel=1e-4)
    if send == "models":
        found, wanted = reply.value, trained(models[takes], x, y, size, 0.05)
    else:
        found, wanted = models[takes] - reply.value, trained(models[takes], x, y, size, 1.0, steps=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_with_a_proximal_term_it_descends_the_objective_of_fedprox():
    """F(w) + mu/2 |w - w0|^2, whose gradient is that of F and mu (w - w0), where w0 is the model received."""
    mu = 0.7
    x, y, models, size = problem(7)
    learner = ct.Learner(Theta(), "squared", ct.SGD(0.05, steps=6))
    reply = reply_of(choose(models, proximal=jnp.asarray(mu)), shard(x, y, size), learner=learner)
    chosen = models[int(reply.cluster)]
    wanted = trained(chosen, x, y, size, 0.05, steps=6, mu=mu)
    np.testing.assert_allclose(reply.value, wanted, rtol=1e-4, atol=1e-5)
    # the same as if it were a setting of the local update, and on top of one that is
    theirs = ct.Learner(Theta(), "squared", ct.SGD(0.05, steps=6, proximal=mu + 0.3))
    ours = ct.Learner(Theta(), "squared", ct.SGD(0.05, steps=6, proximal=0.3))
    of_both = [
        reply_of(choose(models, **how), shard(x, y, size), learner=own).value
        for own, how in ((theirs, {}), (ours, {"proximal": jnp.asarray(mu)}))
    ]
    np.testing.assert_allclose(*of_both, rtol=1e-5, atol=1e-6)
    assert np.abs(wanted - trained(chosen, x, y, size, 0.05, steps=6)).max() > 0.01


@pytest.mark.parametrize(
    ("find", "train", "send"),
    [
        ((0, 3), (1, 3), "models"),
        ((2, 3), (0, 3), "gradients"),
        (None, (1, 2), "models"),
        ((1, 4), None, "gradients"),
    ],
)
def test_a_model_is_found_on_one_part_of_the_shard_and_trained_on_another(find, train, send):
    x, y, models, size = problem(8)
    y = np.empty_like(y)
    for part in range(3):  # every part has another model, as far as there are three
        y[part::3] = x[part::3] @ models[part]

    def part_of(part):
        """Examples dealt out in turn, all parts of one size."""
        number, of = (0, 1) if part is None else part
        mine = [number + of * i for i in range(size // of)]
        return x[mine], y[mine], len(mine)

    on = {"find_on": find, "train_on": train}
    parts = {name: None if part is None else jnp.asarray(part) for name, part in on.items()}
    reply = reply_of(choose(models, send=send, by_examples=True, **parts), shard(x, y, size))
    each = [loss_of(theta, *part_of(find)) for theta in models]
    best = int(np.argmin(each))
    if find is not None and find[1] == 3:
        assert best == find[0]
    assert reply.cluster == best
    assert reply.report.loss == pytest.approx(each[best], rel=1e-4, abs=1e-6)
    assert reply.weight == size  # it has as many examples as ever
    if send == "models":
        found, wanted = reply.value, trained(models[best], *part_of(train), 0.05)
    else:
        found, wanted = models[best] - reply.value, trained(models[best], *part_of(train), 1.0, steps=1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    whole = trained(models[best], x, y, size, 0.05)
    assert train is None or np.abs(trained(models[best], *part_of(train), 0.05) - whole).max() > 0.01


def test_soft_labels_weigh_the_loss_of_every_model():
    x, y, models, size = problem()
    task = WeighAndTrain(jnp.asarray(models), jnp.asarray(1), jnp.asarray(2.0))
    reply = reply_of(task, shard(x, y, size))
    each = np.array([loss_of(theta, x, y, size) for theta in models])
    labels = np.exp(-each / 2) / np.exp(-each / 2).sum()
    np.testing.assert_allclose(reply.report.labels, labels, rtol=1e-4)
    assert reply.report.loss == pytest.approx(labels @ each, rel=1e-4)
    assert reply.cluster == each.argmin() and reply.weight == 1
    for model, label, found in zip(models, labels, reply.value, strict=True):
        np.testing.assert_allclose(
            found, trained(model, x, y, size, label * 0.05 * 0.5), rtol=1e-4, atol=1e-5
        )


def test_train_alone_improves_the_model_that_it_starts_from():
    x, y, models, size = problem()
    reply = reply_of(TrainAlone(jnp.asarray(models[0]), 2), shard(x, y, size))
    after = trained(models[0], x, y, size, 0.05)
    losses = [loss_of(model, x, y, size) for model in (models[0], after)]
    assert reply.report.loss == pytest.approx(losses, rel=1e-4)
    np.testing.assert_allclose(reply.value, trained(after, x, y, size, 0.025), rtol=1e-4, atol=1e-5)
    assert reply.weight == 1 and reply.cluster == 0


def test_rounds_trained_together_are_the_rounds_one_by_one():
    learner = ct.Learner(Theta(), "squared", ct.SGD(lr=0.05, steps=2, batch_size=3))
    x, y, models, size = problem()
    mine, takes_part = shard(x, y, size), np.array([True, False, True])
    together = reply_of(
        TrainAlone(jnp.asarray(models[0]), 3, takes_part=jnp.asarray(takes_part)), mine, learner=learner
    )
    train, model = jax.jit(learner.train), models[0]
    for t in range(3):
        assert together.report.loss[t] == pytest.approx(loss_of(model, x, y, size), rel=1e-4)
        if takes_part[t]:
            old, model = model, np.asarray(train(model, mine, jax.random.fold_in(KEY, t), jnp.asarray(t)))
            assert np.abs(model - old).max() > 0
    np.testing.assert_allclose(together.value, model, rtol=1e-5)


@pytest.mark.parametrize("part", [None, (1, 2)])
def test_alone_and_measuring_may_be_about_a_part_of_the_shard(part):
    x, y, models, size = problem(8)
    mine = (x, y, size) if part is None else (x[1::2], y[1::2], 4)
    given = None if part is None else jnp.asarray(part)
    reply = reply_of(TrainAlone(jnp.asarray(models[0]), 1, part=given), shard(x, y, size))
    np.testing.assert_allclose(reply.value, trained(models[0], *mine, 0.05), rtol=1e-4, atol=1e-5)
    reply = reply_of(MeasureLosses(jnp.asarray(models), given), shard(x, y, size))
    np.testing.assert_allclose(reply.report.losses, [loss_of(m, *mine) for m in models], rtol=1e-4)
    assert reply.value is None


@pytest.mark.parametrize("model", range(K))
def test_evaluate_looks_at_the_clients_model(model):
    x, y, models, size = problem()
    reply = reply_of(Evaluate(jnp.asarray(models)), shard(x, y, size), jnp.asarray(model))
    assert reply.report.loss == pytest.approx(loss_of(models[model], x, y, size), rel=1e-4)
    assert np.isnan(reply.report.accuracy)
    assert reply.report.examples == size


def test_evaluate_counts_the_labels_that_are_right():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((CAPACITY, D)).astype(np.float32), rng.integers(0, 2, CAPACITY)
    weights = rng.standard_normal((K, D, 2)).astype(np.float32)
    learner = ct.Learner(Theta(), "cross_entropy")
    reply = reply_of(Evaluate(jnp.asarray(weights)), shard(x, y, 6), jnp.asarray(2), learner)
    right = [(x[i] @ weights[2]).argmax() == y[i] for i in range(6)]
    assert reply.report.accuracy == pytest.approx(np.mean(right))


# -- what is sent --------------------------------------------------------------------------------------------


def test_a_task_is_split_into_settings_and_what_everybody_and_each_client_is_sent():
    models, own, pulls = jnp.ones((K, D)), jnp.zeros((5, D)), jnp.ones((5, K))
    kind, everybody, each = TrainBetween(models, jnp.asarray(2), own, pulls).split()
    assert kind == seam.Kind(TrainBetween) and kind.name == "TrainBetween"
    assert everybody.keys() == {"models", "round"} and everybody["models"] is models
    assert each == {"model": own, "pulls": pulls}
    one = kind.with_content(everybody, {name: rows[0] for name, rows in each.items()})
    assert isinstance(one, TrainBetween) and one.model.shape == (D,) and one.models is models
    # some fields may be either
    _, everybody, each = MultiplyMoment(jnp.ones((2, K, D)), jnp.ones((2, D))).split()
    assert everybody.keys() == {"directions", "models"} and each == {}
    rows = jnp.ones((5, 2, D))
    _, everybody, each = MultiplyMoment(jnp.ones((2, K, D)), first=rows, second=2 * rows).split()
    assert everybody.keys() == {"directions"} and each.keys() == {"first", "second"}


def test_what_is_none_is_not_sent_and_a_setting_is_part_of_the_kind():
    models = jnp.ones((K, D))
    kind, everybody, each = choose(models, send="gradients").split()
    assert everybody.keys() == {"models", "round"} and each == {}
    settings_ = {"by_examples": False, "frozen": False, "send": "gradients"}
    assert dict(kind.settings) == settings_
    _, more, _ = choose(models, proximal=jnp.asarray(0.5), find_on=jnp.array([0, 2])).split()
    assert more.keys() == {"models", "round", "proximal", "find_on"}
    again = choose(2 * models, 7, send="gradients").split()[0]
    assert again == kind and hash(again) == hash(kind)  # one compiled program
    assert choose(models).split()[0] != kind
    back = kind.with_content(everybody, each)
    assert back.send == "gradients" and back.shared is None and back.split()[0] == kind


def test_clients_know_every_task_by_the_name_of_its_class():
    assert all(issubclass(task, Task) and task.__name__ == name for name, task in TASKS.items())
    of_most = {"ChooseAndTrain", "WeighAndTrain", "TrainAlone", "MeasureLosses", "CountExamples", "Evaluate"}
    of_some = {"MultiplyMoment", "DescendMoment", "CountNearest", "TrainBetween"}
    assert TASKS.keys() >= of_most | of_some


def test_a_task_says_what_work_it_is():
    model = jnp.ones(D)
    assert choose(model[None]).updates() == 1 and choose(model[None]).compared(3) == 3
    assert TrainAlone(model, 7).updates() == 7 and TrainAlone(model, 7).compared(3) == 0
    takes_part = jnp.array([[True, False, True], [False, False, True]])
    assert TrainAlone(model, 3, takes_part=takes_part).updates().tolist() == [2, 1]
    assert MeasureLosses(model[None]).updates() == 0 and MeasureLosses(model[None]).compared(3) == 3
    assert Evaluate(model[None]).updates() == 0 and Evaluate(model[None]).compared(3) == 0


# -- carrying out --------------------------------------------------------------------------------------------


class Draw(Task):
    """A task whose reply depends on all that it is given."""

    a: Array
    b: Array = per_client()

    class Report(eqx.Module):
        lot: Array
        sent: Array
        size: Array
        only: Array | None

    def __call__(self, client):
        sent = self.a + 10 * self.b
        report = self.Report(jax.random.uniform(client.key), sent, client.shard.size, client.only)
        return Reply(report, value=self.a * jnp.ones(2), cluster=self.b)


def carry_out(a, b, token=None, starts=None, only=None):
    x, y, _, size = problem()
    kind, everybody, each = Draw(jnp.asarray(a), b).split()
    token = TOKEN if token is None else token
    return seam.carry_out(kind, LEARNER, everybody, each, only, shard(x, y, size), token, KEY, starts)


TOKEN, OTHER = keys.words(keys.tokens(["ann", "bob"]))


def test_a_client_draws_from_its_own_key_and_numbers_are_of_fixed_type():
    reply = carry_out(1.0, jnp.asarray(2, jnp.int8))
    assert reply.report.lot == jax.random.uniform(keys.of_client(KEY, TOKEN))
    assert reply.report.sent == 21 and reply.report.size == 5 and reply.report.only is None
    assert carry_out(1.0, jnp.asarray(2, jnp.int8), OTHER).report.lot != reply.report.lot
    assert reply.cluster.dtype == jnp.int32 and reply.weight.dtype == jnp.float32
    assert reply.cluster == 2 and reply.weight == 1


@pytest.mark.parametrize("starts", [None, 3])
def test_what_is_left_at_its_default_does_not_travel(starts):
    x, y, _, size = problem()
    kind, everybody, each = Draw(
        *(jnp.zeros(() if starts is None else starts, t) for t in (float, int))
    ).split()
    shape = seam.shape_of(kind, LEARNER, everybody, each, None, shard(x, y, size), starts)
    assert shape.weight == 1.0 and isinstance(shape.weight, float)
    assert shape.cluster.shape == () and shape.value.shape == (2,) and shape.report.lot.shape == ()
    plain = seam.shape_of(seam.Kind(tasks.CountExamples), LEARNER, {}, {}, None, shard(x, y, size), None)
    assert plain.value is None and plain.cluster == 0 and isinstance(plain.cluster, int)


def test_starts_are_separate_calls_with_keys_folded_from_the_clients():
    a, b, only = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 1]), jnp.array([-1, 1, 0])
    together = carry_out(a, b, starts=3, only=only)
    own = keys.of_client(KEY, TOKEN)
    x, y, _, size = problem()
    for r in range(3):
        client = Client(LEARNER, shard(x, y, size), jax.random.fold_in(own, r), only[r])
        alone = Draw(a[r], b[r])(client)
        for name, value in stacked.named(alone.report).items():
            assert stacked.named(together.report)[name][r] == value
        np.testing.assert_array_equal(together.value[r], alone.value)
        assert together.cluster[r] == b[r] and together.weight[r] == 1
    assert len(set(together.report.lot.tolist())) == 3
