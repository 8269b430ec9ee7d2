"""What clustered methods are compared with: one model for all, one model each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from coterie.algorithms.alternating import Alternating, Told
from coterie.algorithms.rounds import RoundAlgorithm
from coterie.algorithms.state import Outcome, Result, State, Step
from coterie.errors import SettingError
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


@dataclasses.dataclass(frozen=True)
class Oracle(Told):
    """One model for each cluster, of clients that are told which cluster they belong to.

    It is what a method could reach at best if it found the true clusters. A client of which the truth is not
    known takes the model of lowest loss.

    Parameters
    ----------
    truth
        The cluster of every client, in the order of `data.train.ids` (such as `data.truth`), or by client id.
    weight, average, normalise, aggregate, rounds, participation
        See `Alternating` and `RoundAlgorithm`.
    """

    truth: Any = dataclasses.field(default=None, compare=False)

    @property
    def clusters(self) -> int:
        return len(set(self._labels))

    def check(self, clients: int) -> None:
        if self.truth is None:
            raise SettingError("the oracle needs the true clusters: give truth, such as data.truth.")
        try:
            sorted(set(self._labels))
        except TypeError:
            raise SettingError(
                "truth must be one label per client, all of them numbers or all of them words."
            ) from None
        if not self._labels:
            raise SettingError("truth has no labels: give one per client, such as data.truth.")
        super().check(clients)
        if not isinstance(self.truth, Mapping) and len(self.truth) != clients:
            raise SettingError(f"truth has {len(self.truth)} labels for {clients} clients.")

    @property
    def _labels(self) -> list[Any]:
        """The label of every client, in order."""
        given = list(self.truth.values() if isinstance(self.truth, Mapping) else self.truth)
        return [label.item() if isinstance(label, np.generic) else label for label in given]

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        state = super().start(federation, learner, key)
        return dataclasses.replace(state, assignment=jnp.asarray(self._known(federation.ids))[None])

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        more = super().grown(state, federation, learner, key)
        known = jnp.asarray(self._known(federation.ids))
        return dataclasses.replace(more, assignment=jnp.where(more.assignment < 0, known, more.assignment))

    def _known(self, ids: np.ndarray) -> Int[np.ndarray, " clients"]:
        """The cluster of each of these clients; -1 for one of which it is not known."""
        number = {label: j for j, label in enumerate(sorted(set(self._labels)))}
        clients = self.truth if isinstance(self.truth, Mapping) else ids[: len(self.truth)]
        known = {str(c): number[label] for c, label in zip(clients, self._labels, strict=True)}
        return np.array([known.get(str(client), -1) for client in ids], np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Local(RoundAlgorithm):
    """A model for each client, trained on its own shard alone.

    All start from the same initial model, and each is a cluster of its own. Nothing needs to be sent in a
    round: over Flower all rounds are one exchange, by which the server comes to hold the models.
    """

    def template(self, federation: Federation, learner: Learner, models: int | None = None) -> State:
        shapes: State = jax.eval_shape(lambda key: self.start(federation, learner, key), jax.random.key(0))
        return shapes

    def start(self, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        one = learner.init(key, federation.spec)
        models = jax.tree.map(lambda a: jnp.broadcast_to(a, (1, federation.clients, *a.shape)), one)
        return State(models, jnp.full((1, federation.clients), -1, jnp.int32))

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        there = state.assignment.shape[1]
        if there == federation.clients:
            return state
        fresh = self.start(federation, learner, key)
        both: State = jax.tree.map(lambda new, old: new.at[:, :there].set(old), fresh, state)
        return both

    def round_keys(self, key: Key[Array, ""]) -> Key[Array, " rounds"]:
        # clients derive the rounds' keys themselves, so that any number of rounds are one exchange
        return jnp.broadcast_to(key, self.rounds)

    @property
    def rounds_per_exchange(self) -> int:
        return self.rounds

    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        asked = jnp.arange(federation.clients) if step.clients is None else step.clients.clients
        state, (outcome,) = self._train(
            federation, state, [step], step.clients, asked, jnp.ones((len(asked), 1), bool)
        )
        # each client trains where its data is: what the simulation moves about need not travel
        nobody = jnp.zeros_like(outcome.answered)
        return state, dataclasses.replace(outcome, traffic=outcome.traffic.only_to(nobody))

    def exchange(
        self,
        federation: Federation,
        learner: Learner,
        state: State,
        steps: Sequence[Step],
        among: Int[np.ndarray, " some"] | None = None,
        least: int | None = None,
    ) -> tuple[State, list[Outcome]]:
        everybody = np.arange(federation.clients)
        drawn = [everybody if step.clients is None else step.clients.clients for step in steps]
        takes_part = np.stack([np.isin(everybody, clients) for clients in drawn], axis=1)
        if among is not None:
            takes_part &= np.isin(everybody, among)[:, None]
        asked = np.flatnonzero(takes_part.any(axis=1))
        if len(asked) == 0:
            return state, []
        chosen = None if len(asked) == len(everybody) else federation.select(asked)
        return self._train(
            federation, state, steps, chosen, jnp.asarray(asked), jnp.asarray(takes_part[asked]), least
        )

    def _train(
        self,
        federation: Federation,
        state: State,
        steps: Sequence[Step],
        chosen: Any,
        asked: Int[Array, " asked"],
        takes_part: Bool[Array, "asked rounds"],
        least: int | None = None,
    ) -> tuple[State, list[Outcome]]:
        """Have clients train in each of the rounds that they take part in, in one exchange."""
        own = jax.tree.map(lambda a: a[0, asked], state.models)
        answers = federation.ask(
            tasks.train,
            {"rounds": jnp.stack([step.round for step in steps])},
            each={"model": own, "takes_part": takes_part},
            clients=chosen,
            key=steps[0].key,
            least=least,
        )

        def updated(models: Array, new: Array, old: Array) -> Array:
            kept = jnp.where(stacked.expand(answers.answered, new), new, old)
            return kept[None] if chosen is None else models.at[0, asked].set(kept)

        models = jax.tree.map(updated, state.models, answers.value, own)
        assignment, outcomes = state.assignment, []
        # what travels does so once, for all of these rounds: it counts in a client's first one
        first = jnp.argmax(takes_part, axis=1)
        for t in range(len(steps)):
            here = slice(None) if len(steps) == 1 else np.flatnonzero(takes_part[:, t])
            drawn = dataclasses.replace(
                answers,
                clients=answers.clients[here],
                answered=answers.answered[here],
                traffic=answers.traffic.only_to(first == t)[here],
                failures=tuple(f for f in answers.failures if f[0] in asked[here]),
            )
            known = jnp.where(drawn.answered, drawn.clients, assignment[0, drawn.clients])
            assignment = assignment.at[0, drawn.clients].set(known)
            loss = answers.report["loss"][here, t][:, None]
            outcomes.append(Outcome.of(drawn, loss, assignment, federation.clients))
        return State(models, assignment), outcomes

    def finish(self, federation: Federation, learner: Learner, state: State, seed: int) -> Result:
        lost = np.flatnonzero(np.asarray(state.assignment[0]) < 0)
        if len(lost) and not federation.traceable:
            # all rounds were one exchange: who missed it would never be asked again
            steps = [
                stacked.take(self._steps(federation, state, seed, t, t + 1), 0) for t in range(self.rounds)
            ]
            state, _ = self.exchange(federation, learner, state, steps, among=lost, least=0)
        return Result(np.asarray(state.assignment[0]), stacked.take(state.models, 0))
