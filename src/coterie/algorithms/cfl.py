"""CFL: the Clustered Federated Learning of Sattler, Müller and Samek.

"Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints",
IEEE TNNLS 2021. A round is federated averaging within each cluster, and `pause` is what the server decides
after it; `bipartition.py` has the criteria.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.algorithms import known_clusters
from coterie.algorithms.algorithm import Note, Pause, Round, client_rows, unknown
from coterie.algorithms.bipartition import PRESETS, Bipartition, Rule, bipartition, cosines
from coterie.algorithms.known_clusters import KnownClusters
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import whole_number
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise.random import fresh_models
from coterie.learn.learner import Learner
from coterie.models import stacked
from coterie.words import count


class Seen(eqx.Module):
    """What the updates that clients sent were like: see `State`."""

    mean: Float[Any, " k"]
    longest: Float[Any, " k"]
    products: Float[Any, "clients clients"]


class State(known_clusters.State):
    """The clusters, and what their clients' last updates were like."""

    mean: Float[Array, " k"] | None = None  # the length of each cluster's mean update; NaN: nobody sent one
    longest: Float[Array, " k"] | None = None  # that of the longest update of a client
    # inner products of all updates; NaN for clients that sent none, and everywhere if no cluster is ripe
    products: Float[Array, "clients clients"] | None = client_rows(fill=jnp.nan, axes=2, default=None)
    scale: Float[Array, ""] | None = None  # the length of the longest mean update so far
    fresh: Bool[Array, " k"] | None = None  # which clusters have not trained since they were split


Members = Mapping[int, Int[np.ndarray, " clients"]]  # the clients, by position, of some clusters


@dataclasses.dataclass(frozen=True, kw_only=True)
class CFL(KnownClusters[State]):
    """Clustered Federated Learning: clusters are split in two as long as their clients pull apart.

    All clients begin in one cluster, with federated averaging. A cluster is split when (1) its model no
    longer moves: the mean update of its clients is shorter than eps1; (2) some client would still move it
    far: its update is longer than eps2; and (3) its clients part well: sqrt((1 - alpha) / 2) > gamma, where
    alpha is the largest cosine similarity of the updates of two clients that go separate ways. They are
    parted so that alpha is as small as can be. Both parts go on from the model of the cluster.

    Parameters
    ----------
    eps1
        A length; a share of the longest mean update so far, such as `"10%"`, the paper's rule of thumb; or
        `"auto"` (when not given), which is `"20%"`.
    eps2
        A length, a share as for eps1, or `"auto"` (when not given): one and a half times eps1. The paper
        advises from 1 to 10 times.
    gamma
        gamma_max, from 0 to below 1: how far the update of a client may be from what it would be with all the
        data of its true cluster, in proportion to its length. 0 accepts every split that passes (1) and (2).
        `"auto"` (when not given) is 0 where the two parts explain 1.5 times as much of the updates'
        directions as noise could in any one direction, and elsewhere 1.5 times the largest
        sqrt((1 - alpha) / 2) of a client and the one most similar to it: see `bipartition.py`.
    min_size
        The least number of clients in either part: a split that would make a smaller one is not made. 2 when
        not given, since what parts most easily is a single odd client.
    warmup
        For how many rounds no split is considered; 0 when not given.
    max_clusters
        How many clusters there may be; any number when None.
    preset
        `"authors"`: as in the released notebook. Clients are parted by complete linkage, eps1 = 0.4,
        eps2 = 1.6, gamma = 0, warmup = 20, min_size = 1 but a cluster of two is not split, and every client
        counts once. Settings that are given besides come first.
    weight
        How much a client counts in a mean: `"examples"` (when not given) or `"clients"`.
    rounds, participation
        See `Algorithm`. (1) to (3) are about the clients that answered in a round. If these call for a
        split and are not all of a cluster, all that are there are asked once more, for an update of the model
        as it is now: the split is made if (1) to (3) hold then, and every client goes where its own update
        belongs. One that does not answer takes the model of lowest loss when it takes part again.
    """

    eps1: float | str | None = None
    eps2: float | str | None = None
    gamma: float | str | None = None
    min_size: int | None = None
    warmup: int | None = None
    max_clusters: int | None = None
    preset: Literal["authors"] | None = None
    weight: Weight | None = None

    @property
    def rule(self) -> Rule:
        """When a cluster is split: the settings that were given, and else those of the preset."""
        names = "eps1", "eps2", "gamma", "min_size", "warmup"
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(PRESETS[self.preset], **given)

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight or ("clients" if self.preset == "authors" else "examples"))

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        self.rule.check()
        if self.max_clusters is not None:
            whole_number("max_clusters", self.max_clusters, 1)

    # all clients begin in one cluster
    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        return self.state_of(fresh_models(server, key, 1), server.clients)
        yield

    def state_of(self, models: PyTree, clients: int) -> State:
        k = stacked.count(models)
        return State(
            models,
            unknown(clients),
            mean=_unknown(k),
            longest=_unknown(k),
            products=_unknown(clients, clients),
            scale=jnp.zeros(()),
            fresh=jnp.zeros(k, bool),
        )

    # -- a round: federated averaging within each cluster ------------------------------------------------

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        lost = np.asarray(state.assignment) < 0
        # until new clusters have trained, a client that belongs to none would choose between equal models
        return ~lost if lost.any() and np.asarray(state.fresh).any() else None

    def ask(self, state: State, round: Round) -> Ask:
        # all replies are kept: updates are compared with each other
        return self.averaging.ask(state.models, round.number, only=state.assignment, keep_all=True)

    def update(self, state: State, answers: Answers, round: Round) -> State:
        seen, scale = self._look(state, answers)
        assert state.fresh is not None
        return dataclasses.replace(
            super().update(state, answers, round),
            mean=seen.mean,
            longest=seen.longest,
            products=seen.products,
            scale=scale,
            fresh=state.fresh & jnp.isnan(seen.mean),
        )

    def _look(self, state: State, answers: Answers) -> tuple[Seen, Array]:
        """What clients made of the models of a state, and the length of the longest mean update so far."""
        looked: tuple[Seen, Array] = _look(
            self.rule,
            len(state.assignment),
            state.models,
            state.scale,
            answers.clients,
            answers.value,
            answers.cluster,
            answers.weight,
            answers.answered,
        )
        return looked

    # -- what the server decides after it ----------------------------------------------------------------

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        first = self.rule.warmup + 1  # round after which a split is considered
        if done < first and done < self.rounds:
            return Pause(state, min(first, self.rounds) - done)
        if done == self.rounds:
            return Pause(state, 0, self._last_look(state))  # a split now would leave two equal models
        after, note = yield from self._split_where_ripe(server, state, done)
        return Pause(after, 1, note)

    def _split_where_ripe(
        self, server: Server, state: State, done: int
    ) -> Exchange[tuple[State, Note | None]]:
        seen = Seen(state.mean, state.longest, state.products)
        k, most = len(seen.mean), self.max_clusters or server.clients
        ripe = np.flatnonzero(self.rule.ripe(seen.mean, seen.longest, state.scale)).tolist()
        if not ripe or k >= most:
            return state, None
        # as long as there is one cluster, everybody belongs to it, heard of or not
        home = np.asarray(state.assignment) if k > 1 else np.zeros(server.clients, np.int32)
        order = np.argsort(server.ids.astype(str))  # ties are resolved by id, wherever clients stand
        members = {c: order[home[order] == c] for c in ripe}
        wanted = self._cuts(seen, state.scale, members)
        cuts = {c: cut for c, cut in wanted.items() if sum(cut.sizes) == len(members[c])}
        again = {c: members[c][np.isin(members[c], server.present)] for c in wanted if c not in cuts}
        again = {c: clients for c, clients in again.items() if len(clients)}
        if again:
            second = yield from self._ask_again(server, state, again, done)
            cuts |= self._cuts(second, state.scale, again)
        large = [c for c in sorted(cuts) if min(cuts[c].sizes) >= self.rule.min_size]
        if not large and not again:
            return state, None
        chosen = {c: cuts[c] for c in large[: most - k]}
        return self._split(state, chosen, members), self._split_note(chosen, again, state)

    def _cuts(self, seen: Seen, scale: Any, members: Members) -> dict[int, Bipartition]:
        """How clusters part, by the updates that were seen, where these call for it."""
        ripe, products = np.asarray(self.rule.ripe(seen.mean, seen.longest, scale)), np.asarray(seen.products)
        cuts = {}
        for c, clients in members.items():
            here = clients[np.isfinite(np.diag(products)[clients])]
            if ripe[c] and len(here) > 1 and len(clients) > self.rule.more_than:
                similarity = cosines(products[np.ix_(here, here)])
                cut = bipartition(similarity, self.rule.linkage)
                if self.rule.parts(cut, similarity):
                    # places within the cluster are not those of the clients, but for the first split
                    cuts[c] = Bipartition(here[cut.one], here[cut.other], cut.across)
        return cuts

    def _ask_again(self, server: Server, state: State, members: Members, done: int) -> Exchange[Seen]:
        """The updates that clients make of the models as they are now, in one exchange."""
        home = np.full(server.clients, -1, np.int32)
        for c, clients in members.items():
            home[clients] = c
        asked = np.flatnonzero(home >= 0)
        ask = self.averaging.ask(
            state.models, jnp.asarray(done), only=jnp.asarray(home[asked]), keep_all=True
        )
        key = jax.random.fold_in(server.key("split"), done)
        answers = yield dataclasses.replace(ask, clients=asked, key=key)
        return self._look(state, answers)[0]

    def _split(self, state: State, cuts: Mapping[int, Bipartition], members: Members) -> State:
        """The state after clusters were split: one part keeps the number, the other is a new cluster."""
        assignment, old = np.array(state.assignment), np.array(state.fresh)
        parents = list(range(len(old)))
        for c, cut in cuts.items():
            assignment[members[c]] = -1  # who did not answer
            assignment[cut.one], assignment[cut.other] = c, len(parents)
            parents.append(c)
        after = self.state_of(stacked.take(state.models, np.array(parents)), len(assignment))
        return dataclasses.replace(
            after,
            assignment=jnp.asarray(assignment),
            scale=state.scale,
            fresh=jnp.asarray(old[parents] | np.isin(parents, list(cuts))),
        )

    def _split_note(self, cuts: Mapping[int, Bipartition], again: Members, state: State) -> Note:
        """What became of clusters that were to be split."""
        splits = [{"cluster": c, "sizes": list(cut.sizes), "across": cut.across} for c, cut in cuts.items()]
        text = ", ".join(
            f"cluster {c} was split ({cut.sizes[0]} and {cut.sizes[1]} clients)" for c, cut in cuts.items()
        )
        text = text or "no cluster was split"
        if again:
            text += f"; {count(sum(map(len, again.values())), 'client')} had been asked once more"
        return Note("split" if cuts else "look", f"{text}.", {**self._measured(state), "splits": splits})

    def _last_look(self, state: State) -> Note:
        """For those who wonder why there are no more clusters, or no fewer."""
        found = self._measured(state)
        mean, longest = (max((x for x in found[name] if x), default=0.0) for name in ("mean", "longest"))
        text = (
            f"{count(len(found['mean']), 'cluster')}; in the last round mean updates were up to {mean:.3g} "
            f"long (eps1 is {found['eps1']:.3g}), and clients' own up to {longest:.3g} "
            f"(eps2 is {found['eps2']:.3g})."
        )
        return Note("last look", text, found)

    def _measured(self, state: State) -> dict[str, Any]:
        """How long the updates of the last round were, and what that is compared with."""
        eps1, eps2 = map(float, self.rule.lengths(np.asarray(state.scale)))
        mean, longest = (
            [float(length) if np.isfinite(length) else None for length in np.asarray(lengths)]
            for lengths in (state.mean, state.longest)
        )
        return {"eps1": eps1, "eps2": eps2, "mean": mean, "longest": longest}


def _unknown(*shape: int) -> Float[Array, "..."]:
    return jnp.full(shape, jnp.nan, jnp.float32)  # as rounds have it: of a weaker type it compiles anew


@partial(jax.jit, static_argnums=(0, 1))
def _look(
    rule: Rule,
    population: int,
    models: PyTree,
    scale: Float[Array, ""],
    clients: Int[Array, " asked"],
    own: PyTree,
    cluster: Int[Array, " asked"],
    weight: Float[Array, " asked"],
    there: Bool[Array, " asked"],
) -> tuple[Seen, Float[Array, ""]]:
    """What the updates are like by which clients got from the cluster models to their own, and the scale."""
    updates = jax.tree.map(
        lambda w, theta: jnp.where(stacked.expand(there, w), w - theta[cluster], 0), own, models
    )
    # what is no number belongs to its own cluster, and must not enter the others' means as nothing times it
    spoilt = there & ~jnp.isfinite(_norms(updates))
    updates = stacked.where(spoilt, jax.tree.map(jnp.zeros_like, updates), updates)
    member = jax.nn.one_hot(cluster, stacked.count(models)) * there[:, None]
    counts = member * jnp.where(there, weight, 0)[:, None]
    whole = counts.sum(0)
    means = stacked.weighted(updates, counts / jnp.where(whole > 0, whole, 1))
    mean = jnp.where((whole > 0) & ~((member * spoilt[:, None]).sum(0) > 0), _norms(means), jnp.nan)
    longest = jnp.where(whole > 0, jnp.max(member * _norms(updates)[:, None], axis=0), jnp.nan)
    scale = jnp.maximum(scale, jnp.max(jnp.where(jnp.isfinite(mean), mean, 0)))
    blank = _unknown(len(clients), len(clients))
    seen = Seen(mean, longest, blank)
    # all pairs are far more work than all the rest of this, and seldom needed
    pairs = jax.lax.cond(rule.ripe(mean, longest, scale).any(), lambda: _products(updates), lambda: blank)
    pairs = jnp.where(there[:, None] & there[None, :], pairs, jnp.nan)
    products = _unknown(population, population).at[clients[:, None], clients].set(pairs)
    return dataclasses.replace(seen, products=products), scale


def _norms(models: PyTree) -> Float[Array, " models"]:
    return jnp.sqrt(sum(jnp.sum(jnp.square(a.reshape(len(a), -1)), axis=1) for a in jax.tree.leaves(models)))


def _products(models: PyTree) -> Float[Array, "models models"]:
    rows = [a.reshape(len(a), -1) for a in jax.tree.leaves(models)]
    return jnp.asarray(sum(jnp.matmul(a, a.T, precision=jax.lax.Precision.HIGHEST) for a in rows))
