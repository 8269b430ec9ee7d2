"""FedX: Phase 2 of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression".

Line numbers are those of the box "Phase 2 FedX+clustering".
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from coterie.aggregate import Aggregator, Mean, SoftSumming
from coterie.algorithms import algorithm
from coterie.algorithms.algorithm import Algorithm, Result, Round, unknown
from coterie.algorithms.parts import clusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise import Random
from coterie.learn.learner import Learner
from coterie.learn.tasks import WeighAndTrain
from coterie.models import stacked


class State(algorithm.State):
    """theta_t and the last known labels z_i."""

    server: Any = None  # a server optimiser's state


@dataclasses.dataclass(frozen=True)
class FedX(Algorithm[State]):
    """FedAvg or FedProx with clustering: Phase 2 of the mixed-regression paper.

    The local update decides which: `SGD(lr=eta, steps=s)` is FedAvg's, s steps of gradient descent, and
    `Proximal(lr=eta)` is FedProx's. The paper's loss is `"half_squared"`; Phase 1 is `init=MomentDescent()`.

    Parameters
    ----------
    k
        Number of clusters; None if `init` finds it.
    n_init, keep_best_after, init
        See `IFCA`.
    temperature
        0: hard labels, (7) of the paper, and a client trains one model. Above 0: soft labels, lambda =
        softmax(-loss / temperature), and a client trains and sends all k, each as far as it belongs to it.
        The entropy term that makes labels soft is ours: (6) of the paper always has a vertex for its
        solution.
    weight, normalise
        As printed, theta_t = sum over clients of w_i theta_{i,t} with w_i = n_i / N, where a client leaves
        the models of other clusters as they are: `weight="examples"` and `normalise="participants"`, who in
        the paper are all clients. `normalise="cluster"` is the mean over those of the cluster.
    aggregate
        See `Averaging`.
    rounds, participation
        T', and how many of the clients take part in a round: see `Algorithm`.
    """

    k: int | None = None
    n_init: int = dataclasses.field(default=5, kw_only=True)
    keep_best_after: float | int = dataclasses.field(default=0.25, kw_only=True)
    init: Any = dataclasses.field(
        default_factory=Random, kw_only=True, compare=False, metadata={"part": "init"}
    )
    weight: Weight = dataclasses.field(default="examples", kw_only=True)
    normalise: Literal["cluster", "participants"] = dataclasses.field(default="participants", kw_only=True)
    aggregate: Aggregator = dataclasses.field(
        default_factory=Mean, kw_only=True, metadata={"part": "aggregate"}
    )
    temperature: float = dataclasses.field(default=0.0, kw_only=True)

    # lines 1 to 3: theta_T, from Phase 1
    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        models = yield from clusters.initialiser(self.init)(server, key, self.k)
        return self.state_of(models, server.clients)

    def state_of(self, models: PyTree, clients: int) -> State:
        return State(models, unknown(clients), self.averaging.start(models))

    # lines 4 and 5: broadcast theta_{t-1} to all clients;
    # lines 6 to 8 are what each of them does: `ChooseAndTrain`, or `WeighAndTrain` with soft labels
    def ask(self, state: State, round: Round) -> Ask:
        if self.temperature == 0:
            return self.averaging.ask(state.models, round.number)
        temperature, by_examples = jnp.asarray(self.temperature), self.weight == "examples"
        task = WeighAndTrain(state.models, round.number, temperature, by_examples=by_examples)
        return Ask(task, reduce=SoftSumming(stacked.count(state.models)))

    # line 9: theta_t = sum_i w_i theta_{i,t}, where w_i = n_i / N
    def update(self, state: State, answers: Answers, round: Round) -> State:
        models, kept = self.averaging.update(
            state.models, state.server, answers, round.rate, clients=len(state.assignment)
        )
        return State(models, answers.updated(state.assignment, answers.cluster), kept)

    # line 2, then line 6 once more for everybody under the final models
    def finish(self, server: Server, state: State) -> Exchange[Result]:
        result = yield from clusters.chosen_by_everybody(state)
        return result

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight, "models", self.normalise, self.aggregate)

    @property
    def starts(self) -> int:
        return clusters.starts(self.n_init, self.init)

    @property
    def contest(self) -> int:
        return clusters.contest(self.keep_best_after, self.rounds)

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        clusters.check(self.k, self.n_init, self.init, clients, self.keep_best_after)
        self.averaging.check(learner)
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature must be 0 or a positive number, not {self.temperature}.")
        if self.temperature > 0 and not isinstance(self.aggregate, Mean):
            raise SettingError(
                "with soft labels clients send every model, which only a mean can weigh: leave aggregate out."
            )

    def __hash__(self) -> int:
        return clusters.hash_of(self)  # `init` may hold arrays, and no compiled round depends on it
