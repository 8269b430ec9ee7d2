"""One run of moment descent: what is asked, in which order, and what is made of the answers.

Line numbers "n" are those of the box "Phase 1 Federated Moment Descent" of the mixed-regression paper, "A3 n"
those of its Algorithm 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.aggregate import Summing
from coterie.errors import LearnerError, SettingError
from coterie.federation.protocol import Federation
from coterie.initialise.anchors import Anchors, joined, least_distance, matrix, models_of
from coterie.initialise.random import Random
from coterie.keys import of_client, token, tokens, words
from coterie.learn import moments, tasks
from coterie.learn.learner import Learner
from coterie.models import stacked

if TYPE_CHECKING:
    from coterie.initialise.moment_descent import MomentDescent

RISK = 0.05  # of missing a cluster, by the default number of anchors
ENOUGH = 3  # examples per cluster that make a client fit to be an anchor by default


class Descent:
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
        self.again = settings.stopping == "conference"  # whether a stopped anchor may go on
        self.start = self._start(learner)
        sizes = self._sizes()
        self.anchors = self._anchors(sizes)
        self.asked = self._asked(sizes)

    def steps(self) -> Iterator[Anchors]:
        """Phase 1 up to line 15: the anchors before the first and after each iteration."""
        shape = self.anchors.shape
        now = Anchors(  # lines 4 and 5
            ids=self.federation.ids[self.anchors],
            models=models_of(np.broadcast_to(self.start[:, None], (*shape, self.dim)), self.like),
            sigma=np.full(shape, np.nan),
            stopped=np.zeros(shape, bool),
            heard=np.zeros(shape, bool),
        )
        yield now
        basis = None
        for t in range(self.settings.iterations):  # line 6
            if self.again or not now.stopped.all():
                basis, curvature = self._subspace(now.models, basis, t)  # lines 7 to 9
                now = self._descend(now, basis, curvature, t)  # lines 10 to 15
            yield now

    # -- lines 1, 3 and 7: where anchors start, who they are, and who else is asked -----------------------

    def _start(self, learner: Learner) -> Float[np.ndarray, "restarts d"]:
        """theta_0."""
        if self.settings.scale is None:
            return matrix(Random()(self.federation, learner, self.keys[:, None]), 2)[:, 0]
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
            rank = -sizes[able] if self.settings.draw == "largest" else np.zeros(len(able))
            chosen = able[np.lexsort((lots[able], rank))[:count]]
            rows.append(chosen[np.argsort(lots[chosen])])
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
            broadcast = {"directions": models_of(q.swapaxes(-1, -2), self.like)}
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
                reduce=Summing(1),
                replicas=restarts,
            )
            total, weight = jax.device_get((answers.value.total, answers.value.weight[:, 0]))
            if not (weight > 0).all():
                raise LearnerError(
                    "none of the clients that answered has two examples, which moment descent needs."
                )
            # A3 6 and 9: the mean over clients
            mean = jax.tree.map(lambda a: a[:, 0] / stacked.expand(weight, a[:, 0]), total)
            product = matrix(mean["product"], 3).swapaxes(-1, -2)
            if not np.isfinite(product).all():
                raise _diverged(t)
            return product, mean.get("curvature")

        return multiply

    def _perturbed(self, models: PyTree, t: int) -> tuple[PyTree, PyTree]:
        """Remark 2: two copies of the models for each client asked, axes (asked, restarts, anchors, ...)."""
        theta, number = matrix(models, 2), _number(f"noise/{t}")

        def draw(key: Array, client: Array) -> Array:
            own = of_client(jax.random.fold_in(key, number), client)
            return self.settings.noise * jax.random.normal(own, (2, *theta.shape[1:]))

        clients = jnp.asarray(words(tokens(self.federation.ids[self.asked[t]])))
        noise = np.asarray(jax.vmap(jax.vmap(draw, (0, None)), (None, 0))(self.keys, clients))
        return models_of(theta + noise[:, :, 0], self.like), models_of(theta + noise[:, :, 1], self.like)

    # -- lines 10 to 15: a step of every anchor -----------------------------------------------------------

    def _descend(self, now: Anchors, basis: np.ndarray, curvature: np.ndarray | None, t: int) -> Anchors:
        alpha, beta = self._bounds(curvature)
        epsilon = alpha / (16 * beta) if self.settings.epsilon is None else self.settings.epsilon
        if self.again:
            least = epsilon * np.broadcast_to(self._separation(now), now.sigma.shape)
        else:
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
            "subspace": models_of(basis.swapaxes(-1, -2), self.like),
            "rate": np.broadcast_to(alpha / (2 * beta**2), now.sigma.shape),  # line 13
            "least": least,
        }
        broadcast = {"power_iterations": np.full(self.restarts, self.settings.power_iterations, np.int32)}
        if (self.settings.anchor_estimator or self.settings.estimator) == "two":
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
            stopped=np.where(answered, ~(sigma > least), now.stopped),
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
        centres = [joined(theta, self.k) for theta in matrix(now.models, 2)]
        return np.array([[least_distance(own)] for own in centres])


def _diverged(t: int) -> LearnerError:
    return LearnerError(f"moment descent diverged in iteration {t}: give it a larger beta.")


def _number(purpose: str) -> int:
    return int(token(purpose) & np.uint64(0x7FFFFFFF))
