"""Fresh models."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Array, Key, PyTree

from coterie.federation.protocol import Federation
from coterie.learn.learner import Learner
from coterie.models import stacked


@dataclass(frozen=True)
class Random:
    """k models drawn by the model's own initialisation."""

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        return stacked.make(lambda key: learner.init(key, federation.spec), keys)
