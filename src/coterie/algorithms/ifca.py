"""IFCA: the Iterative Federated Clustering Algorithm of Ghosh, Chung, Yin and Ramchandran.

"An Efficient Framework for Clustered Federated Learning". Line numbers are those of its Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from jaxtyping import Array, Int, Key, PyTree

from coterie.aggregate import Aggregator, Denominator, Mean
from coterie.algorithms import algorithm
from coterie.algorithms.algorithm import Algorithm, Result, Round, client_rows, unknown
from coterie.algorithms.parts import clusters, resampling
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.algorithms.parts.revival import revived
from coterie.algorithms.parts.settling import Settling
from coterie.algorithms.parts.sharing import Share, Sharing, check_share
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise import Random
from coterie.learn.learner import Learner
from coterie.learn.tasks import Send


class State(algorithm.State):
    """theta_j and the last known s_i, and what the parts keep where they are in use."""

    server: Any = None  # a server optimiser's state
    steady: Int[Array, " clients"] | None = client_rows(fill=0, default=None)  # see `Settling`
    sent_to: Int[Array, " clients"] | None = client_rows(fill=-1, default=None)  # see `revived`


@dataclasses.dataclass(frozen=True)
class IFCA(Algorithm[State]):
    """The Iterative Federated Clustering Algorithm: model averaging (option II) or gradient averaging (I).

    Parameters
    ----------
    k
        Number of clusters to look for; None if `init` finds it.
    n_init
        Starts from different initial models, run side by side; the one with the lowest training loss is
        kept.
    keep_best_after
        When that is decided: after a fraction of the rounds (a float), but not before the tenth, or after so
        many of them (an int). The others end there, and what follows costs no more than a single start. 1.0
        lets all of them go on to the end.
    init
        How the k models start: an initialiser such as `Random()`, or k models given as a stacked pytree or
        as a (k, d) matrix. `IFCA(init=Components())` is ONE_SHOT-IFCA of the SR-FCA paper, which needs no k.
    weight, average, normalise, aggregate
        See `Averaging`: `average` is option II, `"models"`, or option I, `"gradients"`. When `normalise` is
        not given, it is as printed: line 14 divides by m, all clients, and line 15 by those of the cluster.
    empty
        What becomes of a cluster that no client belongs to: its model stays as it is (`"keep"`), or it
        begins anew from a client that its own cluster fits badly (`"revive"`).
    share
        Arrays that all clusters have in common (section 4.1): they are averaged over all participants in
        every round, while the others are clustered, and only one copy of them is sent. `"all but last"`
        layer, names of layers such as `["layers.0"]`, or a function of an array's name.
    settle, recheck
        A client whose cluster has stayed the same for `settle` of its rounds is sent only its own model
        (section 4.1), and all of them every `recheck`-th time, to see whether that is still right. What is
        not sent for this reason is `bytes_spared` in the history.
    resample
        In every round find the cluster on one slice of the shard and train on another, all of them disjoint:
        the assumption of the theory in section 5, of no use in practice.
    preset
        `"authors"`: what is shared is not trained at all, as in the released code, where it comes from a
        model trained before; give it as `init`.
    rounds, participation
        T, and |M_t|: see `Algorithm`.

    A client takes the model of lowest loss, the first of them in a tie.
    """

    k: int | None = None
    n_init: int = dataclasses.field(default=5, kw_only=True)
    keep_best_after: float | int = dataclasses.field(default=0.25, kw_only=True)
    init: Any = dataclasses.field(
        default_factory=Random, kw_only=True, compare=False, metadata={"part": "init"}
    )
    weight: Weight = dataclasses.field(default="clients", kw_only=True)
    average: Send = dataclasses.field(default="models", kw_only=True)
    normalise: Denominator | None = dataclasses.field(default=None, kw_only=True)
    aggregate: Aggregator = dataclasses.field(
        default_factory=Mean, kw_only=True, metadata={"part": "aggregate"}
    )
    empty: Literal["keep", "revive"] = dataclasses.field(default="keep", kw_only=True)
    share: Share | None = dataclasses.field(default=None, kw_only=True)
    settle: int | None = dataclasses.field(default=None, kw_only=True)
    recheck: int = dataclasses.field(default=10, kw_only=True)
    resample: bool = dataclasses.field(default=False, kw_only=True)
    preset: Literal["authors"] | None = dataclasses.field(default=None, kw_only=True)

    # line 1: theta_j^(0), j in [k]
    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        self.averaging.sharing.check_model(server.learner.shapes(server.spec))
        if self.resample:
            yield from resampling.check_sizes(server, 2 * self.rounds, "2 examples per round")
        models = yield from clusters.initialiser(self.init)(server, key, self.k)
        return self.state_of(models, server.clients)

    def state_of(self, models: PyTree, clients: int) -> State:
        models = self.averaging.sharing.of_first(models)
        return State(
            models,
            unknown(clients),
            server=self.averaging.start(models),
            steady=self.settling.start(clients),
            sent_to=unknown(clients) if self.empty == "revive" else None,
        )

    # lines 2 to 4: broadcast theta_j^(t), j in [k], to the participants M_t, which the driver draws;
    # lines 5 to 12 are what each of them does: `ChooseAndTrain`
    def ask(self, state: State, round: Round) -> Ask:
        only = clusters.first_assigned(state.sent_to, self.settling.only(state.steady, state.assignment))
        parts: dict[str, Any] = resampling.parts_of(round.number, self.rounds) if self.resample else {}
        return self.averaging.ask(state.models, round.number, only, **parts)

    # lines 13 to 15
    def update(self, state: State, answers: Answers, round: Round) -> State:
        # option I:  theta_j^(t+1) = theta_j^(t) - gamma/m sum_{i in M_t} s_ij g_i
        # option II: theta_j^(t+1) = sum_{i in M_t} s_ij theta~_i / sum_{i in M_t} s_ij
        models, kept = self.averaging.update(
            state.models, state.server, answers, round.rate, clients=len(state.assignment)
        )
        assignment = answers.updated(state.assignment, answers.cluster)
        sent_to = state.sent_to
        if sent_to is not None:
            models, sent_to = revived(models, assignment, answers)
        steady = self.settling.update(state.steady, state.assignment, assignment, answers)
        return State(models, assignment, kept, steady, sent_to)

    # line 17, then line 6 once more for everybody under the final models: the assignment, and the training
    # loss by which the best start is kept
    def finish(self, server: Server, state: State) -> Exchange[Result]:
        result = yield from clusters.chosen_by_everybody(state)
        return result

    # -- the parts ---------------------------------------------------------------------------------------

    @property
    def averaging(self) -> Averaging:
        printed: Denominator = "clients" if self.average == "gradients" else "cluster"
        sharing = Sharing(self.share, frozen=self.preset == "authors")
        return Averaging(self.weight, self.average, self.normalise or printed, self.aggregate, sharing)

    @property
    def settling(self) -> Settling:
        return Settling(self.settle, self.recheck)

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
        self.settling.check()
        check_share(self.share)
        if self.resample and self.settle is not None:
            raise SettingError("resample has clients find their cluster in every round: leave settle out.")
        if self.preset == "authors" and self.share is None:
            raise SettingError("preset='authors' is about shared layers: say with share which they are.")

    def __hash__(self) -> int:
        return clusters.hash_of(self)  # `init` may hold arrays, and no compiled round depends on it
