"""Which model a client is told to train, instead of choosing one: settled clients, and empty clusters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from coterie.models import stacked


def settled(steady: Int[Array, "restarts clients"], settle: int, recheck: int) -> Bool[Array, " clients"]:
    """Who is sent its own model alone: clients whose identity has stayed the same for `settle` rounds.

    All restarts share a message, so it must have stayed so in each. Every `recheck`-th time from then on a
    client is sent all models again, to look whether it still belongs where it is.
    """
    rounds = steady.min(axis=0)
    return (rounds >= settle) & ((rounds - settle) % recheck != recheck - 1)


def counted(
    steady: Int[Array, "restarts clients"],
    before: Int[Array, "restarts clients"],
    now: Int[Array, "restarts clients"],
    answered: Bool[Array, "restarts clients"],
) -> Int[Array, "restarts clients"]:
    """For how many rounds each client's identity has stayed the same, after one more."""
    return jnp.where(answered, jnp.where(now == before, steady + 1, 0), steady)


def revived(
    models: PyTree,
    assignment: Int[Array, " clients"],
    clients: Int[Array, " asked"],
    answered: Bool[Array, " asked"],
    loss: Float[Array, " asked"],
    k: int,
) -> tuple[PyTree, Int[Array, " clients"]]:
    """Have each empty cluster begin anew from one of the clients that the models fit worst (one restart).

    It gets a copy of that client's model, and the client is told to train it in the next round: what the
    client has that others of its cluster lack then sets the two apart.

    Returns the models, and what each client is told (-1: nothing).
    """
    known = jnp.where(assignment < 0, k, assignment)
    sizes = jnp.zeros(k, jnp.int32).at[known].add(1, mode="drop")
    empty = sizes == 0
    # never the only client of its cluster, which would be empty next
    donors = answered & (sizes[assignment[clients]] > 1)
    misfit = jnp.where(donors, jnp.where(jnp.isnan(loss), jnp.inf, loss), -jnp.inf)
    count = min(k, len(clients))
    worst = jax.lax.top_k(misfit, count)[1]
    rank = jnp.minimum(jnp.cumsum(empty) - 1, count - 1)  # the first empty cluster gets the worst client
    donor = worst[rank]  # one for each cluster, of use to the empty ones
    begins = empty & (misfit[donor] > -jnp.inf) & (jnp.cumsum(empty) <= count)
    source = jnp.where(begins, assignment[clients[donor]], jnp.arange(k))
    nobody = len(assignment)
    told = jnp.full(len(assignment), -1, jnp.int32)
    told = told.at[jnp.where(begins, clients[donor], nobody)].set(jnp.arange(k, dtype=jnp.int32), mode="drop")
    return stacked.take(models, source), told
