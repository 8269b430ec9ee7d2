"""Two ways in which a round of IFCA might become faster on a GPU, against what the library does; not in it.

The last layer: its output, loss and gradient in one kernel, which passes once over what the first layer
gives, where XLA passes several times. The sum: the first layers of a cluster's clients summed as one product
of all their examples, X^T [U_1; U_2; ...], with no client's own layer written to memory. Numbers of both are
compared with those of the library first.

1,200 clients x 200 and 4,800 x 50, hidden layer 200, 10 classes, k = 4. The kernel needs an NVIDIA GPU;
elsewhere its numbers are compared, and it is not timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array
from measure import PRECISION, fastest, median_ratio, report

from coterie.learn import losses


def plain_last_layer(weight: Array, bias: Array, z: Array, y: Array, counts: Array) -> Any:
    """The gradients of a client's loss, as XLA makes them."""

    def loss(weight: Array, bias: Array, z: Array) -> Array:
        return (losses.cross_entropy(jax.nn.relu(z) @ weight.T + bias, y) * counts).sum()

    return jax.grad(loss, (0, 1, 2))(weight, bias, z)


def last_layer(
    rows_at_once: int, warps: int, tf32: bool, weight: Array, bias: Array, z: Array, y: Array, counts: Array
) -> Any:
    """The same in one kernel, with one program for each client; `counts` is how much each example counts."""
    examples, width = z.shape
    classes = len(weight)
    wide, kinds = (max(16, 1 << (size - 1).bit_length()) for size in (width, classes))
    dot = partial(triton.dot, allow_tf32=tf32)

    def kernel(w: Any, b: Any, z: Any, y: Any, counts: Any, dw: Any, db: Any, dz: Any) -> None:
        real, known = jnp.arange(wide) < width, jnp.arange(kinds) < classes
        at_w = known[:, None] & real[None, :]
        load = partial(triton.load, other=0)
        weights = load(w.at[pl.ds(0, kinds), pl.ds(0, wide)], mask=at_w)
        biases = load(b.at[pl.ds(0, kinds)], mask=known)

        def block(number: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            rows = pl.ds(number * rows_at_once, rows_at_once)
            there = number * rows_at_once + jnp.arange(rows_at_once) < examples
            at = there[:, None] & real[None, :]
            before = load(z.at[rows, pl.ds(0, wide)], mask=at)
            labels, count = load(y.at[rows], mask=there), load(counts.at[rows], mask=there)
            hidden = jnp.maximum(before, 0)
            outputs = dot(hidden, weights, trans_b=True) + biases[None, :]
            outputs = jnp.where(known[None, :], outputs, -jnp.inf)
            powers = jnp.exp(outputs - jnp.max(outputs, axis=1)[:, None])
            shares = powers / jnp.sum(powers, axis=1)[:, None]
            right = (jnp.arange(kinds)[None, :] == labels[:, None]).astype(jnp.float32)
            d = jnp.where(there[:, None], (shares - right) * count[:, None], 0)
            back = jnp.where(before > 0, dot(d, weights), 0)
            triton.store(dz.at[rows, pl.ds(0, wide)], back, mask=at)
            return sums[0] + dot(d, hidden, trans_a=True), sums[1] + jnp.sum(d, axis=0)

        nothing = jnp.zeros((kinds, wide), jnp.float32), jnp.zeros(kinds, jnp.float32)
        sum_w, sum_b = jax.lax.fori_loop(0, -(-examples // rows_at_once), block, nothing)
        triton.store(dw.at[pl.ds(0, kinds), pl.ds(0, wide)], sum_w, mask=at_w)
        triton.store(db.at[pl.ds(0, kinds)], sum_b, mask=known)

    shapes = [jax.ShapeDtypeStruct(like.shape, jnp.float32) for like in (weight, bias, z)]
    run = pl.pallas_call(
        kernel,
        out_shape=shapes,
        grid=(1,),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=2),
        interpret=jax.default_backend() != "gpu",
        name="last_layer",
    )
    return run(weight, bias, z, y, counts)


def summed_layers(x: Array, u: Array, member: Array) -> Array:
    """Every client's product x^T u, then their sums by cluster: what the library does."""
    own = jnp.einsum("cnd,cnw->cwd", x, u)
    return jnp.einsum("ck,cwd->kwd", member, own, precision=jax.lax.Precision.HIGHEST)


def layers_of_sums(x: Array, u: Array, member: Array) -> Array:
    """One product of all examples with what their clients' clusters make of them."""
    clients, examples, width = u.shape
    of_cluster = (member[:, None, :, None] * u[:, :, None, :]).reshape(clients * examples, -1)
    return (of_cluster.T @ x.reshape(clients * examples, -1)).reshape(-1, width, x.shape[-1])


def compared(what: str, new: Callable[..., Any], usual: Callable[..., Any], given: tuple[Array, ...]) -> None:
    """Report how fast a candidate is, if its numbers are those of the usual way."""
    new, usual = jax.jit(new), jax.jit(usual)
    for ours, theirs in zip(jax.tree.leaves(new(*given)), jax.tree.leaves(usual(*given)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-3 * float(jnp.abs(theirs).max()))
    rates = (lambda f=f: 1 / fastest(lambda: f(*given)) for f in (new, usual))
    report(what, median_ratio(*rates))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=[1200, 4800])
    options.add_argument("--examples", type=int, nargs="+", default=[200, 50])
    options.add_argument("--features", type=int, default=784)
    options.add_argument("--width", type=int, default=200)
    options.add_argument("--clusters", type=int, default=4)
    options.add_argument("--rows", type=int, nargs="+", default=[16, 32, 64], help="at a time, in the kernel")
    options.add_argument("--warps", type=int, nargs="+", default=[2, 4, 8])
    options.add_argument("--precision", choices=tuple(PRECISION), default="tf32")
    given = options.parse_args()
    jax.config.update("jax_default_matmul_precision", PRECISION[given.precision])
    for clients, examples in zip(given.clients, given.examples, strict=True):
        size = f"{clients} x {examples}"
        draw = partial(jax.random.normal, dtype=jnp.float32)
        keys = iter(jax.random.split(jax.random.key(0), 8))
        x = draw(next(keys), (clients, examples, given.features))
        u, z = (draw(next(keys), (clients, examples, given.width)) for _ in range(2))
        own = jax.random.randint(next(keys), (clients,), 0, given.clusters)
        member = jax.nn.one_hot(own, given.clusters)
        what = f"sums of the first layers of {size} as one product, as fast as one by one"
        compared(what, layers_of_sums, summed_layers, (x, u, member))
        layer = draw(next(keys), (clients, 10, given.width)), draw(next(keys), (clients, 10))
        labels = jax.random.randint(next(keys), (clients, examples), 0, 10)
        inputs = (*layer, z, labels, jnp.full((clients, examples), 1 / examples))
        if jax.default_backend() != "gpu":
            kernel = partial(last_layer, given.rows[0], given.warps[0], False)
            for ours, theirs in zip(
                jax.vmap(kernel)(*inputs), jax.vmap(plain_last_layer)(*inputs), strict=True
            ):
                np.testing.assert_allclose(ours, theirs, atol=1e-5)
            continue
        for rows in given.rows:
            for warps in given.warps:
                kernel = partial(last_layer, rows, warps, given.precision != "float32")
                what = f"last layer of {size} in a kernel ({rows} rows, {warps} warps), as fast as XLA's"
                compared(what, jax.vmap(kernel), jax.vmap(plain_last_layer), inputs)


if __name__ == "__main__":
    main()
