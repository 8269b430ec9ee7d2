"""Local update rules against NumPy, and padding that never changes a result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.data import Spec
from coterie.errors import SettingError
from coterie.learn.local import Objective
from coterie.learn.shard import Shard, masked_mean
from coterie.models import stacked

N, D = 10, 3
KEY = jax.random.key(7)


class Theta:
    """A linear model whose parameters are one bare array."""

    def init(self, key, x):
        return jnp.zeros(x.shape[1])

    def apply(self, params, x):
        return x @ params


THETA = Theta()


def regression(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, D)).astype(np.float32), rng.standard_normal(n).astype(np.float32)


def padded(x, y, capacity, fill="own", seed=0):
    """A shard of that capacity: beyond the real examples its own again, or garbage."""
    size = len(x)
    own = np.arange(capacity) % size
    x, y = np.array(x[own]), np.array(y[own])
    if fill == "garbage":
        rng = np.random.default_rng(seed)
        x[size:] = 100 * rng.standard_normal(x[size:].shape)
        y[size:] = rng.integers(0, 3, y[size:].shape)
    return Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))


@jax.jit
def compiled(learner, params, shard, key, round_):
    return learner.train(params, shard, key, round_)


def train(local, x, y, start, round_=0, key=KEY, capacity=None):
    learner = ct.Learner(THETA, "half_squared", local)
    shard = padded(x, y, capacity or len(x))
    return np.asarray(compiled(learner, jnp.asarray(start, jnp.float32), shard, key, jnp.asarray(round_)))


def descend(
    batches, x, y, start, lr, momentum=0.0, nesterov=False, weight_decay=0.0, clip=None, proximal=0.0
):
    """The same in NumPy, step by step, with the formulas of torch.optim.SGD."""
    theta, velocity = np.array(start, float), 0.0
    for rows in batches:
        xb, yb = x[rows].astype(float), y[rows].astype(float)
        g = xb.T @ (xb @ theta - yb) / len(rows) + proximal * (theta - start)
        if clip is not None:
            g = g * min(1, clip / np.linalg.norm(g))
        g = g + weight_decay * theta
        velocity = momentum * velocity + g
        theta = theta - lr * (g + momentum * velocity if nesterov else velocity)
    return theta


START = np.array([1.0, -2.0, 0.5])
ALL = list(range(N))
FULL = 5  # steps on the whole shard
EPOCHS, STEPS = {"epochs": 2, "batch_size": 4}, {"steps": 5, "batch_size": 4}

# -- which examples are used ---------------------------------------------------------------------------------

# adds 2**s to the parameter of every example that step s uses, so that the sum tells who was used when
RECORD = optax.chain(
    optax.stateless(lambda g, _: jax.tree.map(jnp.sign, g)), optax.scale_by_schedule(lambda s: 2.0**s)
)


@jax.jit
def record(rule, shard, key):
    n = shard.x.shape[1]
    return rule.run(Objective(lambda w, x, y: x @ w), jnp.zeros(n), shard, key, jnp.asarray(0))


def batches(n=N, key=KEY, capacity=None, **how):
    """The examples that each step uses; there is garbage behind them."""
    shard = padded(np.eye(n, dtype=np.float32), np.zeros(n, np.float32), capacity or n, "garbage")
    steps = np.asarray(record(ct.Optax(RECORD, **how), shard, key)).astype(int)
    return [np.flatnonzero(steps >> s & 1).tolist() for s in range(int(steps.max()).bit_length())]


@pytest.mark.parametrize("size, sizes", [(4, [4, 4, 2]), (5, [5, 5]), (64, [10])])
def test_an_epoch_uses_every_example_once_and_the_last_batch_may_be_smaller(size, sizes):
    used = batches(epochs=2, batch_size=size)
    assert [len(batch) for batch in used] == 2 * sizes
    for epoch in range(2):
        passed = used[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        assert sorted(i for batch in passed for i in batch) == ALL


def test_batched_steps_go_through_the_same_epochs():
    assert batches(**STEPS) == batches(**EPOCHS)[:5]


def test_epochs_and_keys_shuffle_differently():
    first, second = batches(**EPOCHS)[:3], batches(**EPOCHS)[3:]
    assert first != second and first != [ALL[:4], ALL[4:8], ALL[8:]]
    assert batches(**EPOCHS, key=jax.random.key(8))[:3] not in (first, second)


@pytest.mark.slow
def test_every_example_is_equally_likely_in_the_first_batch():
    shard = padded(np.eye(N, dtype=np.float32), np.zeros(N, np.float32), N)
    rule = ct.Optax(RECORD, steps=1, batch_size=3)
    used = np.array([record(rule, shard, key) for key in jax.random.split(KEY, 500)])
    assert (used.sum(1) == 3).all()
    assert np.abs(used.sum(0) - 150).max() < 4 * np.sqrt(500 * 0.3 * 0.7)


def test_the_order_does_not_depend_on_the_capacity():
    assert batches(**EPOCHS) == batches(capacity=19, **EPOCHS)


# -- gradient descent ----------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0.01, 0.3))
@settings(max_examples=25, deadline=None)
def test_full_batch_steps_are_gradient_descent(seed, lr):
    x, y = regression(seed=seed)
    got = train(ct.SGD(lr, steps=FULL), x, y, START)
    np.testing.assert_allclose(got, descend([ALL] * FULL, x, y, START, lr), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"momentum": 0.8, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.3},
        {"clip": 0.5},
        {"clip": 0.5, "momentum": 0.9, "weight_decay": 0.1, "proximal": 0.7},
        {"clip": 1e6},
        {"proximal": 2.0},
    ],
    ids=lambda how: "-".join(how),
)
def test_options_follow_their_formulas(how):
    x, y = regression()
    wanted, got = (
        descend([ALL] * FULL, x, y, START, 0.2, **how),
        train(ct.SGD(0.2, steps=FULL, **how), x, y, START),
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    if how != {"clip": 1e6}:
        assert np.abs(wanted - descend([ALL] * FULL, x, y, START, 0.2)).max() > 0.01


@pytest.mark.parametrize(
    "decayed", [("layers.1.weight",), ("layers.0",), ("layers.0", "layers.1.bias"), ("layers",)], ids=str
)
@pytest.mark.parametrize("shared", [False, True])
def test_only_what_is_named_has_weight_decay(decayed, shared):
    spec = Spec((D,), "float32", (), "float32")
    local = ct.SGD(0.1, steps=2, weight_decay=0.5, decayed=decayed)
    learner = ct.Learner(ct.models.MLP(hidden=(2,)), lambda f, y: 0 * f, local).for_data(spec)
    start = learner.init(KEY, spec)
    one = Shard(jnp.ones((1, D)), jnp.zeros(1), jnp.asarray(1))
    if shared:  # where a client has only a part of the model of its own
        own = stacked.named(start)
        found = learner.train(own, one, KEY, jnp.asarray(0), lambda part: stacked.from_named(part, start))
    else:
        found = stacked.named(learner.train(start, one, KEY, jnp.asarray(0)))
    for name, before in stacked.named(start).items():
        named = any(name.startswith(chosen) for chosen in decayed)
        wanted = before * (1 - 0.1 * 0.5) ** 2 if named else before
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def test_names_that_the_model_does_not_have_are_refused():
    spec = Spec((D,), "float32", (), "float32")
    local = ct.SGD(0.1, steps=2, weight_decay=0.5, decayed=("layers.0", "layers.7"))
    with pytest.raises(SettingError, match=r"names 'layers.7', .*: it has layers.0.weight, layers.0.bias, "):
        ct.Learner(ct.models.MLP(hidden=(2,)), "squared", local).for_data(spec)


@pytest.mark.parametrize("how, momentum", [(EPOCHS, 0.9), (STEPS, 0.0)], ids=["epochs", "steps"])
def test_batches_are_descended_one_after_another(how, momentum):
    x, y = regression()
    used = batches(**how)
    got = train(ct.SGD(0.1, momentum=momentum, **how), x, y, START)
    np.testing.assert_allclose(got, descend(used, x, y, START, 0.1, momentum), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("round_", [0, 1, 5])
@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.3}], ids=["plain", "momentum"])
def test_the_step_size_decays_by_round(round_, how):
    x, y = regression()
    got = train(ct.SGD(0.2, steps=FULL, decay=0.7, **how), x, y, START, round_)
    wanted = descend([ALL] * FULL, x, y, START, 0.2 * 0.7**round_, **how)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_step_sizes_are_swept_in_one_program():
    traces = []

    @jax.jit
    def run(learner, params, shard):
        traces.append(1)
        return learner.train(params, shard, KEY, jnp.asarray(1))

    x, y = regression()
    for lr, decay in ((0.1, 1.0), (0.2, 0.9), (0.3, 0.8)):
        learner = ct.Learner(THETA, "half_squared", ct.SGD(lr, steps=2, decay=decay))
        got = run(learner, jnp.asarray(START, jnp.float32), padded(x, y, N))
        np.testing.assert_allclose(got, descend([ALL] * 2, x, y, START, lr * decay), rtol=1e-4, atol=1e-5)
    assert len(traces) == 1


# -- Optax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"steps": FULL}, EPOCHS], ids=["steps", "epochs"])
def test_an_optax_optimiser_is_followed_step_by_step(how):
    x, y = regression()
    rule, round_ = optax.adam(0.05), 2

    @jax.jit
    def step(theta, state, xb, yb):
        gradient = jax.grad(lambda w: jnp.mean((yb - xb @ w) ** 2) / 2)(theta)
        updates, state = rule.update(gradient, state, theta)
        return theta + 0.9**round_ * updates, state

    theta = jnp.asarray(START, jnp.float32)
    state = rule.init(theta)
    for rows in batches(**how):
        theta, state = step(theta, state, x[np.array(rows)], y[np.array(rows)])
    got = train(ct.Optax(rule, decay=0.9, **how), x, y, START, round_)
    np.testing.assert_allclose(got, theta, rtol=1e-4, atol=1e-5)


def test_an_optax_optimiser_can_be_clipped_and_kept_near():
    x, y = regression()
    got = train(ct.Optax(optax.sgd(0.2), steps=4, clip=0.5, proximal=0.7), x, y, START)
    wanted = descend([ALL] * 4, x, y, START, 0.2, clip=0.5, proximal=0.7)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


# -- padding -------------------------------------------------------------------------------------------------

NETWORK = ct.Learner(ct.models.MLP(hidden=(4,)), "cross_entropy").for_data(
    Spec((D,), "float32", (), "int32", classes=3)
)
RULES = {
    "full batch": ct.SGD(0.5, steps=3),
    "one batch": ct.SGD(0.5, epochs=2, batch_size=10),
    "steps": ct.SGD(0.5, steps=5, batch_size=3),
    "momentum": ct.SGD(0.2, epochs=2, batch_size=3, momentum=0.9, weight_decay=0.01, proximal=0.1, clip=1.0),
    "adam": ct.Optax(optax.adam(0.01), epochs=2, batch_size=3),
}


@jax.jit
def everything(learner, models, shard, key):
    """All that a client computes."""
    model = stacked.take(models, 1)
    return {
        "loss": learner.shard_loss(model, shard),
        "losses": learner.shard_losses(models, shard),
        "accuracy": learner.shard_accuracy(model, shard),
        "gradient": learner.gradient(model, shard, key),
        "trained": learner.train(model, shard, key, jnp.asarray(3)),
    }


@jax.jit
def networks(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    return jax.vmap(lambda key: NETWORK.init(key, Spec((D,), "float32", (), "int32", classes=3)))(keys)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@given(size=st.integers(1, 8), seed=st.integers(0, 10**6))
@example(size=8, seed=0)
@example(size=1, seed=0)
@settings(max_examples=10, deadline=None)
def test_padding_never_changes_a_result(rule, size, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((size, D)).astype(np.float32), rng.integers(0, 3, size)
    learner = dataclasses.replace(NETWORK, local=RULES[rule])
    models, key = networks(seed), jax.random.key(seed)
    # size 8 fills the smaller capacity: there the comparison is with no padding at all
    wanted = everything(learner, models, padded(x, y, 8), key)
    if size == 8:  # it is trained at all
        moved = jax.tree.map(lambda new, old: float(np.abs(new - old[1]).max()), wanted["trained"], models)
        assert min(jax.tree.leaves(moved)) > 1e-3
    for capacity, fill in ((8, "garbage"), (13, "own"), (13, "garbage")):
        got = everything(learner, models, padded(x, y, capacity, fill, seed), key)
        for part in wanted:
            for a, b in zip(jax.tree.leaves(got[part]), jax.tree.leaves(wanted[part]), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=part)


def test_the_mean_over_no_example_is_zero():
    values = jnp.array([1.0, jnp.nan, 5.0])
    assert masked_mean(values, jnp.array([True, False, True])) == 3
    assert masked_mean(values, jnp.zeros(3, bool)) == 0


# -- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how, sentence",
    [
        ({}, "needs either steps or epochs, and not both"),
        ({"steps": 1, "epochs": 1, "batch_size": 1}, "needs either steps or epochs, and not both"),
        ({"epochs": 1}, "epochs needs a batch_size"),
        ({"steps": 0}, "steps must be a whole number from 1 up, not 0"),
        ({"epochs": 0, "batch_size": 2}, "epochs must be a whole number from 1 up, not 0"),
        ({"steps": 1, "batch_size": 0}, "batch_size must be a whole number from 1 up, not 0"),
        ({"steps": 1, "clip": 0.0}, "clip must be positive, not 0.0"),
        ({"steps": 1, "clip": -1.0}, "clip must be positive, not -1.0"),
        ({"steps": 1.5}, "steps must be a whole number, not 1.5"),
        ({"steps": 1, "proximal": -0.1}, "proximal must not be negative, not -0.1"),
        ({"steps": 1, "decay": 0.0}, "decay must be above 0 and at most 1, not 0.0"),
    ],
)
@pytest.mark.parametrize(
    "rule", [ct.SGD, lambda **how: ct.Optax(optax.adam(0.1), **how)], ids=["SGD", "Optax"]
)
def test_impossible_settings_are_refused(rule, how, sentence):
    with pytest.raises(SettingError, match=sentence):
        rule(**how)


@pytest.mark.parametrize(
    "how, sentence",
    [
        *(({"lr": lr}, f"lr must be a positive number, not {lr}") for lr in (0, -0.1, float("inf"))),
        ({"lr": float("nan")}, "lr must be a number, not nan"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"nesterov": True}, "nesterov needs a momentum"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative, not -1.0"),
        ({"decayed": ("layers.0",)}, "decayed needs a weight_decay above 0."),
        (
            {"decayed": "layers.0", "weight_decay": 0.1},
            "decayed must be a list of names, not 'layers.0'.",
        ),
        ({"decayed": (), "weight_decay": 0.1}, r"decayed must hold .* not \(\)\."),
    ],
)
def test_impossible_settings_of_sgd_are_refused(how, sentence):
    with pytest.raises(SettingError, match=sentence):
        ct.SGD(**{"lr": 0.1, "steps": 1, **how})


@pytest.mark.parametrize(
    "local, sentence",
    [
        (ct.SGD(0.1, steps=2), "more than one step"),
        (ct.SGD(0.1, epochs=1, batch_size=5), "and epochs of the local update"),
        (ct.SGD(0.1, steps=1, momentum=0.9), "momentum"),
        (ct.SGD(0.1, steps=1, weight_decay=0.1), "weight_decay"),
        (ct.SGD(0.1, steps=1, clip=1.0), "clip"),
        (ct.SGD(0.1, steps=1, proximal=0.1), "the proximal term"),
        (ct.Proximal(0.1, steps=1), "the proximal term"),
        (ct.Optax(optax.sgd(0.1), steps=1), "averaging gradients needs a step size"),
    ],
)
def test_a_server_that_takes_the_steps_itself_refuses_what_it_would_ignore(local, sentence):
    with pytest.raises(SettingError, match=f"{sentence}.*SGD\\(lr=..., steps=1\\)"):
        local.check_single_step()


def test_a_server_may_take_plain_steps_itself():
    local = ct.SGD(0.1, steps=1, decay=0.5, batch_size=3)
    local.check_single_step()
    assert local.step_size() == (jnp.float32(0.1), 0.5)
    assert ct.Optax(optax.sgd(0.1), steps=1).step_size() == (None, None)
