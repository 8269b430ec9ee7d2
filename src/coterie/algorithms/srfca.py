"""SR-FCA: the Successive Refine Federated Clustering Algorithm of Vardhan, Ghosh and Mazumdar.

"An Improved Federated Clustering Algorithm with Model-based Clustering". `pause` is Algorithm 1: ONE_SHOT
before the first round, RECLUSTER (Algorithm 2) and MERGE (Algorithm 4) after the rounds of each REFINE.
`ask` and `update` are one pass of the loop of TrimmedMeanGD (Algorithm 3), for all clusters at once.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.aggregate import TrimmedMean
from coterie.algorithms import graph, known_clusters, threshold
from coterie.algorithms.algorithm import Note, Pause, Round, client_rows, unknown
from coterie.algorithms.distances import Clusters, check_distance, distance_of
from coterie.algorithms.held_out import merged_held_out
from coterie.algorithms.known_clusters import KnownClusters
from coterie.algorithms.parts import resampling
from coterie.algorithms.parts.averaging import Averaging, Weight
from coterie.errors import SettingError, diverged
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask
from coterie.initialise.alone import trained_alone, trained_before
from coterie.initialise.one_shot import mean_models
from coterie.initialise.random import fresh_models
from coterie.learn.learner import Learner
from coterie.learn.shard import Part
from coterie.learn.tasks import Send
from coterie.models import stacked
from coterie.words import count


class State(known_clusters.State):
    """The clustering C_r and its models, and what ONE_SHOT found out."""

    first: PyTree = None  # w_0, (1, ...)
    # what the distance has to know of each w_i
    own: Float[Array, "clients known"] | None = client_rows(fill=jnp.nan, default=None)
    threshold: Float[Array, ""] | None = None  # lambda; NaN where MERGE looks at held-out examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class SRFCA(KnownClusters[State]):
    """The Successive Refine Federated Clustering Algorithm: it finds the number of clusters by itself.

    Every client trains alone, and clients whose models are near each other form a cluster (ONE_SHOT). Then, a
    few times (REFINE): train a model for each cluster, with a trimmed mean that clients in the wrong cluster
    cannot move far; let every client join the nearest cluster (RECLUSTER); and merge clusters whose models
    are near each other (MERGE).

    Parameters
    ----------
    threshold
        lambda, the largest distance within a cluster: a number; the share of all pairs of clients that are
        nearer, such as `"25%"`; or `"auto"`, put into the gap between near and far clients. If there is none,
        clusters are clients with their nearest, and MERGE joins those that nobody loses by, on held-out
        examples. What it is, and why, is in `history.events`.
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
    trained
        The models w_{i,T} that clients have trained before, (clients, ...), such as those that `Local` found:
        ONE_SHOT begins with them, and nobody trains alone again.
    warm
        Whether a cluster's training goes on from the models that were merged to it (at first, from the mean
        of its clients' models). When not, it starts from w_0, as clients did: that is how it is printed.
    average
        `"models"`, trained by some local steps each (section 5), or `"gradients"` (Algorithm 3).
    radius
        Models are kept within this distance of the origin: the set W that Algorithm 3 projects onto.
    resample
        Cut each shard into 1 + R parts: one for ONE_SHOT and one for each REFINE, before which clients train
        alone anew (Theorem 4.11). The paper needs it for its theory alone (Remark 4.12). Final rounds train
        on the part of the last REFINE; clients that count by examples count with all of theirs.
    final_rounds, final_proximal
        Further rounds of FedAvg without trimming within the clusters that were found, with mu of a proximal
        term (FedProx): what section 6 proposes.
    weight
        How much a client counts: see `Averaging`.
    participation
        See `Algorithm`. Clients that belong to no cluster are not drawn.
    """

    threshold: float | str = "auto"
    min_size: int = 2
    refines: int = 2
    trim: float = 0.1
    distance: Any = "cross_loss"
    init_steps: int | None = None
    trained: PyTree = dataclasses.field(default=None, compare=False)
    warm: bool = False
    average: Send = "models"
    weight: Weight = "clients"
    radius: float | None = None
    resample: bool = False
    final_rounds: int = 0
    final_proximal: float = 0.0

    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[State]:
        if self.resample:
            what_for = "an example for ONE_SHOT and one for every REFINE"
            yield from resampling.check_sizes(server, 1 + self.refines, what_for)
        state = self.state_of(fresh_models(server, key, 1), server.clients)
        return dataclasses.replace(state, first=state.models)

    def state_of(self, models: PyTree, clients: int) -> State:
        first = jax.tree.map(lambda a: a[:1], models)
        own = distance_of(self.distance).blank(clients, stacked.parameters(first))
        return State(
            models, unknown(clients), first=first, own=jnp.asarray(own), threshold=jnp.asarray(jnp.nan)
        )

    # -- Algorithm 1 -------------------------------------------------------------------------------------

    def pause(self, server: Server, state: State, done: int) -> Exchange[Pause]:
        refine, last = done // self.rounds, self.refines * self.rounds
        if done > last:
            return Pause(state, 0)
        if done == 0:  # C_0 <- ONE_SHOT(lambda, t)
            state, note = yield from self._one_shot(server, state)
            return Pause(state, self.rounds, note)
        # C_r <- REFINE(C_{r-1}, lambda), of which the rounds just done were TrimmedMeanGD()
        state, note = yield from self._refine(server, state, refine)
        return Pause(state, self.rounds if done < last else self.final_rounds, note)

    @property
    def expected_rounds(self) -> int:
        return self.refines * self.rounds + self.final_rounds

    def _one_shot(self, server: Server, state: State) -> Exchange[tuple[State, Note]]:
        w0, part = stacked.take(state.first, 0), self._part(0)
        found = yield from one_shot(
            server,
            w0,
            self._alone(server.learner),
            server.key("alone"),
            self.threshold,
            self.min_size,
            self.distance,
            part,
            self.trained,
            held_out=not self.resample,  # whose parts of the examples nobody else may look at
        )
        k = found.k
        start = jax.tree.map(lambda a: jnp.broadcast_to(a[0], (k, *a.shape[1:])), state.first)
        after = dataclasses.replace(
            state,
            models=found.means() if self.warm else start,
            assignment=jnp.asarray(found.labels, jnp.int32),
            own=jnp.asarray(found.own),
            threshold=jnp.asarray(np.nan if found.cut.nearest else found.cut.threshold, jnp.float32),
        )
        text = f"ONE_SHOT: {found.cut.reason}; {count(k, 'cluster')}"
        lost = int((found.labels < 0).sum())
        if lost:
            text += f", and {count(lost, 'client')} in none of them yet"
        return after, Note("one-shot", f"{text}.", threshold.details(found.cut, found.distances))

    def _refine(self, server: Server, state: State, number: int) -> Exchange[tuple[State, Note]]:
        metric, part = distance_of(self.distance), self._part(number)
        own, cut = np.asarray(state.own), float(np.asarray(state.threshold))
        if self.resample:  # recompute w_i as in ONE_SHOT
            w0, alone = stacked.take(state.first, 0), self._alone(server.learner)
            key = jax.random.fold_in(server.key("alone"), number)
            models, there, _ = yield from trained_alone(w0, alone, key, part=part)
            own = yield from metric.measure(models, there, part)
        before = np.asarray(state.assignment)
        said = yield from metric.look(state.models, part)
        clusters = Clusters(state.models, said, before)
        # RECLUSTER, Algorithm 2: C'(i) <- argmin_c dist(w_i, omega_c)
        distances = metric.to_clusters(own, clusters)
        now = graph.reclustered(distances, before)
        if np.isnan(cut):
            return (yield from self._merge_held_out(server, state, number, now))
        # MERGE, Algorithm 4: connected components of the clusters, each with the plain mean of its models
        apart = metric.between_clusters(clusters._replace(assignment=now))
        home = graph.merged(apart, now, cut, self.min_size)
        labels = _or_none(home, now)
        lost = labels < 0
        # in the end nobody is left without a model: the clusters that are too small join those that are not
        far = np.where(home >= 0, distances, np.nan)
        joined = np.where(lost, _or_none(home, graph.reclustered(far, np.full_like(before, -1))), labels)
        if number == self.refines:
            labels = joined
        k = int(home.max()) + 1
        kept = np.flatnonzero(home >= 0)
        after = dataclasses.replace(
            state,
            models=mean_models(stacked.take(state.models, kept), home[kept], k),
            assignment=jnp.asarray(labels, jnp.int32),
            own=jnp.asarray(own),
        )
        text = _refined_text(number, before, now, home, labels, lost, self.min_size)
        plain = [[float(d) if np.isfinite(d) else None for d in row] for row in apart]
        details: dict[str, Any] = {"apart": plain, "merged": home.tolist()}
        if lost.any():
            details["nearest"] = {str(i): int(joined[i]) for i in np.flatnonzero(lost)}
        return after, Note("refine", text, details)

    def _merge_held_out(
        self, server: Server, state: State, number: int, now: Int[np.ndarray, " clients"]
    ) -> Exchange[tuple[State, Note]]:
        """The end of a REFINE where no distance tells what MERGE should join."""
        before, w0 = np.asarray(state.assignment), stacked.take(state.first, 0)
        found = yield from merged_held_out(server, w0, now, self.rounds, self.weight == "examples")
        large = graph.of_size(found.group, self.min_size)
        if large.max() < 0:
            large = found.group
        kept = np.unique(found.group[large >= 0])
        lost = (large < 0) & (found.group >= 0)
        joined = np.where(lost, found.worse[:, kept].argmin(1), np.searchsorted(kept, found.group))
        joined = np.where(found.group >= 0, joined, -1)
        labels = np.where(lost & (number < self.refines), -1, joined)
        k = len(kept)
        # each cluster's model is the mean of those that its clients have trained
        inside = (labels >= 0) & (now >= 0)
        shares = np.zeros((stacked.count(state.models), k), np.float32)
        np.add.at(shares, (now[inside], labels[inside]), 1)
        models = stacked.weighted(state.models, shares / shares.sum(0))
        after = dataclasses.replace(state, models=models, assignment=jnp.asarray(labels, jnp.int32))
        had, moved = len(np.unique(now[now >= 0])), int((now != before)[before >= 0].sum())
        text = (
            f"REFINE {number}: {count(moved, 'client') if moved else 'nobody'} moved to another cluster; on "
            f"held-out examples {count(had, 'cluster')}{f' became {k}' if k != had else ' stayed'}"
        )
        text += f", {count(found.undone, 'merge')} undone since a side lost by it." if found.undone else "."
        details: dict[str, Any] = {"tried": found.tried, "undone": found.undone}
        if lost.any():
            details["nearest"] = {str(i): int(joined[i]) for i in np.flatnonzero(lost)}
        return after, Note("refine", text, details)

    def _alone(self, learner: Learner) -> int:
        """For how many local updates clients train alone."""
        steps = getattr(learner.local, "steps", None) or 1
        if self.init_steps is not None:
            return -(-self.init_steps // steps)
        return self.rounds if self.average == "models" else -(-self.rounds // steps)

    def _part(self, refine: int) -> Part:
        """The part of the examples that ONE_SHOT (0) or a REFINE uses; None for all of them."""
        return np.array([refine, 1 + self.refines], np.int32) if self.resample else None

    # -- Algorithm 3: TrimmedMeanGD ----------------------------------------------------------------------

    def ask(self, state: State, round: Round) -> Ask:
        number, models = self._in_refine(state, round)
        more: dict[str, Any] = {}
        if self.resample:
            refine = jnp.minimum(1 + round.number // self.rounds, self.refines)
            more |= dict.fromkeys(("find_on", "train_on"), jnp.stack([refine, jnp.asarray(1 + self.refines)]))
        if self.final_rounds and self.final_proximal:
            more["proximal"] = jnp.where(self._final(round), self.final_proximal, 0.0)
        # send omega_{c,t} to all clients i in S_c
        return self.averaging.ask(models, number, only=state.assignment, keep_all=True, **more)

    def update(self, state: State, answers: Answers, round: Round) -> State:
        number, models = self._in_refine(state, round)
        began, final = dataclasses.replace(state, models=models), self._final(round)
        round = dataclasses.replace(round, number=number)
        # g(omega_{c,t}) <- TrMean_beta of what they send; omega_{c,t+1} <- proj_W{omega_{c,t} - eta g};
        # the trimmed mean of models is the old model and the trimmed mean of their updates
        after = super().update(began, answers, round)
        if self.final_rounds:
            plain, _ = Averaging(self.weight, self.average).update(
                models, None, answers, round.rate, clients=len(state.assignment)
            )
            mixed = jax.tree.map(lambda a, b: jnp.where(final, a, b), plain, after.models)
            after = dataclasses.replace(after, models=mixed)
        return dataclasses.replace(after, models=_within(after.models, self.radius))

    def _in_refine(self, state: State, round: Round) -> tuple[Int[Array, ""], PyTree]:
        """The number of a round within its REFINE, and the models that it starts from."""
        if self.warm:
            return round.number, state.models
        number = jnp.where(self._final(round), round.number - self.refines * self.rounds, round.number)
        number = jnp.where(self._final(round), number, number % self.rounds)  # step sizes, too, start anew
        begins = (number == 0) & ~self._final(round)  # omega_{c,0} <- w_0
        models = jax.tree.map(lambda w0, now: jnp.where(begins, w0, now), state.first, state.models)
        return number, models

    def _final(self, round: Round) -> Bool[Array, ""]:
        return jnp.asarray(round.number >= self.refines * self.rounds)

    def eligible(self, state: State) -> Bool[np.ndarray, " clients"]:
        return np.asarray(state.assignment) >= 0

    @property
    def averaging(self) -> Averaging:
        return Averaging(self.weight, self.average, "cluster", TrimmedMean(self.trim))

    def check(self, clients: int, learner: Learner) -> None:
        super().check(clients, learner)
        threshold.check(self.threshold)
        check_distance(self.distance)
        if not 1 <= self.min_size <= clients:
            raise SettingError(
                f"min_size must be from 1 to the number of clients, which is {clients}, not {self.min_size}."
            )
        for name, least in (("refines", 1), ("init_steps", 1), ("final_rounds", 0), ("final_proximal", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingError(f"{name} must be at least {least}, not {value}.")
        if self.trained is not None and self.resample:
            raise SettingError("resample has clients train alone again and again: leave trained out.")
        if self.radius is not None and self.radius <= 0:
            raise SettingError(f"radius must be positive, not {self.radius}.")
        if self.final_proximal and not self.final_rounds:
            raise SettingError("final_proximal is about further rounds: say with final_rounds how many.")
        if self.final_proximal and self.average == "gradients":
            raise SettingError(
                "final_proximal would be ignored with average='gradients', where clients make no step: leave "
                "one of them out."
            )


class OneShotClusters(NamedTuple):
    """What ONE_SHOT finds."""

    models: PyTree  # (clients, ...): w_{i,T}
    own: np.ndarray  # what the distance knows of them
    distances: Float[np.ndarray, "clients clients"]
    cut: threshold.Threshold
    labels: Int[np.ndarray, " clients"]  # -1 for clients in no cluster

    @property
    def k(self) -> int:
        return int(self.labels.max()) + 1

    def means(self) -> PyTree:
        """The mean of the models of each cluster's clients."""
        inside = np.flatnonzero(self.labels >= 0)  # who is in no cluster may hold anything
        return mean_models(stacked.take(self.models, inside), self.labels[inside], self.k)


def one_shot(
    server: Server,
    w0: PyTree,
    rounds: int,
    key: Key[Array, ""],
    threshold_: float | str,
    min_size: int,
    distance: Any,
    part: Part = None,
    trained: PyTree = None,
    held_out: bool = False,
) -> Exchange[OneShotClusters]:
    """ONE_SHOT(lambda, t): clients whose models, each trained alone from w_0, are near each other.

    `held_out` tells whether clusters will be merged on held-out examples where no gap is seen.
    """
    metric = distance_of(distance)
    # send w_0 to client i, receive w_{i,T}
    models, there = yield from trained_before(server, trained, w0, rounds, key, part)
    # an edge (i, j) where dist(w_{i,T}, w_{j,T}) <= lambda
    own = yield from metric.measure(models, there, part)
    distances = metric.between_clients(own)
    if there.sum() > 1 and not len(threshold.of_pairs(distances)):  # too far apart for a number
        raise diverged("where clients trained alone")
    cut = threshold.choose(threshold_, distances, min_size)
    if held_out and threshold_ == "auto" and cut.gap is None:
        cut = threshold.of_nearest(distances)
    # C_0 <- connected components with size >= t
    near = graph.components(distances, cut.threshold, there)
    labels = graph.of_size(graph.with_nearest(distances, there) if cut.nearest else near, min_size)
    if labels.max() < 0:
        nearest = threshold.of_pairs(distances).min()
        raise SettingError(
            f"no {min_size} clients are within threshold={cut.threshold:.4g} of each other: "
            f"raise it (the nearest two are {nearest:.4g} apart), or lower min_size."
        )
    return OneShotClusters(models, own, distances, cut, labels)


def _refined_text(
    number: int,
    before: np.ndarray,
    now: np.ndarray,
    home: np.ndarray,
    labels: np.ndarray,
    lost: np.ndarray,
    min_size: int,
) -> str:
    """What a REFINE came to, in a sentence."""
    went = int((_or_none(home, before) != labels)[before >= 0].sum())
    had, k = len(np.unique(now[now >= 0])), int(home.max()) + 1
    text = (
        f"REFINE {number}: {count(went, 'client') if went else 'nobody'} moved to another "
        f"cluster; {count(had, 'cluster')}{f' became {k}' if k != had else ''}."
    )
    small = int((lost & (now >= 0)).sum())
    if small:
        were = "was in a cluster" if small == 1 else "were in clusters"
        text += f" {count(small, 'client')} {were} of fewer than {min_size}."
    return text


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
