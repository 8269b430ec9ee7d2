"""Federated moment descent: coarse models of all clusters, from any start.

Phase 1 of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression". Line numbers
"n" are those of the box "Phase 1 Federated Moment Descent", "A3 n" those of its Algorithm 3.

Some clients, the anchors, each descend towards the model of their own cluster. An anchor has too few examples
to see where to go among d parameters. But wherever it is, the residuals of all clusters from there span k
dimensions only, which all clients together can find. In these k dimensions its own examples suffice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.aggregate import Mean
from coterie.errors import LearnerError, SettingError
from coterie.federation.protocol import Federation
from coterie.initialise.random import Random
from coterie.keys import of_client, token, tokens, words
from coterie.learn import moments, tasks
from coterie.learn.learner import Learner
from coterie.models import stacked

RISK = 0.05  # of missing a cluster, by the default number of anchors
ENOUGH = 3  # examples per cluster that make a client fit to be an anchor by default


@dataclass(frozen=True)
class MomentDescent:
    """Phase 1 of the mixed-regression paper; Phase 2 is `FedX(k, init=MomentDescent())`.

    Parameters
    ----------
    anchors
        How many clients are anchors, m_H: those with the most examples, lots drawn where they have as many.
        Or which ones, by id. When not given, log(k / 0.05) / p_min, of which one is in each cluster with
        probability 0.95 if no cluster has less than p_min = 1 / 2k of the clients, half an equal share; but
        no more than there are clients with 3 k examples, if these are k at least. Section V of the paper has
        ceil(3 k log k), which is 10 for k = 3: they miss a cluster of share 0.2 once in nine times.
    iterations
        Steps of every anchor, T.
    subspace_iterations
        Products with Y by which the subspace of each step is found, T_1: as many exchanges. An even number.
    power_iterations
        Steps of an anchor's own power iteration, T_2. They cost no exchange.
    estimator
        `"pairs"`: second moments over all pairs of a client's examples. `"two"`: as printed, from the first
        two examples of each client, and at anchors over disjoint pairs. Both are unbiased; the printed one
        needs far more clients. For the subspace, a client counts by its disjoint pairs (half its examples;
        once), which was measured to be better than by all of its pairs.
    subspace
        `"iteration"`: Algorithm 3, where d x k numbers per anchor travel. `"svd"`: clients send d x d numbers
        per anchor, of which the server takes the singular vectors, as the paper's experiments do.
    warm
        Whether Algorithm 3 begins with the subspace of the iteration before. As printed it begins at random
        each time, and needs more products. But an anchor moves within its subspace, so that most of this
        still holds afterwards.
    clients
        How many clients are asked for the subspace in each iteration, m; all when not given. They are drawn
        by lot, the same ones for all restarts, and anchors may be among them (but see `fresh`).
    fresh
        Use no example twice, as lines 7 and 11 have it and the theory needs it: other clients in each
        iteration, no anchors (of any restart) among them, and another part of each anchor's examples.
        Algorithm 3 then always begins at random.
    noise
        Remark 2: the standard deviation of the noise on the models that clients are sent for the subspace. A
        client gets two copies of each anchor's model, with noise of their own, and never the model itself.
    alpha, beta
        Bounds of the curvature of the loss (for regression, of the eigenvalues of the features' second
        moment). When not given, the least and largest curvature in each anchor's subspace, averaged over the
        clients asked.
    epsilon, separation
        An anchor stops once its residual is below epsilon alpha separation / sqrt(2). `epsilon` is
        alpha / 16 beta when not given: below alpha / 8, as Theorem 1 wants it for beta >= 1, and the same
        whatever the scale of the features. `separation` is Delta, the least distance between two clusters'
        models. With it, anchors less than half of it apart are of one cluster (line 16). When not given, they
        are joined into k groups (by Ward's criterion), and the least distance between these is taken for it.
    scale
        Of theta_0, where all anchors start: N(0, I) scale / sqrt(d). Section V has 2. When not given, the
        model's own initialisation, which is closer to zero, and so mostly to all of the models looked for.

    It takes one exchange for the numbers of examples, and in each iteration `subspace_iterations` with the
    clients asked and one with the anchors. An anchor that does not answer keeps its model in that iteration.
    """

    anchors: int | Sequence[Any] | None = None
    iterations: int = 5
    subspace_iterations: int = 4
    power_iterations: int = 50
    estimator: Literal["pairs", "two"] = "pairs"
    subspace: Literal["iteration", "svd"] = "iteration"
    warm: bool = True
    clients: int | None = None
    fresh: bool = False
    noise: float = 0.0
    alpha: float | None = None
    beta: float | None = None
    epsilon: float | None = None
    separation: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.anchors, list | tuple | np.ndarray):
            object.__setattr__(self, "anchors", tuple(self.anchors))  # so that settings can be compared
        elif self.anchors is not None and (not isinstance(self.anchors, int) or self.anchors < 1):
            raise SettingError(
                f"anchors must be a number from 1 up or a list of client ids, not {self.anchors!r}."
            )
        for name in ("iterations", "power_iterations", "clients"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be at least 1, not {value}.")
        if self.subspace_iterations < 2 or self.subspace_iterations % 2:
            raise SettingError(
                f"subspace_iterations must be an even number from 2 up, not {self.subspace_iterations}."
            )
        if self.estimator not in ("pairs", "two"):
            raise SettingError(f"estimator must be 'pairs' or 'two', not {self.estimator!r}.")
        if self.subspace not in ("iteration", "svd"):
            raise SettingError(f"subspace must be 'iteration' or 'svd', not {self.subspace!r}.")
        if not self.noise >= 0:
            raise SettingError(f"noise must not be negative, but is {self.noise}.")
        for name in ("alpha", "beta", "epsilon", "separation", "scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingError(f"{name} must be positive, not {value}.")

    def __call__(self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]) -> PyTree:
        """k models for each restart, leading axes (restarts, k)."""
        return self.trace(federation, learner, keys)[-1].centres(keys.shape[1], self.separation)

    def trace(
        self, federation: Federation, learner: Learner, keys: Key[Array, "restarts k"]
    ) -> list[Anchors]:
        """The anchors at the start and after each iteration, `iterations` + 1 of them."""
        return list(_Descent(self, federation, learner, keys).steps())


@dataclass(frozen=True)
class Anchors:
    """The anchors of every restart, and how far they have come."""

    ids: np.ndarray  # (restarts, anchors)
    models: PyTree  # leading axes (restarts, anchors); on the host
    sigma: Float[np.ndarray, "restarts anchors"]  # how large an anchor found its residual in the last step
    stopped: Bool[np.ndarray, "restarts anchors"]
    heard: Bool[np.ndarray, "restarts anchors"]  # whether it has ever answered

    def centres(self, k: int, separation: float | None = None) -> PyTree:
        """Line 16: the anchors' models in k groups, and the mean of each; leading axes (restarts, k).

        Anchors less than half the separation apart are in one group, and the k largest groups are kept.
        Without a separation, anchors are joined into k groups. One that never answered knows nothing and is
        in no group.
        """
        like = stacked.take(stacked.take(self.models, 0), 0)
        theta = _matrix(self.models, 2)
        found = [_centres(own[heard], k, separation) for own, heard in zip(theta, self.heard, strict=True)]
        return jax.tree.map(jnp.asarray, _models(np.stack(found), like))


class _Descent:
    """One run of Phase 1, all restarts side by side."""

    def __init__(
        self,
        settings: MomentDescent,
        federation: Federation,
        learner: Learner,
        keys: Key[Array, "restarts k"],
    ) -> None:
        self.settings, self.federation = settings, federation
        self.restarts, self.k = keys.shape
        self.keys = keys[:, 0]  # one per restart will do
        self.ask_key = jax.random.fold_in(self.keys[0], _number("asks"))
        self.like = learner.shapes(federation.spec)
        self.dim = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.like))
        self.curved = settings.alpha is None or settings.beta is None  # whether clients have to tell
        self.start = self._start(learner)
        sizes = self._sizes()
        self.anchors = self._anchors(sizes)
        self.asked = self._asked(sizes)

    def steps(self) -> Iterator[Anchors]:
        """Phase 1 up to line 15: the anchors before the first and after each iteration."""
        shape = self.anchors.shape
        now = Anchors(  # lines 4 and 5
            ids=self.federation.ids[self.anchors],
            models=_models(np.broadcast_to(self.start[:, None], (*shape, self.dim)), self.like),
            sigma=np.full(shape, np.nan),
            stopped=np.zeros(shape, bool),
            heard=np.zeros(shape, bool),
        )
        yield now
        basis = None
        for t in range(self.settings.iterations):  # line 6
            if not now.stopped.all():
                basis, curvature = self._subspace(now.models, basis, t)  # lines 7 to 9
                now = self._descend(now, basis, curvature, t)  # lines 10 to 15
            yield now

    # -- lines 1, 3 and 7: where anchors start, who they are, and who else is asked -----------------------

    def _start(self, learner: Learner) -> Float[np.ndarray, "restarts d"]:
        """theta_0."""
        if self.settings.scale is None:
            return _matrix(Random()(self.federation, learner, self.keys[:, None]), 2)[:, 0]
        return self._normal("start", (self.dim,)) * self.settings.scale / math.sqrt(self.dim)

    def _sizes(self) -> Int[np.ndarray, " clients"]:
        """How many examples each client has; 0 for one that does not say."""
        answers = self.federation.ask(tasks.size, key=jax.random.fold_in(self.ask_key, 0))
        return np.where(np.asarray(answers.answered), np.asarray(answers.report["examples"]), 0)

    def _anchors(self, sizes: Int[np.ndarray, " clients"]) -> Int[np.ndarray, "restarts anchors"]:
        """Positions of the anchors, in an order that tells nothing of them."""
        wanted, k = self.settings.anchors, self.k
        least = 2 * self.settings.iterations if self.settings.fresh else 2
        if isinstance(wanted, tuple):
            able = self._named(wanted)
            if (sizes[able] < least).any():
                small = able[np.argmin(sizes[able])]
                raise SettingError(
                    f"client {str(self.federation.ids[small])!r} cannot be an anchor: it has "
                    f"{sizes[small] or 'not said how many'} examples, and needs {least}."
                )
            count = len(able)
        else:
            able = np.flatnonzero(sizes >= least)
            fit = int((sizes >= max(least, ENOUGH * k)).sum())
            most = fit if fit >= k else len(able)
            by_default = min(math.ceil(2 * k * math.log(k / RISK)), most)
            count = wanted if isinstance(wanted, int) else by_default
        if not k <= count <= len(able):
            raise SettingError(
                f"moment descent needs k={k} anchors or more, each with {least} examples or more: {count} "
                f"are wanted, and {len(able)} clients have as many examples."
            )
        rows = []
        for r in range(self.restarts):
            lots = self._lots(r, "anchors")
            largest = able[np.lexsort((lots[able], -sizes[able]))[:count]]
            rows.append(largest[np.argsort(lots[largest])])
        return np.stack(rows)

    def _named(self, wanted: tuple[Any, ...]) -> Int[np.ndarray, " anchors"]:
        at = {str(name): i for i, name in enumerate(self.federation.ids)}
        for name in wanted:
            if str(name) not in at:
                raise SettingError(f"anchor {str(name)!r} is none of the {len(at)} clients.")
        return np.unique([at[str(name)] for name in wanted])

    def _asked(self, sizes: Int[np.ndarray, " clients"]) -> list[Int[np.ndarray, " asked"]]:
        """S_t: positions of the clients asked for the subspace in each iteration."""
        steps, m = self.settings.iterations, self.settings.clients
        able = sizes != 1  # whoever has not said may have two
        if self.settings.fresh:
            able[self.anchors] = False
        pool = np.flatnonzero(able)
        if self.settings.fresh:
            m = max(1, len(pool) // steps) if m is None else m
            if m * steps > len(pool):
                raise SettingError(
                    f"fresh=True needs {m} other clients in each of {steps} iterations, {m * steps} in all, "
                    f"and {len(pool)} beside the anchors have two examples: lower clients or iterations."
                )
            drawn = pool[np.argsort(self._lots(0, "asked")[pool])]
            return [np.sort(drawn[t * m : (t + 1) * m]) for t in range(steps)]
        if m is None:
            return [pool] * steps
        if m > len(pool):
            raise SettingError(f"clients={m} are to be asked, but {len(pool)} have two examples.")
        return [np.sort(pool[np.argsort(self._lots(0, f"asked/{t}")[pool])[:m]]) for t in range(steps)]

    def _lots(self, restart: int, purpose: str) -> np.ndarray:
        """A number for every client, from the restart's key and the client's id alone."""
        salt = np.asarray(jax.random.key_data(self.keys[restart])).tolist()
        return tokens(f"{salt}/{purpose}/{name}" for name in self.federation.ids)

    def _normal(self, purpose: str, shape: tuple[int, ...]) -> Float[np.ndarray, "restarts ..."]:
        """Normal numbers of that shape for each restart, from its key."""
        number = _number(purpose)
        draw: Any = jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, number), shape))
        return np.asarray(draw(self.keys))

    # -- lines 8 and 9, Algorithm 3: the subspace ---------------------------------------------------------

    def _subspace(
        self, models: PyTree, last: np.ndarray | None, t: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """An orthonormal basis for each anchor (restarts, anchors, d, k), given that of the last iteration.

        And the curvature along it (restarts, anchors, k, k); None where nothing depends on it.
        """
        multiply = self._multiply(models, t)
        rank, steps = min(self.k, self.dim), self.settings.subspace_iterations
        if self.settings.subspace == "svd":
            identity = np.eye(self.dim, dtype=np.float32)
            transposed, _ = multiply(np.broadcast_to(identity, (*self.anchors.shape, *identity.shape)), 0)
            q = np.linalg.svd(transposed)[2].swapaxes(-1, -2)[..., :rank]
            return q, multiply(q, 1, curvature=True)[1] if self.curved else None
        if last is None or self.settings.fresh or not self.settings.warm:  # A3 1
            last = np.linalg.qr(self._normal(f"basis/{t}", (self.anchors.shape[1], self.dim, rank)))[0]
        q = last
        for step in range(steps):  # A3 2 to 8
            product, curvature = multiply(q, step, curvature=self.curved and step == steps - 1)
            # A3 9; in even steps too, where it changes nothing but the rounding
            q = np.linalg.qr(product)[0]
        return q, curvature

    def _multiply(self, models: PyTree, t: int) -> Callable[..., tuple[np.ndarray, np.ndarray | None]]:
        """Products with Y (in odd steps) and with its transpose (in even steps), one exchange each."""
        asked, restarts = self.asked[t], self.restarts
        clients = None if len(asked) == self.federation.clients else self.federation.select(asked)
        key = jax.random.fold_in(self.ask_key, 1 + t)
        copies = self._perturbed(models, t) if self.settings.noise else None

        def multiply(
            q: np.ndarray, step: int, *, curvature: bool = False
        ) -> tuple[np.ndarray, np.ndarray | None]:
            a, b = (0, 1) if step % 2 == 0 else (1, 0)  # A3 4 and 7
            broadcast = {"directions": _models(q.swapaxes(-1, -2), self.like)}
            if copies is None:
                broadcast["models"] = models
            if self.settings.estimator == "two":
                broadcast["two"] = np.broadcast_to(np.array([a, b], np.int32), (restarts, 2))
            if curvature:
                broadcast["curvature"] = np.ones(restarts, bool)
            answers = self.federation.ask(
                moments.multiply_moment,
                broadcast,
                each=None if copies is None else {"first": copies[a], "second": copies[b]},
                clients=clients,
                key=jax.random.fold_in(key, step),
                reduce=Mean(1),
                replicas=restarts,
            )
            total, weight = jax.device_get((answers.value.total, answers.value.weight[:, 0]))
            if not (weight > 0).all():
                raise LearnerError(
                    "none of the clients that answered has two examples, which moment descent needs."
                )
            # A3 6 and 9: the mean over clients
            mean = jax.tree.map(lambda a: a[:, 0] / stacked.expand(weight, a[:, 0]), total)
            product = _matrix(mean["product"], 3).swapaxes(-1, -2)
            if not np.isfinite(product).all():
                raise _diverged(t)
            return product, mean.get("curvature")

        return multiply

    def _perturbed(self, models: PyTree, t: int) -> tuple[PyTree, PyTree]:
        """Remark 2: two copies of the models for each client asked, axes (asked, restarts, anchors, ...)."""
        theta, number = _matrix(models, 2), _number(f"noise/{t}")

        def draw(key: Array, client: Array) -> Array:
            own = of_client(jax.random.fold_in(key, number), client)
            return self.settings.noise * jax.random.normal(own, (2, *theta.shape[1:]))

        clients = jnp.asarray(words(tokens(self.federation.ids[self.asked[t]])))
        noise = np.asarray(jax.vmap(jax.vmap(draw, (0, None)), (None, 0))(self.keys, clients))
        return _models(theta + noise[:, :, 0], self.like), _models(theta + noise[:, :, 1], self.like)

    # -- lines 10 to 15: a step of every anchor -----------------------------------------------------------

    def _descend(self, now: Anchors, basis: np.ndarray, curvature: np.ndarray | None, t: int) -> Anchors:
        alpha, beta = self._bounds(curvature)
        epsilon = alpha / (16 * beta) if self.settings.epsilon is None else self.settings.epsilon
        least = epsilon * alpha * self._separation(now) / math.sqrt(2)  # line 12
        least = np.where(now.stopped, np.inf, least)  # line 15
        # restarts have different anchors: all are asked at once, and a client is sent zeros for a restart in
        # which it is none
        union, places = np.unique(self.anchors, return_inverse=True)
        where = places.reshape(self.anchors.shape), np.arange(self.restarts)[:, None]

        def own(values: np.ndarray) -> np.ndarray:
            whole = np.zeros((len(union), self.restarts, *values.shape[2:]), np.float32)
            whole[where] = values
            return whole

        each = {
            "model": now.models,
            "subspace": _models(basis.swapaxes(-1, -2), self.like),
            "rate": np.broadcast_to(alpha / (2 * beta**2), now.sigma.shape),  # line 13
            "least": least,
        }
        broadcast = {"power_iterations": np.full(self.restarts, self.settings.power_iterations, np.int32)}
        if self.settings.estimator == "two":
            broadcast["two"] = np.ones(self.restarts, bool)
        if self.settings.fresh:
            broadcast["part"] = np.broadcast_to(
                np.array([t, self.settings.iterations], np.int32), (self.restarts, 2)
            )
        key = jax.random.fold_in(self.ask_key, 1 + t)
        answers = self.federation.ask(
            moments.descend_moment,
            broadcast,
            each=jax.tree.map(own, each),
            clients=self.federation.select(union),
            key=jax.random.fold_in(key, self.settings.subspace_iterations),
            replicas=self.restarts,
        )
        answered = np.asarray(answers.answered)[where]
        sigma = np.asarray(answers.report["sigma"])[where]
        if not np.isfinite(sigma[answered]).all():
            raise _diverged(t)

        def updated(new: np.ndarray, old: np.ndarray) -> np.ndarray:
            moves = answered.reshape(*answered.shape, *[1] * (old.ndim - 2))
            return np.where(moves, new[where], old)

        models = jax.tree.map(updated, jax.device_get(answers.value), now.models)
        return Anchors(
            ids=now.ids,
            models=models,
            sigma=np.where(answered, sigma, now.sigma),
            stopped=now.stopped | (answered & ~(sigma > least)),
            heard=now.heard | answered,
        )

    def _bounds(self, curvature: np.ndarray | None) -> tuple[Any, Any]:
        """alpha and beta: as given, or of each anchor (restarts, anchors)."""
        alpha, beta = self.settings.alpha, self.settings.beta
        if curvature is None:
            return alpha, beta
        values = np.linalg.eigvalsh(curvature)
        least, largest = values[..., 0], values[..., -1]
        if not (largest > 0).all():
            raise LearnerError(
                "the loss is not curved around the anchors' models: give moment descent alpha and beta."
            )
        # a loss that is not convex has a least curvature below zero, which bounds nothing
        least = np.maximum(least, largest / 100)
        return (least if alpha is None else alpha), (largest if beta is None else beta)

    def _separation(self, now: Anchors) -> Float[np.ndarray, "restarts 1"]:
        """Delta: as given, or as the anchors have it so far, which is 0 before their first step."""
        if self.settings.separation is not None:
            return np.full((self.restarts, 1), self.settings.separation)
        centres = [_joined(theta, self.k) for theta in _matrix(now.models, 2)]
        return np.array([[_least_distance(own)] for own in centres])


def _diverged(t: int) -> LearnerError:
    return LearnerError(f"moment descent diverged in iteration {t}: give it a larger beta.")


# -- line 16: anchors in groups ---------------------------------------------------------------------------


def _centres(theta: Float[np.ndarray, "anchors d"], k: int, separation: float | None) -> np.ndarray:
    """The means of k groups of anchors, shape (k, d), in the order of their first members."""
    from scipy.sparse.csgraph import connected_components

    if len(theta) < k:
        raise LearnerError(f"{len(theta)} anchors have answered, fewer than k={k}: choose more anchors.")
    if separation is None:
        return _joined(theta, k)
    count, group = connected_components(_distances(theta) < separation / 2, directed=False)
    if count < k:
        raise LearnerError(
            f"with separation={separation} the anchors are in {count} groups, fewer than k={k}: lower it or "
            "leave it out, or choose more anchors."
        )
    largest = np.sort(np.argsort(-np.bincount(group), kind="stable")[:k])
    return np.stack([theta[group == g].mean(axis=0) for g in largest])


def _joined(theta: Float[np.ndarray, "anchors d"], k: int) -> Float[np.ndarray, "k d"]:
    """The means of k groups, into which single anchors are joined by Ward's criterion."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import, and seldom needed

    if len(theta) == 1:
        return theta
    group = cut_tree(linkage(theta, "ward"), n_clusters=k)[:, 0]
    return np.stack([theta[group == g].mean(axis=0) for g in dict.fromkeys(group.tolist())])


def _least_distance(centres: Float[np.ndarray, "k d"]) -> float:
    """The least distance between two of k centres; 0 for a single one."""
    between = _distances(centres)[np.triu_indices(len(centres), 1)]
    return float(between.min()) if len(between) else 0.0


def _distances(theta: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n n"]:
    apart: np.ndarray = np.linalg.norm(theta[:, None] - theta, axis=2)
    return apart


# -- models as vectors, behind any number of leading axes -------------------------------------------------


def _matrix(models: PyTree, lead: int) -> Float[np.ndarray, "*lead d"]:
    """The flattened parameters of models behind `lead` leading axes."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(models)]
    return np.concatenate([leaf.reshape(*leaf.shape[:lead], -1) for leaf in leaves], axis=-1)


def _models(matrix: Float[np.ndarray, "*lead d"], like: PyTree) -> PyTree:
    """The inverse of `_matrix`; `like` is one model."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(leaf.shape) for leaf in leaves])
    parts = np.split(matrix, ends[:-1], axis=-1)
    shaped = [
        part.reshape(*part.shape[:-1], *leaf.shape).astype(leaf.dtype)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, shaped)


def _number(purpose: str) -> int:
    return int(token(purpose) & np.uint64(0x7FFFFFFF))
