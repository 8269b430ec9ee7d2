"""Choosing the settings of methods on validation examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from coterie import keys
from coterie.algorithms.algorithm import Algorithm
from coterie.data.shards import Shards
from coterie.errors import LearnerError, SettingError
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner

RATES = (0.03, 0.1, 0.3)  # step sizes that are tried in any case
FURTHER = 3  # how many more are tried where the best is the smallest or the largest, each a third or thrice
MOST = 300  # clients on whom settings are chosen
SURE = 2  # standard errors, by which a method with more groups is to be better

T = TypeVar("T")


class Tried(NamedTuple):
    """What validation examples say of a method with some settings."""

    each: Float[np.ndarray, " clients"]  # losses; infinite where training failed
    groups: int
    step_size: float | None = None

    @property
    def loss(self) -> float:
        return float(self.each.mean())

    def as_good_as(self, best: Tried) -> bool:
        """Whether chance may be all that the best one has ahead of it, client by client."""
        if not np.isfinite(self.loss):
            return False
        worse = self.each - best.each
        return bool(worse.mean() <= SURE * worse.std(ddof=1) / np.sqrt(len(worse)))


def simplest(tried: Mapping[str, Tried]) -> str:
    """Of what is as good as the best, that with the fewest groups."""
    best = min(tried.values(), key=lambda one: one.loss)
    good = [name for name, one in tried.items() if one is best or one.as_good_as(best)]
    return min(good, key=lambda name: (tried[name].groups, tried[name].loss))


class Trial:
    """Trains on some clients' examples, and judges by others of theirs."""

    def __init__(
        self, clients: Shards, seed: int, remembered: Callable[[str, Callable[[], Tried]], Tried]
    ) -> None:
        self._fit, self._validation = map(Simulation, some_of(clients, seed).split(seed=seed))
        self._seed, self._remembered = seed, remembered

    def tuned(self, model: str, method: str, learner: Learner, algorithm: Algorithm[Any]) -> Tried:
        """A method with the best step size, if it has one."""

        def tried(step_size: float | None) -> Tried:
            with_it = with_step_size(learner, step_size)
            said = f"{method}, {model}" + ("" if step_size is None else f", step size {step_size:g}")
            found = self._remembered(said, lambda: self._tried(algorithm, with_it))
            return found._replace(step_size=step_size)

        if step_size_of(learner) is None:
            return tried(None)
        rates = {rate: tried(rate) for rate in RATES}
        for _ in range(FURTHER):
            best = min(rates, key=lambda rate: rates[rate].loss)
            if min(rates) < best < max(rates):
                break
            further = float(f"{best * 3 if best == max(rates) else best / 3:.2g}")
            rates[further] = tried(further)
        return min(rates.values(), key=lambda one: one.loss)

    def _tried(self, algorithm: Algorithm[Any], learner: Learner) -> Tried:
        try:
            found = algorithm.fit(self._fit, learner, seed=self._seed)
            judged = found.evaluate(self._validation, "train", personal=found.personal is not None)
        except (LearnerError, SettingError):  # it diverged; or there are too few clients for it
            return Tried(np.full(len(self._validation.ids), np.inf), 0)
        each = judged.per_client.set_index("id")["loss"].reindex(self._validation.ids).to_numpy(float)
        return Tried(np.where(np.isfinite(each), each, np.inf), found.k)


def with_step_size(learner: Learner, step_size: float | None) -> Learner:
    """The learner with that step size, or as it is."""
    return learner if step_size is None else replace(learner, local=replace(learner.local, lr=step_size))  # type: ignore[type-var]


def step_size_of(learner: Learner) -> float | None:
    """The step size of a learner whose local update has one number for it."""
    found = getattr(learner.local, "lr", None)
    return found if isinstance(found, int | float) else None


def with_smaller_steps(compute: Callable[[Learner], T], learner: Learner) -> T:
    """What is computed with a learner; where that diverges, with a third of its step size, and so on.

    A step size that was right for some clients may be too large for all, or for half of their examples.
    """
    for _ in range(FURTHER):
        try:
            return compute(learner)
        except LearnerError:
            step_size = step_size_of(learner)
            if step_size is None:
                raise
            learner = with_step_size(learner, step_size / 3)
    return compute(learner)


def some_of(train: Shards, seed: int) -> Shards:
    """Clients with two examples or more, drawn where they are many."""
    may = np.flatnonzero(train.sizes >= 2)
    if len(may) < 2:
        raise SettingError("fewer than two clients have two examples or more: there is nothing to compare.")
    return train[may[keys.participants(seed, 0, train.tokens[may], MOST)]]
