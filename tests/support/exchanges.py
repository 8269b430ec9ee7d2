"""What an initialiser or a distance asks, carried out; and federations of which every ask is kept."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.algorithms.lockstep import in_step
from coterie.algorithms.records import Count
from coterie.federation.exchange import Server
from coterie.learn.task import Task
from coterie.models import stacked


def server_of(federation, learner, seed=0):
    """What a server of these clients knows."""
    learner = learner.for_data(federation.spec)
    return Server.of(federation, learner, seed)


def carried_out(federation, *exchanges, seed=0):
    """What each of several exchanges returns that run side by side."""
    return in_step(federation, exchanges, jax.random.key(seed), Count())


def alone(federation, exchange):
    """What an exchange returns."""
    (result,) = carried_out(federation, exchange)
    return result


def started(federation, learner, initialiser, k, starts=1, seed=0):
    """The models that an initialiser gives for each start."""
    server = server_of(federation, learner, seed)
    return carried_out(federation, *[initialiser(server, server.start_key(r), k) for r in range(starts)])


class Asked(NamedTuple):
    """An ask: with several starts, all arrays of the task have a leading axis."""

    task: Task
    clients: np.ndarray  # positions
    only: Any


class Overheard:
    """A federation of which every ask is kept, and some clients do not answer some asks.

    `silent(number of the ask, name of the task)` are the positions of those that do not. What comes back in
    their name is `junk`.
    """

    traceable = False

    def __init__(self, federation, silent=lambda number, name: [], junk=np.nan, asks=None):
        self._federation, self._silent, self._junk = federation, silent, junk
        self.asks = [] if asks is None else asks

    def __getattr__(self, name):
        return getattr(self._federation, name)

    def with_learner(self, learner):
        return Overheard(self._federation.with_learner(learner), self._silent, self._junk, self.asks)

    def named(self, name):
        """The asks of a task."""
        return [ask for ask in self.asks if type(ask.task).__name__ == name]

    def ask(self, task, *, only=None, reduce=None, starts=None, **options):
        answers = self._federation.ask(task, only=only, reduce=reduce, starts=starts, **options)
        quiet = np.isin(np.asarray(answers.clients), self._silent(len(self.asks), type(task).__name__))
        self.asks.append(Asked(task, np.asarray(answers.clients), only))
        if not quiet.any():
            return answers
        assert reduce is None, "what is summed already cannot be taken back"
        place = jnp.asarray(quiet if starts is None else np.tile(quiet, (starts, 1)))
        value, report = jax.tree.map(
            lambda a: jnp.where(stacked.expand(place, a), self._junk, a), (answers.value, answers.report)
        )
        return dataclasses.replace(answers, answered=answers.answered & ~place, value=value, report=report)
