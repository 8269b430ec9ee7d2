"""Convolutions and pooling give what JAX's own do, with weights of one client and of many."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coterie.models.convolution import CHANNELS, Window, convolution, convolve, plain, pooling

WINDOWS = {
    "same": (Window((1, 1), ((2, 2), (2, 2))), (5, 5), (7, 6)),
    "uneven": (Window((2, 1), ((0, 1), (1, 0))), (3, 2), (9, 8)),
}
CLIENTS, EXAMPLES, OUTPUTS = 3, 4, 5


def close(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "on_cpu, inputs",
    [(True, 2), (False, 2), (False, CHANNELS)],
    ids=["cpu", "accelerator, patches", "accelerator, groups"],
)
@pytest.mark.parametrize("window, kernel, size", WINDOWS.values(), ids=WINDOWS.keys())
def test_values_and_gradients_are_those_of_jax(window, kernel, size, on_cpu, inputs):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS, EXAMPLES, *size, inputs), np.float32)
    w = rng.standard_normal((CLIENTS, *kernel, inputs, OUTPUTS), np.float32)

    starts = np.stack([w, w[::-1]], axis=1)  # several at each client, all on its images

    def of(way):
        one = jax.value_and_grad(lambda x, w: jnp.sin(way(x, w)).sum(), (0, 1))
        of_starts = jax.vmap(one, (None, 0))
        return jax.jit(
            lambda: (
                one(x[0], w[0]),
                jax.vmap(one)(x, w),
                jax.vmap(one, (None, 0))(x[0], w),
                jax.vmap(one, (0, None))(x, w[0]),
                jax.vmap(of_starts)(x, starts),
            )
        )()

    close(of(convolution(window, on_cpu)), of(partial(plain, window=window)))


@pytest.mark.parametrize(
    "on_cpu, inputs, grouped", [(True, 2, 0), (False, 2, 1), (False, CHANNELS, 2)], ids=["cpu", "few", "many"]
)
def test_only_values_and_gradients_of_images_have_a_group_for_each_client(on_cpu, inputs, grouped):
    window, kernel, size = WINDOWS["same"]
    x, w = jnp.zeros((CLIENTS, EXAMPLES, *size, inputs)), jnp.zeros((CLIENTS, *kernel, inputs, inputs))

    def loss(x, w):
        return jnp.square(convolution(window, on_cpu)(x, w)).sum()

    def program(of):
        return jax.jit(jax.vmap(jax.grad(loss, of))).lower(x, w).as_text()

    assert program(0).count(f"feature_group_count = {CLIENTS}") == grouped
    assert "dot_general" in program(1) or on_cpu
    assert f"batch_group_count = {CLIENTS}" not in program(1)


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "accelerator"])
@pytest.mark.parametrize(
    "shape, size",
    [
        ((7, 4), 3),
        *(pytest.param(s, n, marks=pytest.mark.slow) for s in ((1, 1), (6, 6)) for n in (2, 3)),
    ],
)
def test_pooling_takes_the_largest_of_each_window(shape, size, on_cpu):
    x = np.random.default_rng(0).standard_normal((2, 2, *shape, 3)).astype(np.float32)

    def usual(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, 2, 2, 1), "SAME")

    def of(way):
        one = jax.value_and_grad(lambda x: jnp.square(way(x)).sum())
        return way(x[0]), jax.jit(jax.vmap(one))(x)

    close(of(pooling(size, on_cpu)), of(usual))
    x[:, 0, -1] = np.nan  # a model that diverged is not to be hidden
    np.testing.assert_array_equal(*(jnp.isnan(of(way)[1][0]) for way in (pooling(size, on_cpu), usual)))


def test_a_layer_is_applied_as_equinox_would_without_its_bias():
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 3)).astype(np.float32)
    for settings in ({"padding": "SAME"}, {"padding": 1, "stride": 2}, {"use_bias": False}):
        layer = eqx.nn.Conv2d(3, 4, 3, key=jax.random.key(0), **settings)
        wanted = jax.vmap(layer)(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
        close(convolve(layer, x) + (0 if layer.bias is None else layer.bias.reshape(-1)), wanted)
