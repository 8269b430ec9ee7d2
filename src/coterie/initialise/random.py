"""Fresh models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
from jaxtyping import Array, Key, PyTree

from coterie.data.shards import Spec
from coterie.federation.protocol import Federation
from coterie.learn.learner import Learner
from coterie.models.layers import Model


@dataclass(frozen=True)
class Random:
    """k models drawn by the model's own initialisation."""

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        return _draw(learner.model, federation.spec, keys)


@partial(jax.jit, static_argnums=(0, 1))
def _draw(model: Model, spec: Spec, keys: Key[Array, "restarts k"]) -> PyTree:
    # one program for all: drawn one by one, each small step would be compiled by itself
    return jax.vmap(jax.vmap(lambda key: model.init(key, spec.example())))(keys)
