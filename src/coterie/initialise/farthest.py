"""Every model starts from the client that those before it fit worst."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie import keys
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.initialise.alone import trained_alone
from coterie.initialise.random import fresh_model
from coterie.learn.tasks import MeasureLosses
from coterie.models import stacked
from coterie.settings import Settings


@dataclass(frozen=True)
class FarthestLoss(Settings):
    """k models, each trained by one client, who are chosen to be unlike one another.

    The first client is drawn at random. The next is the one with the highest loss under the models so far,
    each client looking at the best of them for itself; and so on, as far as k: what k-means++ does with
    distances. A client trains a fresh model, the same for all k.

    Parameters
    ----------
    rounds
        For how many rounds of its local update a chosen client trains.

    It takes 2 k - 1 exchanges: in k of them a client per restart trains, and in k - 1 all tell their losses.
    """

    rounds: int = 10

    def __call__(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[PyTree]:
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        each = keys.numbered(key, k)
        tokens = jnp.asarray(keys.words(server.tokens[server.present]))
        lots = jax.vmap(lambda token: jax.random.uniform(keys.of_client(each[0], token)))(tokens)
        chosen = int(server.present[np.argmin(lots)])
        models: list[PyTree] = []
        for j in range(k):
            if j > 0:
                chosen = yield from _worst_fitted(models)
            start = fresh_model(server, key)
            one = np.array([chosen])
            trained, answered, _ = yield from trained_alone(start, self.rounds, each[j], clients=one)
            # where the chosen client did not answer, a fresh model is as good as any
            models.append(stacked.take(trained, 0) if answered[0] else fresh_model(server, key, j))
        return stacked.stack(models)


def _worst_fitted(models: list[PyTree]) -> Exchange[int]:
    """The client whose loss under its best model is highest."""
    answers = yield Ask(MeasureLosses(stacked.stack(models)))
    losses = np.asarray(answers.report.losses)
    lowest = np.where(np.isnan(losses), np.inf, losses).min(axis=1)
    fit = np.where(np.asarray(answers.answered), lowest, -np.inf)
    return int(np.asarray(answers.clients)[np.argmax(fit)])
