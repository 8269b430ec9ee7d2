"""A PyTorch module as a model: the same as JAX's own in whatever a learner does with it."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie import registry
from coterie.data.shards import Spec
from coterie.errors import ConfigError, CoterieError
from coterie.initialise.random import _drawn
from coterie.models import stacked

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from support.torch_nets import MLP, ConvNet, Tied  # noqa: E402
from torch import nn  # noqa: E402

from coterie.torch import TorchModel  # noqa: E402

IMAGE = Spec((8, 8), "float32", (), "int32", 10)
KEYS = jax.random.split(jax.random.key(0), 6)


@pytest.fixture(autouse=True)
def full_precision():
    """JAX on a GPU multiplies in fewer bits unless it is told."""
    with jax.default_matmul_precision("float32"):
        yield


def pair():
    """The same network in PyTorch and in JAX, and the same parameters for both."""
    ours = ct.models.MLP(hidden=(16,), outputs=10)
    params = TorchModel(MLP).init(jax.random.key(3), IMAGE.example())
    like = jax.eval_shape(lambda: ours.init(jax.random.key(0), IMAGE.example()))
    return TorchModel(MLP), params, ours, stacked.from_named(params, like)


def test_init_follows_from_the_key_alone():
    model, x = TorchModel(MLP), IMAGE.example()
    state = torch.get_rng_state()
    one, again, other = (model.init(jax.random.key(seed), x) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: a.shape for name, a in one.items()} == {
        "layers.0.weight": (16, 64),
        "layers.0.bias": (16,),
        "layers.1.weight": (10, 16),
        "layers.1.bias": (10,),
    }
    for name, array in one.items():
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
        assert array.dtype == jnp.float32
    # and several are drawn in one program
    drawn = _drawn(TorchModel(MLP), IMAGE, KEYS)
    one = TorchModel(MLP).init(KEYS[4], IMAGE.example())
    for name, array in drawn.items():
        np.testing.assert_array_equal(array[4], one[name])
        assert len(np.unique(array.reshape(6, -1), axis=0)) == 6


def test_outputs_and_gradients_are_those_of_jax():
    theirs, params, ours, same = pair()
    x = jax.random.normal(jax.random.key(1), (7, 8, 8))
    np.testing.assert_allclose(theirs.apply(params, x), ours.apply(same, x), rtol=1e-5, atol=1e-6)

    def total(model, params, x):
        return jnp.sum(jnp.sin(model.apply(params, x)))

    for wrap in (lambda f: f, jax.jit):
        got, of_x = wrap(jax.grad(lambda p, x: total(theirs, p, x), (0, 1)))(params, x)
        expected, wanted = jax.grad(lambda p, x: total(ours, p, x), (0, 1))(same, x)
        np.testing.assert_allclose(of_x, wanted, rtol=1e-4, atol=1e-6)
        for name, array in stacked.named(expected).items():
            np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-6)


def test_where_jax_does_not_run_on_the_cpu_the_callback_is_another(monkeypatch):
    model, params, _, _ = pair()
    x = np.ones((3, 8, 8), np.float32)

    def all_of(p):
        return model.init(jax.random.key(4), x), jax.grad(lambda p: jnp.sum(model.apply(p, x) ** 2))(p)

    expected = all_of(params)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.tree.map(np.testing.assert_array_equal, all_of(params), expected)


def test_stacked_models_and_batches_of_clients():
    theirs, _, ours, _ = pair()
    models = jax.tree.map(lambda a: a.reshape(2, 3, *a.shape[1:]), _drawn(theirs, IMAGE, KEYS))
    like = jax.eval_shape(lambda: ours.init(jax.random.key(0), IMAGE.example()))
    same = stacked.from_named(
        models, jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, 3, *a.shape), a.dtype), like)
    )
    x = jax.random.normal(jax.random.key(1), (3, 4, 8, 8))

    def of(model):
        def gradient(p, x):
            return jax.grad(lambda p: jnp.sum(model.apply(p, x) ** 2))(p)

        return jax.jit(jax.vmap(jax.vmap(gradient), (0, None)))

    got = of(theirs)(models, x)
    for name, array in stacked.named(of(ours)(same, x)).items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5)


def test_whole_numbers_have_no_gradient():
    model = TorchModel(functools.partial(nn.Embedding, 5, 3))
    x = np.array([[0, 4], [4, 4]], np.int32)
    params = model.init(jax.random.key(0), x)
    assert model.apply(params, x).shape == (2, 2, 3)
    gradient = jax.jit(jax.grad(lambda p: model.apply(p, x).sum()))(params)
    np.testing.assert_array_equal(gradient["weight"], np.array([1, 0, 0, 0, 3])[:, None] * np.ones(3))


def test_tied_weights_travel_once_and_frozen_ones_stay():
    model, x = TorchModel(Tied), np.ones((2, 4), np.float32)
    params = model.init(jax.random.key(0), x)
    assert params.keys() == {"first.weight", "first.bias", "second.bias", "scale"}
    gradient = jax.grad(lambda p: model.apply(p, x).sum())(params)
    assert gradient["scale"] == 0
    assert (np.asarray(gradient["first.weight"]) != 0).all()


def test_statistics_of_batch_norm_are_parameters_that_no_gradient_moves():
    model, x = TorchModel(ConvNet), np.random.default_rng(0).random((4, 8, 8), np.float32)
    params = model.init(jax.random.key(0), x)
    assert {"features.1.running_mean", "features.1.running_var"} < params.keys()
    assert "features.1.num_batches_tracked" not in params
    shifted = model.apply({**params, "features.1.running_mean": jnp.ones(8)}, x)
    assert not np.allclose(shifted, model.apply(params, x))
    gradient = jax.grad(lambda p: model.apply(p, x).sum())(params)
    assert not gradient["features.1.running_mean"].any() and gradient["features.1.weight"].any()


def test_a_whole_simulation():
    data = ct.data.rotated_digits(clients=6, rotations=(0, 90), unseen=0, seed=1).train
    theirs, _, ours, _ = pair()
    models = _drawn(theirs, data.spec, KEYS[:2])
    like = stacked.repeated(jax.eval_shape(lambda: ours.init(jax.random.key(0), IMAGE.example())), 2)
    local = ct.SGD(lr=0.1, steps=2)
    algorithm = ct.IFCA(k=2, rounds=2)
    clients = ct.Simulation(data, batch=6, devices=jax.local_devices()[:1])
    found = replace(algorithm, init=models).fit(clients, ct.Learner(theirs, local=local))
    expected = replace(algorithm, init=stacked.from_named(models, like)).fit(
        clients, ct.Learner(ours, local=local)
    )
    np.testing.assert_array_equal(found.assignment, expected.assignment)
    for name, array in stacked.named(expected.models).items():
        np.testing.assert_allclose(found.models[name], array, rtol=1e-5, atol=1e-5)


def test_equal_models_are_one_to_the_compiler_but_every_module_is_new():
    assert isinstance(TorchModel("support.torch_nets:MLP").module(), MLP)
    assert TorchModel(MLP).module() is not TorchModel(MLP).module()
    assert TorchModel(MLP) == TorchModel(MLP) != TorchModel(ConvNet)
    assert hash(TorchModel("support.torch_nets:MLP")) == hash(TorchModel("support.torch_nets:MLP"))


def test_it_is_a_part_that_can_be_written_down(tmp_path):
    model = registry.build("model", "torch", {"make": "support.torch_nets:MLP"})
    assert model == TorchModel("support.torch_nets:MLP")
    assert registry.describe("model", model) == {"name": "torch", "make": "support.torch_nets:MLP"}
    assert registry.describe("model", TorchModel(MLP)) is None
    with pytest.raises(ConfigError, match=r"model.make: "):
        registry.build("model", "torch", {"make": 3})
    data = ct.data.mixed_regression(clients=2, k=1, dim=5, examples=4, seed=3)
    learner = ct.Learner(
        TorchModel("support.torch_nets:Linear"), loss="squared", local=ct.SGD(lr=0.1, steps=1)
    )
    found = ct.Global(rounds=1).fit(data.train, learner)
    found.save(tmp_path)
    assert ct.load(tmp_path).evaluate(data.test).loss == pytest.approx(found.evaluate(data.test).loss)


class Squeezed(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze()


REAL = Spec((5,), "float32", (), "float32")
SHARED = nn.Linear(5, 1)
SENTENCES = {
    "a module": (lambda: TorchModel(MLP()), r"TorchModel is given what makes a module: MLP, not MLP\(\)"),
    "a number": (lambda: TorchModel(3), "make must be a function that makes a module, or its name, not 3"),
    "no such package": (
        lambda: TorchModel("nowhere.net:Net"),
        r"make='nowhere.net:Net' is not found \(No module",
    ),
    "no such name": (
        lambda: TorchModel("support.torch_nets:Net"),
        "has no attribute 'Net'.*write it as 'mypackage.net:Net'",
    ),
    "no colon": (lambda: TorchModel("support.torch_nets.MLP"), "make='support.torch_nets.MLP' is not found"),
    "arguments": (
        lambda: use(nn.Linear),
        "Linear cannot make a module without being told more .*functools.partial",
    ),
    "no module": (lambda: use(dict), "dict makes a dict, not a torch.nn.Module"),
    "no weights": (lambda: use(nn.Flatten), "Flatten makes a module without weights"),
    "always the same": (
        lambda: use(lambda: SHARED),
        "gives the same module each time: let it make a new one",
    ),
    "features that do not fit": (
        lambda: use(functools.partial(nn.Linear, 6, 1)),
        r"the module Linear fails on features of shape \(1, 5\) \(torch.float32\): mat1",
    ),
    "no row per example": (
        lambda: use(functools.partial(Squeezed, 5, 1)),
        r"gives outputs of shape \(\) for a batch of one: it must have one row per example, which squeeze",
    ),
    "outputs that do not fit": (
        lambda: use(functools.partial(nn.Linear, 5, 1)),
        r"the model gives outputs of shape \(1,\) but the targets have shape \(\)",
    ),
    "several outputs": (lambda: use(functools.partial(nn.GRU, 5, 2)), "GRU gives a tuple"),
}


def use(make):
    ct.Learner(TorchModel(make), loss="squared").for_data(REAL)


@pytest.mark.parametrize("case", SENTENCES)
def test_one_sentence_for_each_mistake(case):
    make, sentence = SENTENCES[case]
    with pytest.raises(CoterieError, match=sentence) as caught:
        make()
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
