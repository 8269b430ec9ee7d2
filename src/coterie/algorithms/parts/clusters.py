"""What algorithms that look for k clusters from several starts have in common."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from coterie.algorithms.algorithm import Result, State, lowest_loss
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange
from coterie.federation.protocol import Ask
from coterie.initialise import Components, Given
from coterie.learn.tasks import MeasureLosses, lowest

EARLIEST = 10  # rounds, before which a fraction of them would decide nothing


def initialiser(init: Any) -> Any:
    """How the models start: as given, or models that were given."""
    return init if callable(init) else Given(init)


def starts(n_init: int, init: Any) -> int:
    """How many starts differ: models that were given are always the same, and so are threshold components."""
    return 1 if isinstance(initialiser(init), Given | Components) else n_init


def contest(keep_best_after: float | int, rounds: int) -> int:
    """After how many rounds only the best start goes on."""
    if isinstance(keep_best_after, int):
        return keep_best_after
    return max(EARLIEST, int(keep_best_after * rounds))


def check(k: int | None, n_init: int, init: Any, clients: int, keep_best_after: float | int = 1.0) -> None:
    """Refuse numbers that make no sense."""
    if n_init < 1:
        raise SettingError(f"n_init must be at least 1, not {n_init}.")
    whole = isinstance(keep_best_after, int)
    if isinstance(keep_best_after, bool) or not (keep_best_after >= 1 if whole else 0 < keep_best_after <= 1):
        raise SettingError(
            "keep_best_after must be a fraction of the rounds above 0 and up to 1.0, or a number of rounds, "
            f"not {keep_best_after!r}."
        )
    if isinstance(init, Components):
        if k is not None:
            raise SettingError("Components() finds the number of clusters: leave k out.")
        return
    if k is None:
        raise SettingError("k must be given, unless init=Components() finds it.")
    check_number(k, clients)


def check_number(k: int | None, clients: int) -> None:
    """Refuse a number of clusters that makes no sense for so many clients."""
    if k is None:
        return
    if k < 1:
        raise SettingError(f"k must be at least 1, not {k}.")
    if k > clients:
        raise SettingError(f"k={k} clusters need at least as many clients; there are {clients}.")


def chosen_by_everybody(state: State) -> Exchange[Result]:
    """The clusters of all clients under the final models; one that does not answer keeps what is known."""
    answers = yield Ask(MeasureLosses(state.models))
    losses, heard, objective = lowest_loss(answers)
    assignment = np.where(heard, np.asarray(lowest(losses)), np.asarray(state.assignment))
    return Result(assignment, state.models, objective, losses)


def first_assigned(
    first: Int[Array, " clients"] | None, otherwise: Int[Array, " clients"] | None
) -> Int[Array, " clients"] | None:
    """The cluster that a client is sent to: by the first of two that names one (-1: none)."""
    if first is None or otherwise is None:
        return otherwise if first is None else first
    return jnp.where(first < 0, otherwise, first)


def hash_of(algorithm: Any) -> int:
    """The hash of an algorithm by what its compiled rounds depend on."""
    fields = [getattr(algorithm, f.name) for f in dataclasses.fields(algorithm) if f.compare]
    return hash((type(algorithm), *fields))
