"""SR-FCA: the Successive Refine Federated Clustering Algorithm of Vardhan, Ghosh and Mazumdar.

"An Improved Federated Clustering Algorithm with Model-based Clustering". `between` is Algorithm 1: ONE_SHOT
before the first round, RECLUSTER (Algorithm 2) and MERGE (Algorithm 4) after the rounds of each REFINE.
`round` is one pass of the loop of TrimmedMeanGD (Algorithm 3), for all clusters at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys
from coterie.aggregate import Aggregator, Normalise, Sums, TrimmedMean
from coterie.algorithms.alternating import Told, one_of
from coterie.algorithms.state import Note, Outcome, State, Step
from coterie.clustering import graph, threshold
from coterie.clustering.distances import L2, Clusters, CrossLoss, Distance
from coterie.errors import SettingError, diverged
from coterie.federation.protocol import Federation
from coterie.initialise.one_shot import trained_alone
from coterie.learn.learner import Learner
from coterie.models import stacked
from coterie.words import count

DISTANCES: dict[str, type[Distance]] = {"cross_loss": CrossLoss, "l2": L2}


class Refined(State):
    """What SR-FCA knows beside the clusters: where all training starts, and the clients' own models."""

    first: PyTree = None  # (1, 1, ...): w_0
    own: Float[Array, "clients known"] | None = None  # what the distance has to know of each w_i
    threshold: Float[Array, ""] | None = None  # lambda


@dataclasses.dataclass(frozen=True, kw_only=True)
class SRFCA(Told):
    """The Successive Refine Federated Clustering Algorithm: it finds the number of clusters by itself.

    Every client trains alone, and clients whose models are near each other form a cluster (ONE_SHOT). Then, a
    few times (REFINE): train a model for each cluster, with a trimmed mean that clients in the wrong cluster
    cannot move far; let every client join the nearest cluster (RECLUSTER); and merge clusters whose models
    are near each other (MERGE).

    Parameters
    ----------
    threshold
        lambda, the largest distance within a cluster: a number; the share of all pairs of clients that are
        nearer, such as `"25%"`; or `"auto"`, put into the gap between near and far clients, if there is one.
        What it is, and why, is in `history.events`.
    min_size
        t, the least number of clients that make a cluster. Clients of smaller ones belong to none until they
        are let join the nearest.
    refines
        R, how many times clusters are refined.
    rounds
        Rounds of training in each of them.
    trim
        beta, the fraction of a cluster's clients that is left out at each end of every coordinate.
    distance
        `"cross_loss"` (Definition 5.1) or `"l2"` (section 4); or a `Distance` of your own.
    init_steps
        T, for how many steps clients train alone; as many as in the rounds of a REFINE, when not given. It is
        rounded up to whole local updates, which count for one step each where they last for epochs.
    warm
        Whether a cluster's training goes on from the models that were merged to it (at first, from the mean
        of its clients' models). When not, it starts from w_0, as clients did: that is how it is printed.
    average
        `"models"`, trained by some local steps each (section 5), or `"gradients"` (Algorithm 3).
    radius
        Models are kept within this distance of the origin: the set W that Algorithm 3 projects onto.
    weight, participation
        See `Alternating` and `RoundAlgorithm`. Clients that belong to no cluster are not drawn.
    """

    threshold: float | str = "auto"
    min_size: int = 2
    refines: int = 2
    trim: float = 0.1
    distance: Any = "cross_loss"
    init_steps: int | None = None
    warm: bool = False
    radius: float | None = None
    aggregate: Aggregator = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aggregate", TrimmedMean(self.trim))

    @property
    def clusters(self) -> int:
        return 1  # as far as is known at the start

    @property
    def length(self) -> int:
        return self.refines * self.rounds

    @property
    def printed(self) -> Normalise:
        return "cluster"

    @property
    def metric(self) -> Distance:
        """How far apart models are."""
        return DISTANCES[self.distance]() if isinstance(self.distance, str) else self.distance

    def check(self, clients: int) -> None:
        super().check(clients)
        threshold.check(self.threshold)
        if not isinstance(self.distance, Distance):
            one_of("distance", self.distance, *DISTANCES)
        if not 1 <= self.min_size <= clients:
            raise SettingError(
                f"min_size must be from 1 to the number of clients, which is {clients}, not {self.min_size}."
            )
        if self.refines < 1:
            raise SettingError(f"refines must be at least 1, not {self.refines}.")
        if self.init_steps is not None and self.init_steps < 1:
            raise SettingError(f"init_steps must be at least 1, not {self.init_steps}.")
        if self.radius is not None and self.radius <= 0:
            raise SettingError(f"radius must be positive, not {self.radius}.")

    # -- the state ---------------------------------------------------------------------------------------

    def begin(self, models: PyTree, clients: int) -> Refined:
        state = super().begin(models, clients)
        own = self.metric.blank(clients, stacked.parameters(models) // jax.tree.leaves(models)[0].shape[1])
        first = jax.tree.map(lambda a: a[:, :1], models)
        return Refined(
            models, state.assignment, first=first, own=jnp.asarray(own), threshold=jnp.asarray(jnp.nan)
        )

    def grown(self, state: State, federation: Federation, learner: Learner, key: Key[Array, ""]) -> State:
        assert isinstance(state, Refined) and state.own is not None
        old = np.asarray(state.own)
        if len(old) == federation.clients:
            return state
        own = self.metric.blank(federation.clients, stacked.parameters(state.first))
        own[: old.shape[0], : old.shape[1]] = old
        more = super().grown(state, federation, learner, key)
        return Refined(
            more.models, more.assignment, first=state.first, own=jnp.asarray(own), threshold=state.threshold
        )

    # -- Algorithm 3: TrimmedMeanGD ----------------------------------------------------------------------

    def round(
        self, federation: Federation, learner: Learner, state: State, step: Step
    ) -> tuple[State, Outcome]:
        assert isinstance(state, Refined)
        if not self.warm:
            # omega_{c,0} <- w_0
            step = dataclasses.replace(step, round=step.round % self.rounds)  # step sizes, too, start anew
            begins = step.round == 0
            models = jax.tree.map(lambda w0, now: jnp.where(begins, w0, now), state.first, state.models)
            state = dataclasses.replace(state, models=models)
        return super().round(federation, learner, state, step)

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"]:
        return np.asarray(state.assignment[0]) >= 0

    def updated(self, sums: Sums, old: PyTree, rate: Float[Array, ""] | None) -> PyTree:
        # the trimmed mean of models is the old model and the trimmed mean of their updates
        return _within(super().updated(sums, old, rate), self.radius)

    # -- Algorithms 1, 2 and 4 ---------------------------------------------------------------------------

    def pauses(self) -> Sequence[int]:
        return range(0, self.length + 1, self.rounds)

    def between(
        self, federation: Federation, learner: Learner, state: State, done: int, seed: int
    ) -> tuple[State, Note]:
        assert isinstance(state, Refined)
        if done == 0:
            return self._one_shot(federation, learner, state, keys.purpose(seed, "alone"))
        return self._refined(federation, state, done)

    def _one_shot(
        self, federation: Federation, learner: Learner, state: Refined, key: Key[Array, ""]
    ) -> tuple[Refined, Note]:
        start = jax.tree.map(lambda a: a[0], state.first)
        models, answered = trained_alone(federation, learner, start, self._alone(learner), key)
        models, there = stacked.take(models, (slice(None), 0)), answered[:, 0]
        own = self.metric.measure(federation, models, there)
        distances = self.metric.between_clients(own)
        if there.sum() > 1 and not len(threshold.of_pairs(distances)):  # too far apart for a number
            raise diverged("where clients trained alone")
        cut = threshold.choose(self.threshold, distances, self.min_size)
        labels = graph.of_size(graph.components(distances, cut.threshold, there), self.min_size)
        k = int(labels.max()) + 1
        if k == 0:
            nearest = threshold.of_pairs(distances).min()
            raise SettingError(
                f"no {self.min_size} clients are within threshold={cut.threshold:.4g} of each other: "
                f"raise it (the nearest two are {nearest:.4g} apart), or lower min_size."
            )
        if self.warm:
            inside = np.flatnonzero(labels >= 0)  # who is in no cluster may hold anything
            member = (labels[inside, None] == np.arange(k)).astype(np.float32)
            begin = stacked.weighted(stacked.take(models, inside), member / member.sum(axis=0))
        else:
            begin = jax.tree.map(lambda a: jnp.broadcast_to(a[0], (k, *a.shape[2:])), state.first)
        text = f"ONE_SHOT: {cut.reason}; {count(k, 'cluster')}"
        if (labels < 0).any():
            text += f", and {count(int((labels < 0).sum()), 'client')} in none of them yet"
        after = dataclasses.replace(
            state,
            models=jax.tree.map(lambda a: a[None], begin),
            assignment=jnp.asarray(labels, jnp.int32)[None],
            own=jnp.asarray(own),
            threshold=jnp.asarray(cut.threshold, jnp.float32),
        )
        return after, Note("one-shot", f"{text}.", threshold.details(cut, distances))

    def _alone(self, learner: Learner) -> int:
        """For how many local updates clients train alone."""
        steps = getattr(learner.local, "steps", None) or 1
        if self.init_steps is not None:
            return -(-self.init_steps // steps)
        return self.rounds if self.average == "models" else -(-self.rounds // steps)

    def _refined(self, federation: Federation, state: Refined, done: int) -> tuple[Refined, Note]:
        own, cut = np.asarray(state.own), float(np.asarray(state.threshold))
        before, models = np.asarray(state.assignment[0]), stacked.take(state.models, 0)
        clusters = Clusters(models, self.metric.look(federation, models), before)
        # RECLUSTER: C'(i) <- argmin_c dist(w_i, omega_c)
        distances = self.metric.to_clusters(own, clusters)
        now = graph.reclustered(distances, before)
        # MERGE: connected components of the clusters, each with the plain mean of its models
        apart = self.metric.between_clusters(clusters._replace(assignment=now))
        home = graph.merged(apart, now, cut, self.min_size)
        labels = _or_none(home, now)
        k = int(home.max()) + 1
        member = (home[:, None] == np.arange(k)).astype(np.float32)
        lost = labels < 0
        if done == self.length:
            # nobody is left without a model: the clusters that are too small join those that are not
            far = np.where(home >= 0, distances, np.nan)
            labels = np.where(lost, _or_none(home, graph.reclustered(far, np.full_like(before, -1))), labels)
        after = dataclasses.replace(
            state,
            models=jax.tree.map(lambda a: a[None], stacked.weighted(models, member / member.sum(axis=0))),
            assignment=jnp.asarray(labels, jnp.int32)[None],
        )
        went = int((_or_none(home, before) != labels)[before >= 0].sum())
        had = len(np.unique(now[now >= 0]))
        text = (
            f"REFINE {done // self.rounds}: {count(went, 'client') if went else 'nobody'} moved to another "
            f"cluster; {count(had, 'cluster')}{f' became {k}' if k != had else ''}."
        )
        small = int((lost & (now >= 0)).sum())
        if small:
            were = "was in a cluster" if small == 1 else "were in clusters"
            text += f" {count(small, 'client')} {were} of fewer than {self.min_size}."
        plain = [[float(d) if np.isfinite(d) else None for d in row] for row in apart]
        return after, Note("refine", text, {"apart": plain, "merged": home.tolist()})


def _or_none(
    home: Int[np.ndarray, " k"], cluster: Int[np.ndarray, " clients"]
) -> Int[np.ndarray, " clients"]:
    """What became of the clients' clusters; -1 for those of none."""
    return np.where(cluster >= 0, home[cluster], -1)


def _within(models: PyTree, radius: float | None) -> PyTree:
    """proj_W: models no longer than the radius."""
    if radius is None:
        return models
    norms = jnp.linalg.norm(stacked.to_matrix(models), axis=1)
    scale = jnp.minimum(1, radius / jnp.where(norms > 0, norms, 1))
    return jax.tree.map(lambda a: a * stacked.expand(scale, a), models)
