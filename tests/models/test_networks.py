"""The convolutional networks of the papers, and how all networks train."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.data import Spec
from coterie.errors import LearnerError, SettingError
from coterie.models import CNN, LSTM, ResNet9, stacked
from coterie.models.cnn import _response_norm


def images(*shape, classes=10):
    return Spec(shape, "float32", (), "int32", classes)


def conv(size, a, b):
    return size * size * a * b + b


def fresh(model, x):
    return jax.jit(model.init)(jax.random.key(0), x)


def dense(*widths):
    return sum(a * b + b for a, b in pairwise(widths))


RESNET = [(3, 3, 64), (5, 64, 128), *[(3, 128, 128)] * 2, (3, 128, 256), *[(3, 256, 256)] * 2, (3, 256, 128)]
PAPERS = {
    "FEMNIST": (CNN(), images(28, 28, classes=62), conv(5, 1, 32) + conv(5, 32, 64) + dense(3136, 2048, 62)),
    "CIFAR-10, code": (
        CNN.cifar10("authors"),
        images(24, 24, 3),
        conv(5, 3, 64) + conv(5, 64, 64) + dense(6 * 6 * 64, 384, 192, 10),
    ),
    "CIFAR-10, text": (
        CNN.cifar10(),
        images(32, 32, 3),
        conv(5, 3, 64) + conv(5, 64, 64) + dense(8 * 8 * 64, 384, 10),
    ),
    "ResNet-9": (
        ResNet9(),
        images(32, 32, 3),
        sum(k * k * a * b + 2 * b for k, a, b in RESNET) + 128 * 10,
    ),
}


@pytest.mark.parametrize("model, spec, parameters", PAPERS.values(), ids=PAPERS.keys())
def test_the_networks_of_the_papers_have_their_parameters(model, spec, parameters):
    learner = ct.Learner(model).for_data(spec)
    shapes = learner.shapes(spec)
    assert stacked.parameters(shapes) == parameters
    outputs = jax.eval_shape(learner.model.apply, shapes, np.zeros((7, *spec.x_shape), np.float32))
    assert outputs.shape == (7, spec.classes)


def test_images_without_channels_have_one():
    model, x = CNN((3,), hidden=(4,), outputs=2), np.random.default_rng(0).random((5, 6, 6), np.float32)
    params = fresh(model, x)
    np.testing.assert_array_equal(model.apply(params, x), model.apply(params, x[..., None]))


def test_response_normalisation_is_over_nine_channels():
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 12)).astype(np.float32) * 30
    near = np.stack([np.square(x[..., max(0, c - 4) : c + 5]).sum(-1) for c in range(12)], axis=-1)
    np.testing.assert_allclose(_response_norm(x), x / (1 + 0.001 / 9 * near) ** 0.75, rtol=1e-5)


@pytest.mark.slow
def test_the_tutorials_initial_weights():
    model = CNN((32, 32), hidden=(384, 192), outputs=10, tutorial_init=True)
    params = fresh(model, np.zeros((1, 8, 8, 3), np.float32))
    cut = 0.8796  # the deviation of a normal variable that is cut at two
    for i, (deviation, bias) in enumerate([(0.05, 0), (0.05, 0.1), (0.04, 0.1), (0.04, 0.1), (1 / 192, 0)]):
        weight = np.asarray(params.layers[i].weight)
        assert np.abs(weight).max() <= 2 * deviation
        assert weight.std() == pytest.approx(cut * deviation, rel=0.05)
        assert (params.layers[i].bias == np.float32(bias)).all()


@pytest.mark.slow
def test_an_images_outputs_of_resnet9_do_not_depend_on_the_others():
    model = ResNet9(width=4, groups=2, outputs=3)
    x = np.random.default_rng(0).random((3, 9, 10, 3), np.float32)
    params = fresh(model, x)
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(params, x)[1:2], apply(params, x[1:2]), rtol=1e-4, atol=1e-5)
    # and all that follows a convolution is normalised
    np.testing.assert_allclose(apply(params, 3 * x), apply(params, x), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    "model, spec, sentence",
    [
        (CNN(), images(4), r"CNN needs images .* not features of shape \(4,\)"),
        (CNN(), images(2, 3, 4, 5), r"not features of shape \(2, 3, 4, 5\)"),
        (CNN(), Spec((8, 8), "uint8", (), "int32", 3), "images of real numbers.* type uint8"),
        (ResNet9(), images(8, 30, 3), "ResNet9 needs images of at least 9 x 9, not 8 x 30"),
    ],
)
def test_data_that_are_no_such_images_are_refused(model, spec, sentence):
    with pytest.raises(LearnerError, match=sentence):
        ct.Learner(model).for_data(spec)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: CNN(channels=()), "channels at least one"),
        (lambda: CNN(hidden=(0,)), "widths from 1 up"),
        (lambda: CNN(pool=1), "pool must be a whole number from 2 up"),
        (lambda: CNN.cifar10("text"), "preset must be 'paper' or 'authors', not 'text'"),
        (lambda: ResNet9(width=48), "groups must divide the width 48, not be 32"),
    ],
)
def test_settings_that_make_no_network_are_refused(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()


NETWORKS = {
    "cnn": CNN((4,), kernel=3, hidden=(8,)),
    "tutorial": CNN((4, 4), 3, 3, hidden=(8,), response_norm=True, tutorial_init=True),
    "resnet9": ResNet9(width=4, groups=2),
    "lstm": LSTM(embedding=4, hidden=8),
}


def two_kinds_of_clients(tokens):
    """Stripes and blank images, or early and late tokens; labels are the other way round at half of them."""
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for i, size in enumerate((12, 9, 12, 7)):
        y = rng.integers(0, 2, size)
        if tokens:
            x = (2 * y[:, None] + rng.integers(0, 2, (size, 5))).astype(np.uint8)
        else:
            stripes = np.where(y[:, None, None], np.eye(10) > 0, np.ones((10, 10)) > 0)
            x = (stripes + 0.1 * rng.standard_normal((size, 10, 10))).astype(np.float32)
        xs.append(x)
        ys.append(y if i % 2 else 1 - y)
    return ct.Shards.from_lists(xs, ys, classes=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "lstm"])
def test_rounds_of_ifca_train_each_and_do_not_depend_on_the_batch(name):
    shards = two_kinds_of_clients(name == "lstm")
    local = ct.SGD(lr=0.1, epochs=2, batch_size=5, momentum=0.9)
    learner = ct.Learner(NETWORKS[name], loss="smoothed_cross_entropy", local=local)
    one, all_ = (
        ct.IFCA(k=2, rounds=3, n_init=2, init=ct.Random()).fit(
            ct.Simulation(shards, batch=batch), learner, seed=0
        )
        for batch in (1, 4)
    )
    np.testing.assert_array_equal(one.assignment, all_.assignment)
    for a, b in zip(jax.tree.leaves(one.models), jax.tree.leaves(all_.models), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        assert jnp.isfinite(a).all()
    losses = [record.loss for record in one.history]
    assert losses[-1] < losses[0]
