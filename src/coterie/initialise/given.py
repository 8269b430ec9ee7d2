"""Models that the user gave."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from coterie.errors import SettingError
from coterie.federation.protocol import Federation
from coterie.learn.learner import Learner
from coterie.models import stacked


class Given:
    """k models as a stacked pytree or as a (k, d) matrix, the same for every restart."""

    def __init__(self, models: PyTree) -> None:
        self.models = models

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        models = stacked.given(self.models, learner.shapes(federation.spec))
        if stacked.count(models) != keys.shape[1]:
            raise SettingError(f"k is {keys.shape[1]} but {stacked.count(models)} initial models are given.")
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (keys.shape[0], *leaf.shape)), models)
