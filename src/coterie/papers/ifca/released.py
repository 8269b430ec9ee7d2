"""What the IFCA paper's released code does beside its text: how models start, and what they are shown."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.initialise.random import fresh_models
from coterie.learn.augment import Distort
from coterie.learn.tasks import MeasureLosses, lowest


@dataclass(frozen=True)
class EvenlyChosen:
    """Fresh models, drawn again until each is chosen by enough of some clients.

    As in the code for CIFAR-10, where each of two models must be the best for 35 % of 20 clients. That code
    draws for as long as it takes; here it ends after `draws`, with the most even of them.

    Parameters
    ----------
    share
        Of the clients that are asked, how many must choose a model, at least.
    asked
        How many clients are asked, drawn anew each time.
    draws
        How often models are drawn, at most.
    """

    share: float = 0.35
    asked: int = 20
    draws: int = 200

    def __call__(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[PyTree]:
        most_even, best = -1, None
        clients = min(self.asked, server.clients)
        for draw in range(self.draws):
            models = fresh_models(server, jax.random.fold_in(key, draw), k)
            rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, draw))))
            some = np.sort(rng.choice(server.clients, clients, replace=False))
            answers = yield Ask(MeasureLosses(models), clients=some)
            chosen = np.asarray(lowest(answers.report.losses))[np.asarray(answers.answered)]
            fewest = int(np.bincount(chosen, minlength=k).min())
            if fewest > most_even:
                most_even, best = fewest, models
            if fewest >= self.share * clients:
                break
        return best


@dataclass(frozen=True)
class Clipped(Distort):
    """Standardised images whose pixels are then cut to 0 to 1, so that all that is darker than its mean is 0.

    As in the code for the local models of CIFAR-10, and for these only.
    """

    def train(self, x: Array, key: Key[Array, ""]) -> Array:
        return jnp.clip(super().train(x, key), 0, 1)

    def look(self, x: Array) -> Array:
        return jnp.clip(super().look(x), 0, 1)
