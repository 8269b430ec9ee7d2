"""The two halves of an iteration of moment descent: the subspace, and a step of every anchor.

Line numbers "n" are those of the box "Phase 1 Federated Moment Descent" of the mixed-regression paper, "A3 n"
those of its Algorithm 3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.aggregate import Summing
from coterie.errors import LearnerError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.initialise.anchors import Anchors, joined, least_distance, matrix, models_of
from coterie.keys import of_client, token, tokens, words
from coterie.learn.moments import DescendMoment, MultiplyMoment

if TYPE_CHECKING:
    from coterie.initialise.moment_descent import MomentDescent


class Descent:
    """One start of Phase 1: what is asked in an iteration, and what is made of the answers."""

    def __init__(
        self,
        settings: MomentDescent,
        server: Server,
        key: Key[Array, ""],
        k: int,
        anchors: Int[np.ndarray, " anchors"],
        asked: list[Int[np.ndarray, " asked"]],
    ) -> None:
        self.settings, self.server, self.key, self.k = settings, server, key, k
        self.anchors, self.asked = anchors, asked  # positions; the latter, S_t of each iteration
        self.like = server.learner.shapes(server.spec)
        self.dim = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.like))
        self.curved = settings.alpha is None or settings.beta is None  # whether clients have to tell

    # -- lines 8 and 9, Algorithm 3: the subspace ---------------------------------------------------------

    def subspace(
        self, models: PyTree, last: np.ndarray | None, t: int
    ) -> Exchange[tuple[np.ndarray, np.ndarray | None]]:
        """An orthonormal basis for each anchor (anchors, d, k), given that of the last iteration.

        And the curvature along it (anchors, k, k); None where nothing depends on it.
        """
        rank, steps = min(self.k, self.dim), self.settings.subspace_iterations
        if self.settings.subspace == "svd":
            identity = np.eye(self.dim, dtype=np.float32)
            whole = np.broadcast_to(identity, (len(self.anchors), *identity.shape))
            transposed, _ = yield from self._multiply(models, whole, t, 0)
            q = np.linalg.svd(transposed)[2].swapaxes(-1, -2)[..., :rank]
            if not self.curved:
                return q, None
            _, curvature = yield from self._multiply(models, q, t, 1, curvature=True)
            return q, curvature
        if last is None or self.settings.fresh or not self.settings.warm:  # A3 1
            last = np.linalg.qr(self._normal(f"basis/{t}", (len(self.anchors), self.dim, rank)))[0]
        q = last
        for step in range(steps):  # A3 2 to 8
            ask_curvature = self.curved and step == steps - 1
            product, curvature = yield from self._multiply(models, q, t, step, curvature=ask_curvature)
            # A3 9; in even steps too, where it changes nothing but the rounding
            q = np.linalg.qr(product)[0]
        return q, curvature

    def _multiply(
        self, models: PyTree, q: np.ndarray, t: int, step: int, *, curvature: bool = False
    ) -> Exchange[tuple[np.ndarray, np.ndarray | None]]:
        """A product with Y (in odd steps) or with its transpose (in even steps), in one exchange."""
        asked = self.asked[t]
        a, b = (0, 1) if step % 2 == 0 else (1, 0)  # A3 4 and 7
        copies = self._perturbed(models, t) if self.settings.noise else None
        task = MultiplyMoment(
            models_of(q.swapaxes(-1, -2), self.like),
            models=models if copies is None else None,
            first=None if copies is None else copies[a],
            second=None if copies is None else copies[b],
            two=(a, b) if self.settings.estimator == "two" else None,
            curvature=curvature,
        )
        answers = yield Ask(
            task,
            clients=None if len(asked) == self.server.clients else asked,
            key=self._ask_key(t, step),
            reduce=Summing(1),
        )
        total, weight = jax.device_get((answers.value.total, answers.value.weight[0]))
        if not weight > 0:
            raise LearnerError(
                "none of the clients that answered has two examples, which moment descent needs."
            )
        mean = jax.tree.map(lambda a: a[0] / weight, total)  # A3 6 and 9: the mean over clients
        product = matrix(mean["product"], 2).swapaxes(-1, -2)
        if not np.isfinite(product).all():
            raise _diverged(t)
        return product, mean.get("curvature")

    def _perturbed(self, models: PyTree, t: int) -> tuple[PyTree, PyTree]:
        """Remark 2: two copies of the models for each client asked, axes (asked, anchors, ...)."""
        theta, number = matrix(models, 1), number_of(f"noise/{t}")

        def draw(client: Array) -> Array:
            own = of_client(jax.random.fold_in(self.key, number), client)
            return self.settings.noise * jax.random.normal(own, (2, *theta.shape))

        clients = jnp.asarray(words(tokens(self.server.ids[self.asked[t]])))
        noise = np.asarray(jax.vmap(draw)(clients))
        return models_of(theta + noise[:, 0], self.like), models_of(theta + noise[:, 1], self.like)

    def _normal(self, purpose: str, shape: tuple[int, ...]) -> np.ndarray:
        """Normal numbers of that shape, from the start's key."""
        return np.asarray(jax.random.normal(jax.random.fold_in(self.key, number_of(purpose)), shape))

    def _ask_key(self, t: int, step: int) -> Key[Array, ""]:
        key = jax.random.fold_in(self.key, number_of("asks"))
        return jax.random.fold_in(jax.random.fold_in(key, 1 + t), step)

    # -- lines 10 to 15: a step of every anchor -----------------------------------------------------------

    def step(
        self, now: Anchors, basis: np.ndarray, curvature: np.ndarray | None, t: int
    ) -> Exchange[Anchors]:
        settings = self.settings
        alpha, beta = self._bounds(curvature)
        epsilon = alpha / (16 * beta) if settings.epsilon is None else settings.epsilon
        if settings.stopping == "conference":
            least = epsilon * np.broadcast_to(self._separation(now), now.sigma.shape)
        else:
            least = epsilon * alpha * self._separation(now) / math.sqrt(2)  # line 12
            least = np.where(now.stopped, np.inf, least)  # line 15
        part = np.array([t, settings.iterations], np.int32) if settings.fresh else None
        task = DescendMoment(
            now.models,
            models_of(basis.swapaxes(-1, -2), self.like),
            _row(alpha / (2 * beta**2), now),  # line 13
            _row(least, now),
            part=part,
            power_iterations=settings.power_iterations,
            disjoint=(settings.anchor_estimator or settings.estimator) == "two",
        )
        key = self._ask_key(t, settings.subspace_iterations)
        answers = yield Ask(task, clients=self.anchors, key=key)
        answered, sigma = np.asarray(answers.answered), np.asarray(answers.report.sigma)
        if not np.isfinite(sigma[answered]).all():
            raise _diverged(t)
        new = jax.device_get(answers.value)
        moved = jax.tree.map(
            lambda a, b: np.where(answered.reshape(-1, *[1] * (b.ndim - 1)), a, b), new, now.models
        )
        return Anchors(
            ids=now.ids,
            models=moved,
            sigma=np.where(answered, sigma, now.sigma),
            stopped=np.where(answered, ~(sigma > least), now.stopped),
            heard=now.heard | answered,
        )

    def _bounds(self, curvature: np.ndarray | None) -> tuple[Any, Any]:
        """alpha and beta: as given, or of each anchor."""
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

    def _separation(self, now: Anchors) -> float:
        """Delta: as given, or as the anchors have it so far, which is 0 before their first step."""
        if self.settings.separation is not None:
            return self.settings.separation
        return least_distance(joined(matrix(now.models, 1), self.k))


def _row(value: Any, now: Anchors) -> Float[np.ndarray, " anchors"]:
    return np.broadcast_to(np.asarray(value, np.float32), now.sigma.shape)


def _diverged(t: int) -> LearnerError:
    return LearnerError(f"moment descent diverged in iteration {t}: give it a larger beta.")


def number_of(purpose: str) -> int:
    """A number for a purpose, to derive a key with."""
    return int(token(purpose) & np.uint64(0x7FFFFFFF))
