"""An ask without compilation, client by client, that says which client and task failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie import keys
from coterie.errors import ClientError
from coterie.federation.program import Memory, Program
from coterie.federation.protocol import Answers
from coterie.learn.shard import Shard
from coterie.models import stacked

if TYPE_CHECKING:
    from coterie.data.shards import Shards
    from coterie.learn.learner import Learner


def ask(
    shards: Shards,
    learner: Learner,
    program: Program,
    positions: np.ndarray,
    everybody: dict[str, PyTree],
    each: dict[str, PyTree],
    only: Array | None,
    key: Key[Array, ""],
) -> Answers:
    """Have the clients carry out the program's task one by one, on their unpadded shards."""
    replies = []
    for i, position in enumerate(positions):
        x, y = shards.client(int(position))
        shard = Shard(jnp.asarray(shards.spec.seen(x)), jnp.asarray(y), jnp.asarray(len(x)))
        own, one = stacked.take((each, only), i)
        token = jnp.asarray(keys.words(keys.tokens(shards.ids[[position]]))[0])
        where = f"client {shards.ids[position]} failed in task '{program.task.name}'"
        try:
            with jax.disable_jit():
                reply, answered = program.client(
                    learner, everybody, key, shard, token, jnp.asarray(i), own, one, Memory()
                )
        except Exception as error:
            raise ClientError(f"{where}: {type(error).__name__}: {error}") from error
        for name, leaf in stacked.named(reply).items():
            if jnp.issubdtype(leaf.dtype, jnp.floating) and not jnp.isfinite(leaf).all():
                raise ClientError(f"{where}: '{name}' of its reply contains NaN or infinity.")
        replies.append((reply, answered))
    shape = program.shape(learner, everybody, shard, own, one, {})
    together, answered = stacked.stack(replies)
    sums, together = program.reduced(program.start(shape), together, answered)
    traffic = program.traffic(everybody, each, only, shape)
    return program.answers(jnp.asarray(positions, jnp.int32), together, answered, sums, traffic)
