"""Clients train alone, and their models are clustered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.errors import FederationError, SettingError, diverged
from coterie.federation.protocol import Federation
from coterie.initialise.random import Random
from coterie.learn import tasks
from coterie.learn.learner import Learner
from coterie.models import stacked


@dataclass(frozen=True)
class OneShot:
    """k-means on the models of clients that each train on their own shard, from the same fresh model.

    Parameters
    ----------
    rounds
        For how many rounds of its local update a client trains alone.

    It takes one exchange, in which every client sends its model. `IFCA(init=OneShot())` is ONE_SHOT-IFCA.
    """

    rounds: int = 20

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        return self.grouped(federation, learner, keys, [keys.shape[1]]).models

    def grouped(
        self,
        federation: Federation,
        learner: Learner,
        keys: Key[Array, "restarts any"],
        numbers: Sequence[int],
    ) -> Groups:
        """The groups of the clients, for each restart; as many as one of `numbers` has it.

        Of several numbers the one with the highest silhouette (of the first restart) is taken.
        """
        if self.rounds < 1:
            raise SettingError(f"rounds must be at least 1, not {self.rounds}.")
        restarts = keys.shape[0]
        fresh = stacked.take(Random()(federation, learner, keys[:, :1]), (slice(None), 0))
        models, answered = trained_alone(federation, learner, fresh, self.rounds, keys[0, 0])
        labels = np.full((restarts, federation.clients), -1)
        means: list[PyTree] = []
        silhouettes: dict[int, float] = {}
        k = numbers[0]
        for r in range(restarts):
            here = np.flatnonzero(answered[:, r])
            if len(here) < k:
                raise FederationError(f"{len(here)} clients answered, but k={k} groups need as many of them.")
            own = stacked.take(models, (here, r))
            points = np.asarray(stacked.to_matrix(own))
            seed = int(jax.random.key_data(keys[r, 0])[-1])
            if r == 0 and len(numbers) > 1:
                silhouettes = _silhouettes(points, [n for n in numbers if n < len(points)], seed)
                k = max(silhouettes, key=lambda number: silhouettes[number])
            labels[r, here] = k_means(points, k, seed)
            member = np.eye(k)[labels[r, here]]
            means.append(stacked.weighted(own, member / member.sum(axis=0)))
        return Groups(jax.tree.map(lambda *a: jnp.stack(a), *means), labels, silhouettes)


class Groups(NamedTuple):
    """Clients grouped by the models that they trained alone."""

    models: PyTree  # (restarts, k, ...): the mean of each group
    labels: Int[np.ndarray, "restarts clients"]  # -1 for a client that did not answer
    silhouettes: dict[int, float]  # of the numbers of groups that were tried, if several were

    @property
    def k(self) -> int:
        return int(jax.tree.leaves(self.models)[0].shape[1])


def _silhouettes(
    points: Float[np.ndarray, "points d"], numbers: Sequence[int], seed: int
) -> dict[int, float]:
    from sklearn.metrics import silhouette_score  # slow to import, and seldom needed

    differ = len(np.unique(points, axis=0))
    if differ < 2 or not numbers:
        raise SettingError(
            "the clients' models do not differ, or are too few: train them for longer, or give k."
        )
    return {n: float(silhouette_score(points, k_means(points, n, seed))) for n in numbers if n <= differ}


def trained_alone(
    federation: Federation,
    learner: Learner,
    start: PyTree,
    rounds: int,
    key: Key[Array, ""],
    clients: Int[np.ndarray, " some"] | None = None,
) -> tuple[PyTree, np.ndarray]:
    """Have clients train the models they are given (one per restart) by themselves, in one exchange.

    Returns their models, (clients, restarts, ...), and who answered with numbers for which restart.
    """
    count = federation.clients if clients is None else len(clients)
    restarts = stacked.count(start)
    answers = federation.ask(
        tasks.train,
        {"rounds": jnp.broadcast_to(jnp.arange(rounds), (restarts, rounds))},
        each={
            "model": jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *a.shape)), start),
            "takes_part": jnp.ones((count, restarts, rounds), bool),
        },
        clients=None if clients is None else federation.select(clients),
        key=key,
        replicas=restarts,
    )
    answered = np.asarray(answers.answered)
    # with models whose square is too large for a number nothing can be done either
    lengths = jnp.square(jax.vmap(stacked.to_matrix)(answers.value)).sum(axis=2)
    sound = answered & np.isfinite(np.asarray(lengths))
    if answered.any() and not sound.any():
        raise diverged("where clients trained alone")
    return answers.value, sound


def k_means(points: Float[np.ndarray, "points d"], k: int, seed: int) -> Int[np.ndarray, " points"]:
    """k groups, none of them empty, by k-means with k-means++ starts."""
    from sklearn.cluster import KMeans  # slow to import, and seldom needed

    if len(np.unique(points, axis=0)) < k:
        raise SettingError(f"fewer than {k} clients' models differ: train them for longer, or lower k.")
    labels: np.ndarray = KMeans(k, n_init=10, random_state=seed % 2**32).fit_predict(points)
    return labels
