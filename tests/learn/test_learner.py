"""A learner fits its model to the data, or says why it cannot."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.data import Spec
from coterie.errors import LearnerError, SettingError
from coterie.learn.shard import Shard
from coterie.learn.tasks import MeasureLosses
from coterie.models import stacked

LABELS = Spec((4,), "float32", (), "int32", classes=3)
SEQUENCES = Spec((4,), "float32", (5,), "int32", classes=3)
NUMBERS = Spec((4,), "float32", (), "float32")
VECTORS = Spec((4,), "float32", (2,), "float32")


class Dense:
    """Like a Flax module: nested dictionaries of parameters, made for a batch and applied to one."""

    def __init__(self, features):
        self.features = features

    def init(self, key, x):
        a, b = jax.random.split(key)
        hidden = {"kernel": jax.random.normal(a, (x.shape[-1], 3)), "bias": jnp.zeros(3)}
        return {"params": {"hidden": hidden, "head": {"kernel": jax.random.normal(b, (3, self.features))}}}

    def apply(self, variables, x):
        params = variables["params"]
        h = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
        return h @ params["head"]["kernel"]


class Theta:
    """Parameters that are one bare array."""

    def init(self, key, x):
        return jnp.zeros(x.shape[1])

    def apply(self, params, x):
        return x @ params


class Fixed:
    """Made for features of one shape only."""

    def init(self, key, x):
        return jnp.zeros(7)

    def apply(self, params, x):
        return x @ params


class Returns:
    """Gives outputs that are no array, or of the wrong length."""

    def __init__(self, outputs):
        self.outputs = outputs

    def init(self, key, x):
        return jnp.zeros(1)

    def apply(self, params, x):
        return self.outputs


def absolute(outputs, y):
    return jnp.abs(outputs - y)


def hinge(outputs, y):
    own = jnp.take_along_axis(outputs, y[:, None], axis=1)
    return jnp.maximum(0, 1 + outputs - own).sum(1) - 1


@pytest.mark.parametrize("model", [ct.models.Linear(), ct.models.MLP(hidden=(5,))])
@pytest.mark.parametrize(
    "spec, loss, outputs",
    [
        (LABELS, "cross_entropy", (3,)),
        (SEQUENCES, "cross_entropy", (5, 3)),
        (NUMBERS, "squared", ()),
        (NUMBERS, "half_squared", ()),
        (VECTORS, "squared", (2,)),
        (NUMBERS, absolute, ()),
        (LABELS, hinge, (3,)),
    ],
)
def test_outputs_are_decided_by_the_data(model, spec, loss, outputs):
    learner = ct.Learner(model, loss)
    fitted = learner.for_data(spec)
    assert fitted.model == dataclasses.replace(model, outputs=outputs)
    assert fitted.loss is learner.loss and fitted.local == learner.local
    assert fitted.for_data(spec) == fitted


@pytest.mark.parametrize("classes, fits", [(2, True), (3, True), (4, False)])
def test_a_model_may_have_more_outputs_than_there_are_classes_but_not_fewer(classes, fits):
    learner = ct.Learner(ct.models.Linear(outputs=3))
    spec = dataclasses.replace(LABELS, classes=classes)
    if fits:
        assert learner.for_data(spec) == learner
    else:
        with pytest.raises(LearnerError, match=r"outputs of shape \(3,\) but the labels need \(4,\)"):
            learner.for_data(spec)


@pytest.mark.parametrize(
    "model, loss, spec, sentence",
    [
        (
            ct.models.Linear(),
            "cross_entropy",
            NUMBERS,
            "cross_entropy needs integer class labels but the targets",
        ),
        (
            ct.models.Linear(outputs=()),
            "cross_entropy",
            LABELS,
            r"outputs of shape \(\) but the labels need \(3,\)",
        ),
        (
            ct.models.Linear(outputs=3),
            "cross_entropy",
            SEQUENCES,
            r"but the labels need \(5, 3\): one output per",
        ),
        (
            ct.models.Linear(outputs=(4, 3)),
            "cross_entropy",
            SEQUENCES,
            r"outputs of shape \(4, 3\) but the labels",
        ),
        (
            ct.models.Linear(outputs=1),
            "squared",
            NUMBERS,
            r"outputs of shape \(1,\) but the targets have shape \(\)",
        ),
        (
            ct.models.MLP(outputs=3),
            "half_squared",
            VECTORS,
            r"outputs of shape \(3,\) but the targets have shape \(2,\)",
        ),
        (ct.models.Linear(), "squared", LABELS, r"outputs of shape \(3,\) but the targets have shape \(\)"),
        (Fixed(), "squared", NUMBERS, r"cannot be applied to features of shape \(4,\)"),
        (Returns((1, 2)), "squared", NUMBERS, r"cannot be applied to features of shape \(4,\)"),
        (
            Theta(),
            lambda f, y: jnp.mean(absolute(f, y)),
            NUMBERS,
            r"one number per example; .* it gives shape \(\)",
        ),
        (ct.models.Linear(), absolute, VECTORS, r"one number per example; .* it gives shape \(1, 2\)"),
        (ct.models.Linear(), "hinge", LABELS, "unknown loss 'hinge'"),
    ],
)
def test_a_learner_that_does_not_fit_the_data_is_refused(model, loss, spec, sentence):
    with pytest.raises((LearnerError, SettingError), match=sentence):
        ct.Learner(model, loss).for_data(spec)


@pytest.mark.parametrize(
    "model, loss, spec",
    [
        (Theta(), "squared", NUMBERS),
        (Theta(), absolute, NUMBERS),
        (Dense(3), "cross_entropy", LABELS),
        (Dense(3), hinge, LABELS),
    ],
)
def test_models_and_losses_of_the_users_own_fit_as_they_are(model, loss, spec):
    learner = ct.Learner(model, loss)
    assert learner.for_data(spec) is learner


def shard(size=5, capacity=8):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((capacity, 4)).astype(np.float32)
    return x, rng.integers(0, 3, capacity), size


@pytest.mark.parametrize("loss", ["cross_entropy", hinge])
def test_a_flax_like_model_is_evaluated_and_trained(loss):
    learner = ct.Learner(Dense(3), loss, ct.SGD(0.3, steps=1))
    x, y, size = shard()
    params = learner.init(jax.random.key(0), LABELS)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, learner.shapes(LABELS))

    @jax.jit
    def client(learner, params, shard):
        trained = learner.train(params, shard, jax.random.key(0), jnp.asarray(0))
        accuracy = learner.shard_accuracy(params, shard)
        gradient = learner.gradient(params, shard, jax.random.key(0))
        return learner.shard_loss(params, shard), accuracy, gradient, trained

    mean, accuracy, gradient, trained = client(
        learner, params, Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))
    )

    p = jax.tree.map(np.asarray, params)["params"]
    outputs = np.tanh(x @ p["hidden"]["kernel"] + p["hidden"]["bias"]) @ p["head"]["kernel"]
    own = outputs[np.arange(8), y]
    if loss == "cross_entropy":
        each = np.log(np.exp(outputs).sum(1)) - own
        assert accuracy == pytest.approx((outputs.argmax(1) == y)[:size].mean())
    else:
        each = np.maximum(0, 1 + outputs - own[:, None]).sum(1) - 1
        assert np.isnan(accuracy)
    assert mean == pytest.approx(each[:size].mean(), rel=1e-5)
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    for new, old, g in zip(*map(jax.tree.leaves, (trained, params, gradient)), strict=True):
        np.testing.assert_allclose(new, old - 0.3 * g, rtol=1e-5, atol=1e-6)
        assert np.abs(g).max() > 0


@pytest.mark.slow
def test_a_nested_model_goes_through_an_algorithm():
    data = ct.data.mixed_regression(k=1, clients=3, examples=6, dim=4, noise=0)
    shards = ct.Shards.from_lists([x for x, _ in data.train], [(y > 0).astype(int) for _, y in data.train])
    found = ct.Global(rounds=3).fit(shards, ct.Learner(Dense(2), "cross_entropy", ct.SGD(0.3, steps=1)))
    assert found.models["params"]["head"]["kernel"].shape == (1, 3, 2)
    assert found.history[2].loss < found.history[0].loss


def test_a_learner_is_a_pytree_of_its_step_size():
    learner = ct.Learner(Theta(), "squared", ct.SGD(0.25, steps=1, decay=0.5))
    assert sorted(jax.tree.leaves(learner)) == [0.25, 0.5]
    doubled = jax.tree.map(lambda a: 2 * a, learner)
    assert doubled.local.lr == 0.5 and doubled.model is learner.model and doubled.local.steps == 1


@pytest.mark.parametrize("starts", [None, 1, 2])
def test_losses_of_many_models_are_those_of_each(starts):
    rng = np.random.default_rng(0)
    sizes = [5, 9, 3, 9]
    shards = ct.Shards.from_lists(
        [rng.standard_normal((n, 4), np.float32) for n in sizes], [rng.integers(0, 3, n) for n in sizes]
    )
    learner = ct.Learner(ct.models.MLP(hidden=(5,))).for_data(shards.spec)
    models = jax.vmap(lambda key: learner.init(key, shards.spec))(jax.random.split(jax.random.key(0), 60))
    sent = [models, jax.tree.map(lambda a: a[::-1], models)][: starts or 1]
    simulation = ct.Simulation(shards, batch=3).with_learner(learner, trains=False)
    task = MeasureLosses(sent[0] if starts is None else stacked.stack(sent))
    found = simulation.ask(task, starts=starts).report.losses
    for some, losses in zip(sent, found[None] if starts is None else found, strict=True):
        for client, told in enumerate(losses):
            x, y = map(jnp.asarray, shards.client(client))
            each = [learner.per_example(stacked.take(some, j), x, y).mean() for j in range(60)]
            np.testing.assert_allclose(told, each, rtol=1e-5)
