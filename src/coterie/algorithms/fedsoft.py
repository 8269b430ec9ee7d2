"""FedSoft: soft clustered federated learning with proximal local updating, of Ruan and Joe-Wong.

"FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", AAAI 2022. Its Algorithm 1 has two
halves. `pause` is the first, every few rounds: clients tell how important each cluster is to them. `ask` and
`update` are the second: the clients that were selected for some cluster (`selected`) train, and the centres
are their means.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys
from coterie.algorithms import algorithm
from coterie.algorithms.algorithm import (
    Algorithm,
    Draw,
    Note,
    Pause,
    Result,
    Round,
    client_rows,
    lowest_loss,
    unknown,
)
from coterie.algorithms.parts import clusters
from coterie.errors import FederationError, SettingError, diverged
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise import Random
from coterie.initialise.random import fresh_model
from coterie.learn.learner import Learner
from coterie.learn.soft import CountNearest, TrainBetween
from coterie.models import stacked
from coterie.words import count

MOST = 2**31 - 1  # examples that a client can have: their number is kept in 32 bits
LISTED = 10_000  # so many importance weights are told in the history; more would be a data set of their own


class State(algorithm.State):
    """The centres, which are `models`, and the clients: how their examples divide, and their own models."""

    # n_is, how many examples are nearest to each centre; all 0 while that is not known
    counts: Int[Array, "clients k"] = client_rows(fill=0, kw_only=True)
    losses: Float[Array, "clients k"] = client_rows(fill=jnp.nan, kw_only=True)  # at the last count
    own: PyTree = client_rows(like="first", kw_only=True)  # (clients, ...): w_i
    first: PyTree = dataclasses.field(kw_only=True)  # where all w_i start


@dataclasses.dataclass(frozen=True)
class FedSoft(Algorithm[State]):
    """FedSoft: clients whose examples are a mixture of several sources belong to several clusters.

    Every client trains one model of its own, which the centres of all clusters draw to themselves, each as
    much as it is important to the client: h_i(w) = f_i(w) + lambda/2 * sum_s u_is ||w - c_s||^2. A centre is
    the mean of the models of a few clients, selected by how important the cluster is to them.

    Parameters
    ----------
    k
        Number of clusters.
    rounds
        How many.
    select
        K, how many clients are selected in each round for each cluster, without replacement and with
        probabilities v_si, proportional to u_is n_i; a client that is selected for several trains once. None:
        all clients train in every round, and a centre is the mean of their models weighted by v_si.
    interval
        tau: every so many rounds, beginning with the first, all clients are sent all centres to find u_is.
    smoother
        sigma: no u_is, the share of a client's examples that centre s fits best, is below this.
    pull
        lambda, how strongly centres draw the clients' models to themselves.
    init
        How the k centres start: an initialiser such as `Random()`, or k models given as a stacked pytree or
        as a (k, d) matrix. The clients' own models all start from one further, fresh model.
    preset
        `"authors"`: the smoother replaces only shares of zero, as in the released code, so that a share
        may be below it.

    The local update of the learner makes h_i small: it starts from the client's own model of the time before,
    which the server keeps for it. A client's cluster is the one most important to it, the first in a tie.
    """

    k: int
    select: int | None = dataclasses.field(default=None, kw_only=True)
    interval: int = dataclasses.field(default=2, kw_only=True)
    smoother: float = dataclasses.field(default=0.05, kw_only=True)
    pull: float = dataclasses.field(default=0.1, kw_only=True)
    init: Any = dataclasses.field(
        default_factory=Random, kw_only=True, compare=False, metadata={"part": "init"}
    )
    preset: Literal["authors"] | None = dataclasses.field(default=None, kw_only=True)

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        clusters.check_number(self.k, clients)
        if self.participation != 1.0:
            raise SettingError("who takes part in FedSoft is what `select` says: leave participation out.")
        if self.select is not None and (isinstance(self.select, bool) or self.select < 1):
            raise SettingError(
                f"select must be a number of clients from 1 up, or None for all, not {self.select}."
            )
        if self.select is not None and self.select > clients:
            raise SettingError(f"select={self.select} is more than the {clients} clients there are.")
        if self.interval < 1:
            raise SettingError(f"interval must be a number of rounds from 1 up, not {self.interval}.")
        if not 0 <= self.smoother < 1:
            raise SettingError(f"smoother must be at least 0 and below 1, not {self.smoother}.")
        if not 0 <= self.pull < float("inf"):
            raise SettingError(f"pull must be 0 or a positive number, not {self.pull}.")

    # -- the state ---------------------------------------------------------------------------------------

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        models = yield from clusters.initialiser(self.init)(server, key, self.k)
        first = fresh_model(server, key, self.k)  # not that of any cluster
        own = jax.tree.map(lambda a: jnp.broadcast_to(a, (server.clients, *a.shape)), first)
        return dataclasses.replace(self.state_of(models, server.clients), own=own, first=first)

    def state_of(self, models: PyTree, clients: int) -> State:
        first = stacked.take(models, 0)
        return State(
            models,
            unknown(clients),
            counts=jnp.zeros((clients, self.k), jnp.int32),
            losses=jnp.full((clients, self.k), jnp.nan),
            own=jax.tree.map(lambda a: jnp.broadcast_to(a, (clients, *a.shape)), first),
            first=first,
        )

    # -- every `interval` rounds: importance ---------------------------------------------------------------

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        state, note = yield from self._count(server, state, done)
        return Pause(state, min(self.interval, self.rounds - done), note)

    def _count(self, server: Server, state: State, done: int) -> Exchange[tuple[State, Note]]:
        # the server sends all centres to all clients; each counts, for each of its examples, the centre with
        # the lowest loss on it
        key = jax.random.fold_in(server.key("importance"), done)
        answers = yield Ask(CountNearest(state.models), key=key)
        heard = np.asarray(answers.answered)
        # a client that was silent keeps what it told before; whatever a client says is a number of examples
        said = np.clip(answers.report.counts, 0, MOST // self.k)
        counts = np.where(heard[:, None], said, np.asarray(state.counts))
        known = counts.sum(axis=1) > 0
        if not known.any():
            raise FederationError(
                "no client has told which centres fit its examples: nobody can be selected."
            )
        losses, _, objective = lowest_loss(answers)
        if not np.isfinite(objective):
            raise diverged(f"after {count(done, 'round')}")
        importance = np.asarray(self.importance(jnp.asarray(counts)))
        assignment = np.where(known, importance.argmax(axis=1), -1).astype(np.int32)
        after = dataclasses.replace(
            state,
            assignment=jnp.asarray(assignment),
            counts=jnp.asarray(counts, jnp.int32),
            losses=jnp.asarray(losses, jnp.float32),
        )
        details: dict[str, Any] = {"sure": _sure(counts[known])}
        if done == self.rounds and importance.size <= LISTED:
            details["importance"] = importance.astype(float).round(6).tolist()
        return after, Note("importance", self._text(details["sure"], assignment, heard), details)

    def _text(self, sure: float, assignment: np.ndarray, heard: np.ndarray) -> str:
        sizes = np.bincount(assignment[assignment >= 0], minlength=self.k)
        text = (
            f"of a client's examples {sure:.0%} are nearest to one centre, on average; "
            f"clusters of {', '.join(map(str, sizes))} clients."
        )
        if not heard.all():
            text += f" {count(int((~heard).sum()), 'client')} did not answer."
        return text

    def importance(self, counts: Int[Array, "clients k"]) -> Float[Array, "clients k"]:
        """u_is = max(n_is / n_i, sigma); 0 for clients that have told nothing."""
        examples = counts.sum(axis=1, keepdims=True)
        share = counts / jnp.maximum(examples, 1)
        if self.preset == "authors":
            smoothed = jnp.where(counts > 0, share, self.smoother)
        else:
            smoothed = jnp.maximum(share, self.smoother)
        return jnp.where(examples > 0, smoothed, 0)

    def weights(self, counts: Int[Array, "clients k"]) -> Float[Array, "clients k"]:
        """u_is n_i, to which v_si is proportional: each cluster's divided by their sum over clients."""
        return self.importance(counts) * counts.sum(axis=1, keepdims=True)

    # -- every round -----------------------------------------------------------------------------------------

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"]:
        known: np.ndarray = np.asarray(state.counts).sum(axis=1) > 0
        return known

    def selected(self, server: Server, state: State, rounds: range) -> Bool[np.ndarray, "rounds clients k"]:
        """Sel_s of each of these rounds: `select` clients, drawn one after another with probabilities v_s.

        Client i rings after an exponential time of rate v_si, and the first to ring are selected. The time is
        drawn for the seed, the round, the cluster and the client's id, so it depends on nothing else.
        """
        assert self.select is not None
        known = self.eligible(state)
        here = known & np.isin(np.arange(len(known)), server.present)
        # those that are away are waited for only if there is nobody else
        rates = np.asarray(self.weights(state.counts)) * (here if here.any() else known)[:, None]
        purposes = [[f"selection/{server.seed}/{t}/{s}" for s in range(self.k)] for t in rounds]
        lots = np.stack([np.stack([keys.lots(p, server.tokens) for p in each], axis=-1) for each in purposes])
        uniform = (lots + 0.5) * 2.0**-64  # above 0, and rarely 1: who then rings at once
        ring = np.full(uniform.shape, np.inf)
        np.divide(-np.log(uniform), rates, out=ring, where=rates > 0)
        first_to_ring = np.argsort(ring, axis=1, kind="stable")[:, : self.select]
        chosen = np.zeros(ring.shape, bool)
        # fewer than `select` clients may have anything to do with a cluster
        np.put_along_axis(chosen, first_to_ring, np.isfinite(np.take_along_axis(ring, first_to_ring, 1)), 1)
        return chosen

    def draw(self, server: Server, state: State, rounds: range) -> Draw | None:
        if self.select is None:
            known = np.flatnonzero(self.eligible(state))
            return None if len(known) == server.clients else Draw(np.tile(known, (len(rounds), 1)))
        chosen = self.selected(server, state, rounds)
        # in ascending order, then blank: as many places in every round as there can be clients
        every = np.where(chosen.any(axis=2), np.arange(server.clients), server.clients)
        places = np.sort(every, axis=1)[:, : self.k * self.select]
        nobody = np.zeros((len(rounds), 1, self.k), bool)  # at the position that stands for it
        member = np.take_along_axis(np.concatenate([chosen, nobody], axis=1), places[:, :, None], axis=1)
        return Draw(places, member)

    def ask(self, state: State, round: Round) -> Ask:
        # selected clients download c_s and make h_i small, each from where it was
        pulls = self.pull * self.importance(state.counts)
        return Ask(TrainBetween(state.models, round.number, state.own, pulls))

    def update(self, state: State, answers: Answers, round: Round) -> State:
        # c_s <- 1/K sum over Sel_s of w_i, or sum of v_si w_i; of those that answered, if any did
        member = self.weights(state.counts)[answers.clients] if round.drawn is None else round.drawn
        weights = jnp.where(answers.answered[:, None], member, 0.0)
        whole = weights.sum(axis=0)
        own = stacked.where(answers.answered, answers.value, jax.tree.map(jnp.zeros_like, answers.value))
        means = stacked.weighted(own, weights / jnp.where(whole > 0, whole, 1))
        return dataclasses.replace(
            state,
            models=stacked.where(whole > 0, means, state.models),
            own=answers.updated(state.own, answers.value),
        )

    def finish(self, server: Server, state: State) -> Exchange[Result]:
        return Result(
            np.asarray(state.assignment),
            state.models,
            losses=np.asarray(state.losses),
            shares=np.asarray(self.importance(state.counts)),
            personal=state.own,
        )
        yield


def _sure(counts: Int[np.ndarray, "clients k"]) -> float:
    """The share of a client's examples that are nearest to the same centre, on average over clients."""
    return float((counts.max(axis=1) / counts.sum(axis=1)).mean())
