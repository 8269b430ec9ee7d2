"""Every model starts from the client that those before it fit worst."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie import keys as seeds
from coterie.errors import SettingError
from coterie.federation.protocol import Federation
from coterie.initialise.one_shot import trained_alone
from coterie.initialise.random import Random
from coterie.learn import tasks
from coterie.learn.learner import Learner
from coterie.models import stacked


@dataclass(frozen=True)
class FarthestLoss:
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

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        restarts, k = keys.shape
        fresh = stacked.take(Random()(federation, learner, keys[:, :1]), (slice(None), 0))
        here = federation.present()
        lots = jax.vmap(jax.vmap(seeds.of_client, (None, 0)), (0, None))(
            keys[:, 0], jnp.asarray(seeds.words(seeds.tokens(federation.ids[here])))
        )
        chosen = here[np.argmin(jax.vmap(jax.vmap(jax.random.uniform))(lots), axis=1)]
        models: list[PyTree] = []  # each (restarts, ...)
        for j in range(k):
            if j > 0:
                chosen = self._worst_fitted(federation, models)
            asked = np.unique(chosen)
            # every restart at each of them: a few models more, and one message for all
            trained, answered = trained_alone(
                federation, learner, fresh, self.rounds, keys[0, j], clients=asked
            )
            # where the chosen client did not answer, a fresh model is as good as any
            others = stacked.take(Random()(federation, learner, keys[:, j : j + 1]), (slice(None), 0))
            mine = np.searchsorted(asked, chosen), np.arange(restarts)
            there = jnp.asarray(answered[mine])
            models.append(stacked.where(there, stacked.take(trained, mine), others))
        return jax.tree.map(lambda *a: jnp.stack(a, axis=1), *models)

    def _worst_fitted(self, federation: Federation, models: list[PyTree]) -> np.ndarray:
        """For each restart the client whose loss under its best model is highest."""
        together = jax.tree.map(lambda *a: jnp.stack(a, axis=1), *models)
        restarts = stacked.count(together)
        answers = federation.ask(tasks.losses, {"models": together}, replicas=restarts)
        losses = np.asarray(answers.report["losses"])  # (clients, restarts, models)
        lowest = np.where(np.isnan(losses), np.inf, losses).min(axis=2)
        fit = np.where(np.asarray(answers.answered), lowest, -np.inf)
        worst: np.ndarray = np.asarray(answers.clients)[np.argmax(fit, axis=0)]
        return worst
