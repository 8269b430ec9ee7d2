"""CFL: the Clustered Federated Learning of Sattler, Müller and Samek.

"Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints",
IEEE TNNLS 2021. A round is federated averaging within each cluster, and `between` is what the server decides
after it; `clustering/bipartition.py` has the criteria.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys
from coterie.aggregate import Aggregator, Mean, Normalise
from coterie.algorithms.alternating import Told, one_of
from coterie.algorithms.state import Note, State, Step
from coterie.clustering.bipartition import PRESETS, Cut, Rule, bipartition, cosines
from coterie.errors import whole_number
from coterie.federation.protocol import Answers, Federation
from coterie.learn.learner import Learner
from coterie.models import stacked
from coterie.words import count


class Seen(eqx.Module):
    """What the updates that clients sent were like."""

    mean: Float[Any, " k"]  # the length of each cluster's mean update; NaN where nobody sent one
    longest: Float[Any, " k"]  # that of the longest update of a client
    # inner products of all updates; NaN for clients that sent none, and everywhere if no cluster is ripe
    products: Float[Any, "clients clients"]


class Divided(State):
    """What CFL knows beside the clusters."""

    seen: Seen | None = None  # in the last round
    scale: Float[Array, ""] | None = None  # the length of the longest mean update so far
    fresh: Bool[Array, " k"] | None = None  # which clusters have not trained since they were split


Members = Mapping[int, Int[np.ndarray, " clients"]]  # the clients, by position, of some clusters


@dataclasses.dataclass(frozen=True, kw_only=True)
class CFL(Told):
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
        `"auto"` (when not given) is an estimate: 1.1 times the largest sqrt((1 - alpha) / 2) of a client and
        the one most similar to it. It takes every client to have a fellow in its true cluster.
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
        See `RoundAlgorithm`. (1) to (3) are about the clients that answered in a round. If these call for a
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
    weight: Literal["clients", "examples"] = None  # type: ignore[assignment]  # until the preset is known
    average: Literal["models"] = dataclasses.field(default="models", init=False, repr=False, compare=False)
    normalise: Normalise | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    aggregate: Aggregator = dataclasses.field(default_factory=Mean, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.weight is None:
            object.__setattr__(self, "weight", "clients" if self.preset == "authors" else "examples")

    @property
    def rule(self) -> Rule:
        """When a cluster is split: the settings that were given, and else those of the preset."""
        names = "eps1", "eps2", "gamma", "min_size", "warmup"
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(PRESETS[self.preset], **given)

    @property
    def clusters(self) -> int:
        return 1  # to begin with

    def check(self, clients: int) -> None:
        super().check(clients)
        one_of("preset", self.preset, *PRESETS)
        self.rule.check()
        if self.max_clusters is not None:
            whole_number("max_clusters", self.max_clusters, 1)

    # -- the state ---------------------------------------------------------------------------------------

    def begin(self, models: PyTree, clients: int) -> Divided:
        k = jax.tree.leaves(models)[0].shape[1]
        assignment = super().begin(models, clients).assignment
        return Divided(
            models,
            assignment,
            seen=_nothing(k, clients),
            scale=jnp.zeros(()),
            fresh=jnp.zeros(k, bool),
        )

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        assert isinstance(state, Divided) and state.seen is not None
        missing = federation.clients - state.assignment.shape[1]
        if not missing:
            return state
        products = jnp.pad(state.seen.products, (0, missing), constant_values=jnp.nan)
        seen = dataclasses.replace(state.seen, products=products)
        return super().grown(dataclasses.replace(state, seen=seen), federation, learner, key)

    # -- a round: federated averaging within each cluster ------------------------------------------------

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        assert isinstance(state, Divided)
        lost = np.asarray(state.assignment[0]) < 0
        # until new clusters have trained, a client that belongs to none would choose between equal models
        return ~lost if lost.any() and np.asarray(state.fresh).any() else None

    def reduction(self, k: int) -> None:
        """None: updates are compared with each other."""

    def followed_up(self, before: State, after: State, answers: Answers) -> State:
        assert isinstance(before, Divided) and isinstance(after, Divided) and before.fresh is not None
        seen, scale = self._look(before, answers)
        return dataclasses.replace(after, seen=seen, scale=scale, fresh=before.fresh & jnp.isnan(seen.mean))

    def _look(self, state: Divided, answers: Answers) -> tuple[Seen, Array]:
        """What clients made of the models of a state, and the length of the longest mean update so far."""
        own, cluster, weight, there = (
            stacked.take(a, (slice(None), 0))
            for a in (answers.value, answers.cluster, answers.weight, answers.answered)
        )
        models, population = stacked.take(state.models, 0), state.assignment.shape[1]
        looked: tuple[Seen, Array] = _look(
            self.rule, population, models, state.scale, answers.clients, own, cluster, weight, there
        )
        return looked

    # -- what the server decides after it ----------------------------------------------------------------

    def pauses(self) -> Sequence[int]:
        return sorted({*range(self.rule.warmup + 1, self.rounds), self.rounds})

    def between(
        self, federation: Federation, learner: Learner, state: State, done: int, seed: int
    ) -> tuple[State, Note | None]:
        assert isinstance(state, Divided) and state.seen is not None
        if done == self.rounds:
            return state, self._last_look(state)  # a split now would leave two equal models
        k, most = len(state.seen.mean), self.max_clusters or federation.clients
        ripe = np.flatnonzero(self.rule.ripe(state.seen.mean, state.seen.longest, state.scale)).tolist()
        if not ripe or k >= most:
            return state, None
        # as long as there is one cluster, everybody belongs to it, heard of or not
        home = np.asarray(state.assignment[0]) if k > 1 else np.zeros(federation.clients, np.int32)
        order = np.argsort(federation.ids.astype(str))  # ties are resolved by id, wherever clients stand
        members = {c: order[home[order] == c] for c in ripe}
        wanted = self._cuts(state.seen, state.scale, members)
        cuts = {c: cut for c, cut in wanted.items() if sum(cut.sizes) == len(members[c])}
        there = federation.present()
        again = {c: members[c][np.isin(members[c], there)] for c in wanted if c not in cuts}
        again = {c: clients for c, clients in again.items() if len(clients)}
        if again:
            key = jax.random.fold_in(keys.purpose(seed, "split"), done)
            second = self._ask_again(federation, state, again, Step(jnp.asarray(done), key))
            cuts |= self._cuts(second, state.scale, again)
        large = [c for c in sorted(cuts) if min(cuts[c].sizes) >= self.rule.min_size]
        if not large and not again:
            return state, None
        chosen = {c: cuts[c] for c in large[: most - k]}
        return _split(state, chosen, members), self._told_of(chosen, again, state)

    def _cuts(self, seen: Seen, scale: Any, members: Members) -> dict[int, Cut]:
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
                    cuts[c] = Cut(here[cut.one], here[cut.other], cut.across)
        return cuts

    def _ask_again(self, federation: Federation, state: Divided, members: Members, step: Step) -> Seen:
        """The updates that clients make of the models as they are now, in one exchange."""
        home = np.full(federation.clients, -1, np.int32)
        for c, clients in members.items():
            home[clients] = c
        asked = np.flatnonzero(home >= 0)
        answers = federation.ask(
            self.task,
            self.broadcast(state.models, step),
            each={"only": jnp.asarray(home[asked])[:, None]},
            clients=federation.select(asked),
            key=step.key,
            replicas=self.restarts,
        )
        return self._look(state, answers)[0]

    def _told_of(self, cuts: Mapping[int, Cut], again: Members, state: Divided) -> Note:
        """What became of clusters that were to be split."""
        splits = [{"cluster": c, "sizes": list(cut.sizes), "across": cut.across} for c, cut in cuts.items()]
        text = ", ".join(
            f"cluster {c} was split ({cut.sizes[0]} and {cut.sizes[1]} clients)" for c, cut in cuts.items()
        )
        text = text or "no cluster was split"
        if again:
            text += f"; {count(sum(map(len, again.values())), 'client')} had been asked once more"
        return Note("split" if cuts else "look", f"{text}.", {**self._measured(state), "splits": splits})

    def _last_look(self, state: Divided) -> Note:
        """For those who wonder why there are no more clusters, or no fewer."""
        found = self._measured(state)
        mean, longest = (max((x for x in found[name] if x), default=0.0) for name in ("mean", "longest"))
        text = (
            f"{count(len(found['mean']), 'cluster')}; in the last round mean updates were up to {mean:.3g} "
            f"long (eps1 is {found['eps1']:.3g}), and clients' own up to {longest:.3g} "
            f"(eps2 is {found['eps2']:.3g})."
        )
        return Note("last look", text, found)

    def _measured(self, state: Divided) -> dict[str, Any]:
        """How long the updates of the last round were, and what that is compared with."""
        assert state.seen is not None
        eps1, eps2 = map(float, self.rule.lengths(np.asarray(state.scale)))
        mean, longest = (
            [float(length) if np.isfinite(length) else None for length in np.asarray(lengths)]
            for lengths in (state.seen.mean, state.seen.longest)
        )
        return {"eps1": eps1, "eps2": eps2, "mean": mean, "longest": longest}


def _split(state: Divided, cuts: Mapping[int, Cut], members: Members) -> Divided:
    """The state after clusters were split: one part keeps the number, the other is a new cluster."""
    assignment, old = np.array(state.assignment), np.array(state.fresh)
    parents = list(range(len(old)))
    for c, cut in cuts.items():
        assignment[0, members[c]] = -1  # who did not answer
        assignment[0, cut.one], assignment[0, cut.other] = c, len(parents)
        parents.append(c)
    return dataclasses.replace(
        state,
        models=jax.tree.map(lambda a: a[:, np.array(parents)], state.models),
        assignment=jnp.asarray(assignment),
        seen=_nothing(len(parents), assignment.shape[1]),
        fresh=jnp.asarray(old[parents] | np.isin(parents, list(cuts))),
    )


def _nothing(k: int, clients: int) -> Seen:
    return Seen(_unknown(k), _unknown(k), _unknown(clients, clients))


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
    member = jax.nn.one_hot(cluster, stacked.count(models)) * there[:, None]
    counts = member * jnp.where(there, weight, 0)[:, None]
    whole = counts.sum(0)
    means = stacked.weighted(updates, counts / jnp.where(whole > 0, whole, 1))
    mean = jnp.where(whole > 0, _norms(means), jnp.nan)
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
