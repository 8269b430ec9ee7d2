"""A cluster that no client belongs to begins anew from one that the models fit badly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from coterie.federation.protocol import Answers
from coterie.models import stacked


def revived(
    models: PyTree, assignment: Int[Array, " clients"], answers: Answers
) -> tuple[PyTree, Int[Array, " clients"]]:
    """Have each empty cluster begin anew from one of the clients that the models fit worst.

    It gets a copy of that client's model, and the client is told to train it in the next round: what the
    client has that others of its cluster lack then sets the two apart.

    Returns the models, and the cluster that each client is sent to (-1: none).
    """
    k, clients, loss = stacked.count(models), answers.clients, answers.report.loss
    known = jnp.where(assignment < 0, k, assignment)
    sizes = jnp.zeros(k, jnp.int32).at[known].add(1, mode="drop")
    empty = sizes == 0
    # never the only client of its cluster, which would be empty next
    donors = answers.answered & (sizes[assignment[clients]] > 1)
    misfit = jnp.where(donors, jnp.where(jnp.isnan(loss), jnp.inf, loss), -jnp.inf)
    count = min(k, len(clients))
    worst = jax.lax.top_k(misfit, count)[1]
    rank = jnp.minimum(jnp.cumsum(empty) - 1, count - 1)  # the first empty cluster gets the worst client
    donor = worst[rank]  # one for each cluster, of use to the empty ones
    begins = empty & (misfit[donor] > -jnp.inf) & (jnp.cumsum(empty) <= count)
    source = jnp.where(begins, assignment[clients[donor]], jnp.arange(k))
    nobody = len(assignment)
    sent_to = jnp.full(len(assignment), -1, jnp.int32)
    donors = jnp.where(begins, clients[donor], nobody)
    sent_to = sent_to.at[donors].set(jnp.arange(k, dtype=jnp.int32), mode="drop")
    return stacked.take(models, source), sent_to
