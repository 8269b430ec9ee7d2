"""How many clients are computed at once: from what they need, and less where memory is short."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.aggregate.mean import Summing
from coterie.algorithms import driver
from coterie.errors import FederationError
from coterie.federation import batches, simulation
from coterie.federation.program import Program
from coterie.learn.task import Reply

DATA = ct.data.mixed_regression(k=2, clients=9, examples=[3, 5, 8] * 3, dim=3, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))
IFCA = ct.IFCA(k=2, rounds=3, n_init=2)


def on_one_device():
    return ct.Simulation(DATA.train, batch=8, devices=jax.devices()[:1])


class Short:
    """A device on which programs fail that compute more than so many clients at once."""

    def __init__(self, program, most):
        self.program, self.most, self.tried = program, most, []

    def __call__(self, *arguments):
        federation = next(a for a in arguments if isinstance(a, ct.Simulation))
        if not isinstance(federation._rows[0].size, jax.core.Tracer):
            batch = federation._settings.batch >> federation._settings.halved
            self.tried.append(batch)
            if batch > self.most:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
        return self.program(*arguments)


@pytest.fixture
def short(monkeypatch):
    """Make the device short of memory, in rounds and in other asks."""

    def make(most):
        monkeypatch.setattr(batches, "may_run_out", lambda: True)
        rounds, asks = Short(driver.compiled_round, most), Short(simulation._ask, most)
        monkeypatch.setattr(driver, "compiled_round", rounds)
        monkeypatch.setattr(simulation, "_ask", asks)
        return rounds, asks

    return make


def test_where_memory_is_short_the_batch_is_halved_and_that_is_said_once(short):
    wanted = IFCA.fit(on_one_device(), LEARNER, seed=1)
    rounds, asks = short(2)
    with pytest.warns(UserWarning, match="too little memory for as many clients at once") as said:
        found = IFCA.fit(on_one_device(), LEARNER, seed=1)
    assert len(said) == 1
    assert sorted({*rounds.tried, *asks.tried}) == [2, 4, 8]
    assert rounds.tried[-1] == asks.tried[-1] == 2, "once it fits, it stays so"
    np.testing.assert_array_equal(found.assignment, wanted.assignment)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found.models, wanted.models)


def test_if_not_even_one_client_fits_that_is_said(short):
    short(0)
    with (
        pytest.warns(UserWarning, match="too little memory"),
        pytest.raises(FederationError, match="too little memory for one client at a time"),
    ):
        IFCA.fit(on_one_device(), LEARNER, seed=1)


def test_other_errors_of_the_device_are_not_hidden():
    def fails():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        batches.until_it_fits(fails, lambda: pytest.fail("it is not the memory"))


def at_once(monkeypatch, model, platform, memory, x_shape=(10, 6, 6, 1), clients=50, trains=True):
    """How many of some clients are computed at once on some device."""
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(simulation, "memory", lambda devices: memory)
    rng = np.random.default_rng(0)
    xs = rng.random((clients, *x_shape), np.float32)
    ys = rng.integers(0, 3, (clients, x_shape[0])).astype(np.int32)
    chosen = []
    original = batches.at_once
    monkeypatch.setattr(batches, "at_once", lambda *a: chosen.append(original(*a)) or chosen[-1])
    sized = ct.Simulation(ct.Shards.from_lists(list(xs), list(ys)), devices=jax.devices()[:1])
    learner = ct.Learner(model, local=ct.SGD(0.1, steps=2))
    ready = sized.with_learner(learner)
    models = jax.tree.map(lambda a: jnp.zeros((2, *a.shape)), ready._learner.shapes(ready.spec))
    tasks = ct.learn.tasks
    task = tasks.ChooseAndTrain(models, jnp.asarray(0)) if trains else tasks.MeasureLosses(models)
    parts, key = task.split(), jax.random.key(0)
    traced = simulation._ask.__wrapped__  # anew, though an ask of the same shapes may be known
    jax.eval_shape(lambda: traced(ready, parts[0], None, None, *parts[1:], None, None, key)[0].value)
    return chosen[0][0]


class Convolution:
    """The smallest network with a convolution."""

    def init(self, key, x):
        return jax.random.normal(key, (3, 3, x.shape[-1], 3))

    def apply(self, params, x):
        same = jax.lax.conv_general_dilated(
            x, params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return same.mean((1, 2))


def test_an_accelerator_takes_what_its_memory_holds_and_convolutions_of_jax_one_by_one(monkeypatch):
    dense = ct.models.MLP(hidden=(8,))
    assert at_once(monkeypatch, dense, "gpu", 2**34) == 50
    assert 1 < at_once(monkeypatch, dense, "gpu", 2**18) < 50
    assert at_once(monkeypatch, Convolution(), "gpu", 2**34) == 1
    ours = ct.models.CNN((3,), kernel=3, hidden=(4,))
    assert at_once(monkeypatch, ours, "gpu", 2**34) == 50
    # what a kernel sees counts, which is not made for a client by itself: 121 times the image of a channel
    wide = ct.models.CNN((3,), kernel=11, hidden=(4,))
    little = at_once(monkeypatch, wide, "gpu", 2**23)
    assert 1 < little < at_once(monkeypatch, ours, "gpu", 2**23) / 3


def test_a_cpu_takes_as_many_as_its_cache_holds(monkeypatch):
    assert at_once(monkeypatch, ct.models.MLP(hidden=(8,)), "cpu", 0) > 4
    assert at_once(monkeypatch, ct.models.MLP(hidden=(4096,)), "cpu", 0) == 1


def test_a_cpu_takes_more_where_models_that_all_have_in_common_are_only_applied(monkeypatch):
    dense = ct.models.MLP(hidden=(8,))
    large = {"platform": "cpu", "memory": 0, "x_shape": (50, 32, 32, 1)}  # by themselves they fill the cache
    assert at_once(monkeypatch, dense, **large) == 1
    assert at_once(monkeypatch, dense, **large, trains=False) == 800 // 50
    assert at_once(monkeypatch, Convolution(), **large, trains=False) == 1


@pytest.mark.parametrize("starts", [None, 2])
@pytest.mark.parametrize("wrong", [False, True])
def test_an_accelerator_sums_in_one_pass_what_a_cpu_sums(monkeypatch, starts, wrong):
    lead = (6,) if starts is None else (6, starts)
    rng = np.random.default_rng(0)
    value = rng.standard_normal((*lead, 3)).astype(np.float32)
    if wrong:
        value[4] = np.nan  # of cluster 1, and one that does not answer
        value[5] = np.inf
    cluster = np.array([0, 1, 0, 1, 1, 0]).reshape(6, *[1] * (len(lead) - 1)) + np.zeros(lead, int)
    replies = Reply(None, value, jnp.asarray(cluster), jnp.ones(lead))
    answered = jnp.array([True] * 5 + [False])
    program = Program(None, Summing(2), starts, 0.0, 6)
    empty = program.start(Reply(None, jax.ShapeDtypeStruct((3,), jnp.float32)))
    wanted, _ = program.reduced(empty, replies, answered)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found, rest = jax.jit(program.reduced)(empty, replies, answered)
    assert rest.value is None
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, wanted)
    of_one = np.asarray(found.total if starts is None else found.total[0])
    assert np.isfinite(of_one[0]).all() and np.isnan(of_one[1]).all() == wrong
