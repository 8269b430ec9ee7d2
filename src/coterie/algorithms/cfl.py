"""CFL: the Clustered Federated Learning of Sattler, Müller and Samek.

"Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy Constraints",
IEEE TNNLS 2021. A round is federated averaging within each cluster; `between` is what the server decides
after it; `bipartition` is how a cluster is parted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import squareform

from coterie import keys
from coterie.aggregate import Aggregator, Mean, Normalise
from coterie.algorithms.alternating import Alternating, one_of
from coterie.algorithms.restarts import Kept
from coterie.algorithms.rounds import Note, State, Step, counted
from coterie.errors import SettingError
from coterie.federation.protocol import Answers, Federation
from coterie.learn.learner import Learner
from coterie.models import stacked

TENTH, BEYOND, MARGIN = (
    0.1,
    3.0,
    1.1,
)  # "auto": eps1 in proportion to the longest mean update so far, and eps2 to eps1


@dataclasses.dataclass(frozen=True)
class Rule:
    """When a cluster is split, and how: see `CFL`."""

    eps1: float | Literal["auto"] = "auto"
    eps2: float | Literal["auto"] = "auto"
    gamma: float | Literal["auto"] = "auto"
    min_size: int = 2
    warmup: int = 0
    more_than: int = 1  # clients that a cluster must have to be split
    linkage: Literal["single", "complete"] = "single"

    def thresholds(self, scale: Any) -> tuple[Any, Any]:
        """eps1 and eps2, given the length of the longest mean update so far."""
        eps1 = TENTH * scale if self.eps1 == "auto" else self.eps1
        return eps1, BEYOND * eps1 if self.eps2 == "auto" else self.eps2

    def ripe(self, seen: Seen, scale: Any) -> Any:
        """Criteria 1 and 2, for each cluster: it no longer moves, and some client would still move it far."""
        eps1, eps2 = self.thresholds(scale)
        return (seen.mean < eps1) & (seen.longest > eps2)

    def noise(self, similarity: Float[np.ndarray, "n n"]) -> float:
        """gamma, given the similarities of a cluster's clients."""
        if self.gamma != "auto":
            return self.gamma
        fellow = np.where(np.eye(len(similarity), dtype=bool), -1, similarity).max(axis=1)
        return MARGIN * float(np.sqrt((1 - fellow.min()) / 2))


PRESETS = {
    None: Rule(),
    "authors": Rule(0.4, 1.6, gamma=0.0, min_size=1, warmup=20, more_than=2, linkage="complete"),
}


class Seen(eqx.Module):
    """What the updates that clients sent are like."""

    mean: Float[Any, " k"]  # the length of each cluster's mean update; NaN where nobody sent any
    longest: Float[Any, " k"]  # that of the longest update of its clients
    # inner products of all updates; NaN for clients that sent none, and everywhere if no cluster is ripe
    products: Float[Any, "clients clients"]


class Divided(State):
    """What CFL knows beside the clusters."""

    seen: Seen | None = None  # in the last round
    scale: Float[Array, ""] | None = None  # the length of the longest mean update so far
    fresh: Bool[Array, " k"] | None = None  # which clusters have not trained since they were split


class Cut(NamedTuple):
    """Two groups of clients, and the largest similarity of two that it parts: alpha_cross^max."""

    one: Int[np.ndarray, " some"]
    other: Int[np.ndarray, " others"]
    across: float

    @property
    def gap(self) -> float:
        """What gamma is compared with."""
        return float(np.sqrt((1 - self.across) / 2))

    @property
    def sizes(self) -> tuple[int, int]:
        """How many clients are in each group."""
        return len(self.one), len(self.other)


Members = Mapping[int, Int[np.ndarray, " clients"]]  # the clients of some clusters, by position


@dataclasses.dataclass(frozen=True, kw_only=True)
class CFL(Alternating):
    """Clustered Federated Learning: clusters are split in two as long as their clients pull apart.

    All clients begin in one cluster, with federated averaging. A cluster is split when (1) its model no
    longer moves: the mean update of its clients is shorter than eps1; (2) some client would still move it
    far: its update is longer than eps2; and (3) the clients part well: sqrt((1 - alpha) / 2) > gamma, where
    alpha is the largest cosine similarity of the updates of two clients that go separate ways. They are
    parted so that alpha is as small as can be. Both children go on from the model of the cluster.

    Parameters
    ----------
    eps1
        A length, or `"auto"` (when not given): a tenth of the longest mean update so far in the run, which
        is the paper's rule of thumb.
    eps2
        A length, or `"auto"` (when not given): three times eps1. The paper advises from 1 to 10 times.
    gamma
        gamma_max, from 0 to below 1: how far the update of a client may be from what it would be if it had
        all the examples of its true cluster, in proportion to its length. 0 accepts every split that passes
        (1) and (2); 0.25 when not given.
    min_size
        The least number of clients in either part: a split that would make a smaller one is not made. 2 when
        not given, since what parts most easily is a single odd client.
    warmup
        For how many rounds no split is considered; 0 when not given.
    max_clusters
        How many clusters there may be; any number when None.
    preset
        `"authors"`: as in the released notebook. Clients are parted by complete linkage, eps1 = 0.4,
        eps2 = 1.6, there is no gamma, warmup = 20, min_size = 1 but clusters of two are not split, and every
        client counts once. Settings that are given besides come first.
    weight
        How much a client counts in a mean: `"examples"` (when not given) or `"clients"`.
    rounds, participation
        See `RoundAlgorithm`. (1) to (3) are about the clients that answered in a round. If these are not all
        of a cluster that is to be split, all are asked once more, for an update of the model as it is now: it
        is split if (1) to (3) hold then, and every client goes where its own update belongs. One that does
        not answer takes the model of lowest loss when it takes part again.
    """

    eps1: float | Literal["auto"] | None = None
    eps2: float | Literal["auto"] | None = None
    gamma: float | Literal["auto"] | None = None
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
        """When a cluster is split: the settings that were given, else those of the preset."""
        names = "eps1", "eps2", "gamma", "min_size", "warmup"
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return dataclasses.replace(PRESETS[self.preset], **given)

    @property
    def clusters(self) -> int:
        return 1  # to begin with

    def check(self, clients: int) -> None:
        super().check(clients)
        one_of("preset", self.preset, *PRESETS)
        rule = self.rule
        for name, length in (("eps1", rule.eps1), ("eps2", rule.eps2)):
            if length != "auto" and not (_number(length) and 0 < length < np.inf):
                raise SettingError(f"{name} must be 'auto' or a positive length, not {length!r}.")
        if rule.gamma != "auto" and not (_number(rule.gamma) and 0 <= rule.gamma < 1):
            raise SettingError(f"gamma must be 'auto', or at least 0 and below 1, not {rule.gamma!r}.")
        most = 1 if self.max_clusters is None else self.max_clusters
        for name, count, least in (
            ("min_size", rule.min_size, 1),
            ("warmup", rule.warmup, 0),
            ("max_clusters", most, 1),
        ):
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise SettingError(f"{name} must be a whole number from {least} up, not {count!r}.")

    # -- the state ---------------------------------------------------------------------------------------

    def begin(self, models: PyTree, clients: int) -> Divided:
        k = jax.tree.leaves(models)[0].shape[1]
        return Divided(
            models,
            super().begin(models, clients).assignment,
            seen=_nothing(k, clients),
            scale=jnp.zeros(()),
            fresh=jnp.zeros(k, bool),
        )

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        assert isinstance(state, Divided) and state.seen is not None
        if state.assignment.shape[1] == federation.clients:
            return state
        more = super().grown(state, federation, learner, key)
        missing = federation.clients - state.assignment.shape[1]
        products = jnp.pad(state.seen.products, (0, missing), constant_values=jnp.nan)
        return dataclasses.replace(more, seen=dataclasses.replace(state.seen, products=products))

    # -- a round: federated averaging within each cluster ------------------------------------------------

    def told(self, state: State) -> Int[Array, "restarts clients"]:
        return state.assignment

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"] | None:
        assert isinstance(state, Divided)
        lost = np.asarray(state.assignment[0]) < 0
        # until new clusters have trained, a client that belongs to none would choose between equal models
        return ~lost if lost.any() and np.asarray(state.fresh).any() else None

    def reduction(self, k: int) -> None:
        """None: updates are compared with each other."""

    def followed_up(self, before: State, after: State, answers: Answers) -> State:
        assert isinstance(before, Divided) and before.fresh is not None
        seen, scale = self._looked_at(answers, before)
        fresh = before.fresh & jnp.isnan(seen.mean)
        return dataclasses.replace(after, seen=seen, scale=scale, fresh=fresh)

    def _looked_at(self, answers: Answers, state: Divided) -> tuple[Seen, Array]:
        """What clients made of the models of a state, and the length of the longest mean update so far."""
        own, cluster, weight, there = (
            stacked.take(a, (slice(None), 0))
            for a in (answers.value, answers.cluster, answers.weight, answers.answered)
        )
        models, population = stacked.take(state.models, 0), state.assignment.shape[1]
        looked: tuple[Seen, Array] = _looked_at(
            self.rule, population, models, state.scale, own, cluster, weight, there, answers.clients
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
        ripe = np.flatnonzero(self.rule.ripe(state.seen, state.scale)).tolist()
        if not ripe or k >= most:
            return state, None
        # as long as there is one cluster, everybody belongs to it, heard of or not
        home = np.asarray(state.assignment[0]) if k > 1 else np.zeros(federation.clients, np.int32)
        order = np.argsort(federation.ids.astype(str))  # what ties are resolved by, wherever clients stand
        members = {c: order[home[order] == c] for c in ripe}
        cuts = self._cuts(state.seen, state.scale, members)
        partly = {c: members[c] for c, cut in cuts.items() if sum(cut.sizes) < len(members[c])}
        if partly:
            key = jax.random.fold_in(keys.purpose(seed, "split"), done)
            again = self._asked_again(federation, state, partly, Step(jnp.asarray(done), key))
            cuts |= dict.fromkeys(partly) | self._cuts(again, state.scale, partly)
        cuts = {c: cut for c, cut in cuts.items() if cut and min(cut.sizes) >= self.rule.min_size}
        if not cuts and not partly:
            return state, None
        cuts = dict(sorted(cuts.items())[: most - k])
        return _split(state, cuts, members), self._told_of(cuts, partly, state)

    def _cuts(self, seen: Seen, scale: Any, members: Members) -> dict[int, Cut]:
        """How clusters part, by the updates that were seen, where that is called for."""
        ripe, products = np.asarray(self.rule.ripe(seen, scale)), np.asarray(seen.products)
        cuts = {}
        for c, clients in members.items():
            here = clients[np.isfinite(np.diag(products)[clients])]
            if ripe[c] and len(here) > 1 and len(clients) > self.rule.more_than:
                similarity = cosines(products[np.ix_(here, here)])
                cut = bipartition(similarity, self.rule.linkage)
                if cut.gap > self.rule.noise(similarity):  # criterion 3
                    # places within the cluster, taken for those of clients, are wrong from the next split on
                    cuts[c] = Cut(here[cut.one], here[cut.other], cut.across)
        return cuts

    def _asked_again(self, federation: Federation, state: Divided, members: Members, step: Step) -> Seen:
        """The updates of all clients of some clusters, in one exchange."""
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
        return self._looked_at(answers, state)[0]

    def _told_of(self, cuts: Mapping[int, Cut], asked: Members, state: Divided) -> Note:
        """What came of a look at clusters that seemed ready to be split."""
        text = ", ".join(
            f"cluster {c} was split into {cut.sizes[0]} and {cut.sizes[1]} clients" for c, cut in cuts.items()
        )
        text = text or "no cluster was split"
        if asked:
            text += f"; {counted(sum(map(len, asked.values())), 'client')} were asked once more"
        splits = [{"cluster": c, "sizes": cut.sizes, "across": cut.across} for c, cut in cuts.items()]
        return Note("split" if cuts else "look", f"{text}.", {**self._lengths(state), "splits": splits})

    def _last_look(self, state: Divided) -> Note:
        """For those who wonder why there are no more clusters, or no fewer."""
        found = self._lengths(state)
        mean, longest = (
            max((x for x in found[name] if x is not None), default=0.0) for name in ("mean", "longest")
        )
        text = (
            f"{counted(len(found['mean']), 'cluster')}: in the last round mean updates were up to {mean:.4g} long "
            f"(eps1 = {found['eps1']:.4g}), updates of single clients up to {longest:.4g} "
            f"(eps2 = {found['eps2']:.4g})."
        )
        return Note("last look", text, found)

    def _lengths(self, state: Divided) -> dict[str, Any]:
        """How long the updates of the last round were, and what that is compared with."""
        assert state.seen is not None
        eps1, eps2 = map(float, self.rule.thresholds(np.asarray(state.scale)))
        mean, longest = (
            [None if np.isnan(length) else float(length) for length in np.asarray(lengths)]
            for lengths in (state.seen.mean, state.seen.longest)
        )
        return {"eps1": eps1, "eps2": eps2, "mean": mean, "longest": longest}

    def final(self, known: Int[np.ndarray, " clients"], best: Kept) -> np.ndarray:
        # the clustering that was found; a client that belongs to no cluster takes the model of lowest loss
        return np.where(known < 0, super().final(known, best), known)


def bipartition(similarity: Float[np.ndarray, "n n"], how: Literal["single", "complete"] = "single") -> Cut:
    """n clients in two parts such that the largest similarity of two that are parted is smallest.

    Merging the most similar ones first until two groups are left finds them: single linkage. The first client
    is in the first part.
    """
    apart = 1 - (similarity + similarity.T) / 2
    top = to_tree(linkage(squareform(apart, checks=False), how))
    one, other = sorted(
        (np.sort(part.pre_order()) for part in (top.left, top.right)), key=lambda part: part[0]
    )
    return Cut(one, other, float(1 - apart[np.ix_(one, other)].min()))


def cosines(products: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The cosine similarities of vectors, given their inner products; 0 for a vector of length 0."""
    lengths = np.sqrt(np.diag(products).astype(float))
    both = np.outer(lengths, lengths)
    return np.clip(np.divide(products, both, out=np.zeros_like(both), where=both > 0), -1, 1)


def _split(state: Divided, cuts: Mapping[int, Cut], members: Members) -> Divided:
    """The state after clusters were split: one part keeps the number, the other is a new cluster."""
    assignment = np.array(state.assignment)
    parents = list(range(np.shape(state.fresh)[0]))
    for c, cut in cuts.items():
        assignment[0, members[c]] = -1  # those that did not answer
        assignment[0, cut.one], assignment[0, cut.other] = c, len(parents)
        parents.append(c)
    fresh = np.array(state.fresh)[parents] | np.isin(parents, list(cuts))
    return dataclasses.replace(
        state,
        models=jax.tree.map(lambda a: a[:, np.array(parents)], state.models),
        assignment=jnp.asarray(assignment),
        seen=_nothing(len(parents), assignment.shape[1]),
        fresh=jnp.asarray(fresh),
    )


def _nothing(k: int, clients: int) -> Seen:
    return Seen(jnp.full(k, jnp.nan), jnp.full(k, jnp.nan), jnp.full((clients, clients), jnp.nan))


@partial(jax.jit, static_argnums=(0, 1))
def _looked_at(
    rule: Rule,
    population: int,
    models: PyTree,
    scale: Float[Array, ""],
    own: PyTree,
    cluster: Int[Array, " asked"],
    weight: Float[Array, " asked"],
    there: Bool[Array, " asked"],
    clients: Int[Array, " asked"],
) -> tuple[Seen, Float[Array, ""]]:
    """What the updates are like by which clients made models their own; and the scale, with them."""
    updates = jax.tree.map(
        lambda w, theta: jnp.where(stacked.expand(there, w), w - theta[cluster], 0), own, models
    )
    member = jax.nn.one_hot(cluster, stacked.count(models)) * there[:, None]
    share = member * jnp.where(there, weight, 0)[:, None]
    whole = share.sum(0)
    means = stacked.weighted(updates, share / jnp.where(whole > 0, whole, 1))
    mean = jnp.where(whole > 0, _lengths(means), jnp.nan)
    longest = jnp.where(whole > 0, jnp.max(member * _lengths(updates)[:, None], axis=0), jnp.nan)
    scale = jnp.fmax(scale, jnp.max(jnp.where(whole > 0, mean, 0)))
    few = jnp.full((len(clients), len(clients)), jnp.nan)
    seen = Seen(mean, longest, few)
    # products of all pairs are the one thing here that is not cheap, and seldom needed
    few = jax.lax.cond(rule.ripe(seen, scale).any(), lambda: _products(updates), lambda: few)
    few = jnp.where(there[:, None] & there[None, :], few, jnp.nan)
    products = jnp.full((population, population), jnp.nan).at[clients[:, None], clients[None, :]].set(few)
    return dataclasses.replace(seen, products=products), scale


def _lengths(models: PyTree) -> Float[Array, " models"]:
    return jnp.sqrt(sum(jnp.sum(jnp.square(a).reshape(len(a), -1), axis=1) for a in jax.tree.leaves(models)))


def _products(models: PyTree) -> Float[Array, "models models"]:
    rows = [a.reshape(len(a), -1) for a in jax.tree.leaves(models)]
    return jnp.asarray(sum(jnp.matmul(a, a.T, precision=jax.lax.Precision.HIGHEST) for a in rows))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
