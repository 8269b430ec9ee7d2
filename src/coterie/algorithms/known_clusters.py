"""Federated averaging within clusters that the server knows: it tells each client which model to train."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, TypeVar

import numpy as np

from coterie.algorithms import algorithm
from coterie.algorithms.algorithm import Algorithm, Result, Round, lowest_loss
from coterie.algorithms.parts.averaging import Averaging
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.learn.learner import Learner
from coterie.learn.tasks import MeasureLosses, lowest


class State(algorithm.State):
    """The cluster models, and who belongs where."""

    server: Any = None  # a server optimiser's state


K = TypeVar("K", bound=State)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownClusters(Algorithm[K]):
    """Rounds in which clients train the model of their cluster, which they alone are sent.

    A client that belongs to no cluster, because it joined later or is not known, takes the model of lowest
    loss.
    """

    @property
    @abstractmethod
    def averaging(self) -> Averaging:
        """How what clients send becomes the models of the next round."""

    def ask(self, state: K, round: Round) -> Ask:
        return self.averaging.ask(state.models, round.number, only=state.assignment)

    def update(self, state: K, answers: Answers, round: Round) -> K:
        models, kept = self.averaging.update(
            state.models, state.server, answers, round.rate, clients=len(state.assignment)
        )
        assignment = answers.updated(state.assignment, answers.cluster)
        return dataclasses.replace(state, models=models, assignment=assignment, server=kept)

    def finish(self, server: Server, state: K) -> Exchange[Result]:
        answers = yield Ask(MeasureLosses(state.models))
        losses, heard, objective = lowest_loss(answers)
        known = np.asarray(state.assignment)
        assignment = np.where((known < 0) & heard, np.asarray(lowest(losses)), known)
        return Result(assignment, state.models, objective, losses)

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        self.averaging.check(learner)
