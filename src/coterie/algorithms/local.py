"""A model for each client, trained on its own shard alone."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key, PyTree

from coterie.algorithms.algorithm import Algorithm, Alone, Pause, Result, State, unknown
from coterie.federation.exchange import Exchange, Server
from coterie.initialise.alone import trained_alone
from coterie.initialise.random import fresh_models
from coterie.models import stacked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(Algorithm[State]):
    """A model for each client, trained on its own shard alone.

    All start from the same initial model, and each is a cluster of its own. The server has nothing to do in a
    round, so that all of them are one exchange, by which it comes to hold the models; clients that miss it
    are asked once more.

    Parameters
    ----------
    rounds
        For how many rounds of its local update a client trains.
    participation
        See `Algorithm`: a client trains only in the rounds for which it is drawn.
    """

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        return self.state_of(fresh_models(server, key, 1), server.clients)
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(models, unknown(clients))  # one model at first, then one for each client

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        first, drawn = stacked.take(state.models, 0), self._drawn(server, state)
        models = jax.tree.map(lambda a: jnp.broadcast_to(a, (server.clients, *a.shape)), first)
        losses, heard = np.full(drawn.shape, np.nan), np.zeros(server.clients, bool)
        for least in (None, 0):  # who misses it is asked once more; then nobody is waited for
            asked = np.flatnonzero(drawn.any(axis=1) & ~heard)
            if not len(asked):
                break
            new, trained, alone = yield from trained_alone(
                first,
                self.rounds,
                server.key("rounds"),
                clients=None if len(asked) == server.clients else asked,
                takes_part=None if drawn.all() else drawn[asked],
                least=least,
            )
            now = asked[trained]
            models = jax.tree.map(lambda all_, own: all_.at[now].set(own[trained]), models, new)  # noqa: B023
            losses[now], heard[now] = alone[trained], True
        assignment = jnp.where(jnp.asarray(heard), jnp.arange(server.clients), -1).astype(jnp.int32)
        return Pause(State(models, assignment), 0, alone=Alone(losses, drawn, heard))

    def _drawn(self, server: Server, state: State) -> Bool[np.ndarray, "clients rounds"]:
        """In which rounds each client trains."""
        everybody, draw = np.arange(server.clients), self.draw(server, state, range(self.rounds))
        if draw is None:
            return np.ones((server.clients, self.rounds), bool)
        return np.stack([np.isin(everybody, row) for row in draw.clients], axis=1)

    def finish(self, server: Server, state: State) -> Exchange[Result]:
        return Result(np.asarray(state.assignment), state.models)
        yield
