"""What clustered methods are compared with: one model for all, one model each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from coterie.algorithms.alternating import Alternating
from coterie.algorithms.rounds import Outcome, RoundAlgorithm, State, Step
from coterie.clustering.history import History, RoundLog
from coterie.clustering.result import Clustering
from coterie.federation.protocol import Federation
from coterie.learn import tasks
from coterie.learn.learner import Learner
from coterie.models import stacked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Global(Alternating):
    """One model for all clients: federated averaging; FedProx with a `proximal` term in the local update.

    It is alternating minimisation with a single cluster. Parameters are those of `IFCA`.
    """

    @property
    def clusters(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(RoundAlgorithm):
    """A model for each client, trained on its own shard alone; nothing is sent.

    All start from the same initial model, and each is a cluster of its own.
    """

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        one = learner.init(key, federation.spec)
        models = jax.tree.map(lambda a: jnp.broadcast_to(a, (1, federation.clients, *a.shape)), one)
        return State(models, jnp.full((1, federation.clients), -1, jnp.int32))

    def round(self, federation: Federation, state: State, step: Step) -> tuple[State, Outcome]:
        asked = jnp.arange(federation.clients) if step.clients is None else step.clients.clients
        own = jax.tree.map(lambda a: a[0, asked], state.models)
        answers = federation.ask(
            tasks.train, {"round": step.round}, each=own, clients=step.clients, key=step.key
        )

        def updated(models: Array, new: Array, old: Array) -> Array:
            kept = jnp.where(stacked.expand(answers.answered, new), new, old)
            return kept[None] if step.clients is None else models.at[0, asked].set(kept)

        models = jax.tree.map(updated, state.models, answers.value, own)
        known = jnp.where(answers.answered, asked, state.assignment[0, asked])
        assignment = state.assignment.at[0, asked].set(known.astype(jnp.int32))
        outcome = Outcome.of(answers, answers.report["loss"][:, None], assignment, federation.clients)
        # each client trains where its data is: what the simulation moves about never travels
        return State(models, assignment), dataclasses.replace(outcome, down=0, up=0)

    def finish(
        self, federation: Federation, learner: Learner, state: State, logs: Sequence[RoundLog], seed: int
    ) -> Clustering:
        return Clustering(
            ids=federation.ids,
            assignment=np.arange(federation.clients, dtype=np.int32),
            models=stacked.take(state.models, 0),
            learner=learner,
            spec=federation.spec,
            history=History(logs, federation.clients),
            algorithm=self.settings(),
            seed=seed,
            provenance=federation.describe(),
        )
