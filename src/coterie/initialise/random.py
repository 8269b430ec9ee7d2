"""Fresh models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
from jaxtyping import Array, Key, PyTree

from coterie import keys
from coterie.data.shards import Spec
from coterie.federation.exchange import Exchange, Server
from coterie.models import stacked
from coterie.models.layers import Model


@dataclass(frozen=True)
class Random:
    """k models drawn by the model's own initialisation."""

    def __call__(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[PyTree]:
        return fresh_models(server, key, k)
        yield


def fresh_models(server: Server, key: Key[Array, ""], k: int) -> PyTree:
    """k fresh models; model j is the same whatever their number."""
    return _drawn(server.learner.model, server.learner.sees(server.spec), keys.numbered(key, k))


def fresh_model(server: Server, key: Key[Array, ""], number: int = 0) -> PyTree:
    """Fresh model number `number`."""
    return stacked.take(fresh_models(server, key, number + 1), number)


@partial(jax.jit, static_argnums=(0, 1))
def _drawn(model: Model, spec: Spec, each: Key[Array, " k"]) -> PyTree:
    # one program for all: drawn one by one, each small step would be compiled by itself
    return jax.vmap(lambda key: model.init(key, spec.example()))(each)
