"""What other groups' models cost a client's examples, each judged by models that have not seen it."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from coterie.learn.halves import losses_of_unseen
from coterie.learn.task import Client, Reply, Task, per_client


class CompareHalves(Task):
    """Each of k pairs of models beside the pair of the client's group: see `coterie.learn.halves`."""

    models: PyTree  # (k, 2, ...)
    group: Int[Array, ""] = per_client()

    class Report(eqx.Module):
        """Of the differences of losses, sums over examples, of themselves and of their squares."""

        sum: Float[Array, " k"]
        squares: Float[Array, " k"]

    def compared(self, k: int) -> int:
        return 2 * k

    def __call__(self, client: Client) -> Reply:
        losses = losses_of_unseen(client, self.models)
        more = losses - losses[self.group]
        return Reply(self.Report(more.sum(1), jnp.square(more).sum(1)))
