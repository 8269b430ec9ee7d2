"""What passes between the rounds of an algorithm, and what a round tells of itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.federation.protocol import Answers, Traffic
from coterie.models import stacked


class State(eqx.Module):
    """All that a round needs of the rounds before it; a checkpoint is this and nothing else.

    Everything has a leading axis of restarts, which run side by side.
    """

    models: PyTree  # (restarts, k, ...)
    assignment: Int[Array, "restarts clients"]  # the last known cluster; -1 while a client has not answered
    # where an algorithm needs them:
    steady: Int[Array, "restarts clients"] | None = None  # rounds since a client's cluster last changed
    told: Int[Array, "restarts clients"] | None = None  # the cluster it is told to train next; -1: none


class Step(eqx.Module):
    """What is new in a round: its number, its key, and the clients drawn for it."""

    round: Int[Array, ""]
    key: Key[Array, ""]
    clients: Any = None


class Outcome(eqx.Module):
    """What a round tells the history."""

    loss: Float[Array, " restarts"]
    assignment: Int[Array, "restarts clients"]
    clients: Int[Array, " asked"]
    answered: Bool[Array, " asked"]
    traffic: Traffic
    clusters: int = eqx.field(static=True)
    failures: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())  # position and reason

    @classmethod
    def of(
        cls,
        answers: Answers,
        loss: Float[Array, "asked restarts"],
        assignment: Int[Array, "restarts clients"],
        clusters: int,
    ) -> Outcome:
        """The outcome of a round that made one ask; `loss` is what each client asked reported."""
        answered = jnp.broadcast_to(stacked.expand(answers.answered, loss), loss.shape)
        count = answered.sum(0)
        # a round in which nobody answered tells nothing of the loss
        mean = jnp.where(count > 0, jnp.where(answered, loss, 0).sum(0) / jnp.maximum(count, 1), jnp.nan)
        return cls(
            loss=mean,
            assignment=assignment,
            clients=answers.clients,
            answered=answered.any(1),
            traffic=answers.traffic,
            clusters=clusters,
            failures=answers.failures,
        )


class Note(NamedTuple):
    """What an algorithm tells of a pause between rounds."""

    name: str
    text: str  # a sentence
    details: dict[str, Any] = {}  # noqa: RUF012 (never changed)


class Result(NamedTuple):
    """What a run comes to: the restart that is kept, and what a `Clustering` tells of it."""

    assignment: Int[np.ndarray, " clients"]
    models: PyTree  # (k, ...)
    restart: int = 0
    losses: Float[np.ndarray, "clients k"] | None = None
    shares: Float[np.ndarray, "clients k"] | None = None
    personal: PyTree = None
