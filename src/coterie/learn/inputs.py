"""What a client's inputs look like, whatever its labels: moments of random features of them."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

from coterie.learn.task import Client, Reply, Task

WIDTH = 64  # numbers of a feature vector


class DescribeInputs(Task):
    """The mean of a client's feature vectors, and that of the products of their numbers.

    Of real numbers a feature vector is a random linear map of an example, and of a 1 beside it, so that its
    scale is not lost. Of whole numbers, which are taken for tokens, it is the mean of a random wave at all
    places: as random a map, of how often each token occurs. Its length is made 1, so that nobody's example
    counts more than another.

    With `noise` every number that is sent has Gaussian noise of that standard deviation, which a client over
    Flower draws from what the server does not know. Replacing one of n examples moves what is sent by
    2 sqrt(2) / n at most.
    """

    draw: UInt32[Array, ""]  # what the features are drawn with: only clients with the same can be compared
    noise: Float[Array, ""]

    class Report(eqx.Module):
        moments: Float[Array, " numbers"]  # the mean, then the products, of each two numbers once

    def __call__(self, client: Client) -> Reply:
        shard = client.shard
        assert client.secret is not None
        f = features(shard.x, jax.random.key(self.draw))
        counted = jnp.where(shard.mask, 1 / shard.size, 0)
        products = f.T @ (counted[:, None] * f)
        moments = jnp.concatenate([counted @ f, products[jnp.triu_indices(WIDTH)]])
        noise = jax.random.normal(client.secret, moments.shape)
        return Reply(self.Report(moments + self.noise * noise))


def features(x: Array, key: Key[Array, ""]) -> Float[Array, "examples width"]:
    """A feature vector of length 1 for every example."""
    flat = x.reshape(len(x), -1)
    if jnp.issubdtype(x.dtype, jnp.integer):
        wave, phase = 2 * jnp.pi * jax.random.uniform(key, (2, WIDTH))

        def with_place(total: Array, tokens: Array) -> tuple[Array, None]:
            return total + jnp.cos(tokens[:, None] * wave + phase), None

        # one place after another: all of them at once would take as many times the memory
        mapped, _ = jax.lax.scan(with_place, jnp.zeros((len(x), WIDTH)), flat.T)
    else:
        flat = jnp.concatenate([flat.astype(jnp.float32), jnp.ones((len(x), 1))], 1)
        mapped = flat @ jax.random.normal(key, (flat.shape[1], WIDTH))
    vectors: Array = mapped / jnp.linalg.norm(mapped, axis=1, keepdims=True)
    return vectors
