"""Federated moment descent: coarse models of all clusters, from any start.

Phase 1 of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression". Line numbers
"n" are those of the box "Phase 1 Federated Moment Descent", "A3 n" those of its Algorithm 3.

Some clients, the anchors, each descend towards the model of their own cluster. An anchor has too few examples
to see where to go among d parameters. But wherever it is, the residuals of all clusters from there span k
dimensions only, which all clients together can find. In these k dimensions its own examples suffice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Ask
from coterie.initialise.anchors import Anchors, matrix, models_of
from coterie.initialise.descent import Descent, number_of
from coterie.initialise.random import fresh_models
from coterie.learn.tasks import CountExamples
from coterie.settings import Settings

RISK = 0.05  # of missing a cluster, by the default number of anchors
ENOUGH = 3  # examples per cluster that make a client fit to be an anchor by default


@dataclass(frozen=True)
class MomentDescent(Settings):
    """Phase 1 of the mixed-regression paper; Phase 2 is `FedX(k, init=MomentDescent())`.

    Parameters
    ----------
    anchors
        How many clients are anchors, m_H; or which ones, by id. When not given, log(k / 0.05) / p_min, of
        which one is in each cluster with probability 0.95 if no cluster has less than p_min = 1 / 2k of the
        clients, half an equal share; but no more than there are clients with 3 k examples, if these are k at
        least. Section V of the paper has ceil(3 k log k), which is 10 for k = 3: they miss a cluster of share
        0.2 once in nine times.
    draw
        Which clients are anchors where their number is given. `"largest"`: those with the most examples, lots
        drawn where they have as many. `"uniform"`: any with two examples, uniformly at random (section IV-A).
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
    anchor_estimator
        The same for an anchor's own moment, A of (2), alone; as `estimator` when not given.
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
        iteration, no anchors among them, and another part of each anchor's examples.
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
    stopping
        `"journal"`: as above, and an anchor that stops has stopped for good (the paper of 2024).
        `"conference"`: an anchor makes no step while its residual is below epsilon separation, and goes on if
        it no longer is (the box of the version of 2022, whose Theorem 1 wants epsilon below 1 / 4).
    scale
        Of theta_0, where all anchors start: N(0, I) scale / sqrt(d). Section V has 2. When not given, the
        model's own initialisation, which is closer to zero, and so mostly to all of the models looked for.

    It takes one exchange for the numbers of examples, and in each iteration `subspace_iterations` with the
    clients asked and one with the anchors. An anchor that does not answer keeps its model in that iteration.
    """

    anchors: int | Sequence[Any] | None = None
    draw: Literal["largest", "uniform"] = "largest"
    iterations: int = 5
    subspace_iterations: int = 4
    power_iterations: int = 50
    estimator: Literal["pairs", "two"] = "pairs"
    anchor_estimator: Literal["pairs", "two"] | None = None
    subspace: Literal["iteration", "svd"] = "iteration"
    warm: bool = True
    clients: int | None = None
    fresh: bool = False
    noise: float = 0.0
    alpha: float | None = None
    beta: float | None = None
    epsilon: float | None = None
    separation: float | None = None
    stopping: Literal["journal", "conference"] = "journal"
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if not self.noise >= 0:
            raise SettingError(f"noise must not be negative, but is {self.noise}.")
        for name in ("alpha", "beta", "epsilon", "separation", "scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingError(f"{name} must be positive, not {value}.")

    def __call__(self, server: Server, key: Key[Array, ""], k: int | None) -> Exchange[PyTree]:
        if k is None:
            raise SettingError("moment descent has to be told the number of clusters: give k.")
        last = yield from self.trace(server, key, k)
        return last[-1].centres(k, self.separation)  # line 16

    def trace(self, server: Server, key: Key[Array, ""], k: int) -> Exchange[list[Anchors]]:
        """The anchors before the first and after each iteration: Phase 1 up to line 15."""
        own = keys.numbered(key, 1)[0]
        sizes = yield from self._sizes(own)
        anchors = self._anchors(server, own, sizes, k)  # line 3
        asked = self._asked(server, sizes, anchors)  # line 7, S_t of every iteration
        descent = Descent(self, server, own, k, anchors, asked)
        start = self._start(server, key, own, descent.dim)  # lines 1 and 4
        count = len(anchors)
        now = Anchors(  # line 5
            ids=server.ids[anchors],
            models=models_of(np.broadcast_to(start, (count, descent.dim)), descent.like),
            sigma=np.full(count, np.nan),
            stopped=np.zeros(count, bool),
            heard=np.zeros(count, bool),
        )
        states, basis = [now], None
        for t in range(self.iterations):  # line 6
            if self.stopping == "conference" or not now.stopped.all():
                basis, curvature = yield from descent.subspace(now.models, basis, t)  # lines 7 to 9
                now = yield from descent.step(now, basis, curvature, t)  # lines 10 to 15
            states.append(now)
        return states

    # -- lines 1, 3 and 7: where anchors start, who they are, and who else is asked -----------------------

    def _start(self, server: Server, key: Any, own: Any, dim: int) -> Float[np.ndarray, " d"]:
        """theta_0."""
        if self.scale is None:
            start: np.ndarray = matrix(fresh_models(server, key, 1), 1)[0]
            return start
        normal = jax.random.normal(jax.random.fold_in(own, number_of("start")), (dim,))
        return np.asarray(normal) * self.scale / math.sqrt(dim)

    def _sizes(self, own: Key[Array, ""]) -> Exchange[Int[np.ndarray, " clients"]]:
        """How many examples each client has; 0 for one that does not say."""
        key = jax.random.fold_in(jax.random.fold_in(own, number_of("asks")), 0)
        answers = yield Ask(CountExamples(), key=key)
        return np.where(np.asarray(answers.answered), np.asarray(answers.report.examples), 0)

    def _anchors(
        self, server: Server, own: Key[Array, ""], sizes: Int[np.ndarray, " clients"], k: int
    ) -> Int[np.ndarray, " anchors"]:
        """Positions of the anchors, in an order that tells nothing of them."""
        wanted, least = self.anchors, 2 * self.iterations if self.fresh else 2
        if isinstance(wanted, tuple):
            able = _named(server, wanted)
            if (sizes[able] < least).any():
                small = able[np.argmin(sizes[able])]
                raise SettingError(
                    f"client {str(server.ids[small])!r} cannot be an anchor: it has "
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
        lots = _lots(server, own, "anchors")
        rank = -sizes[able] if self.draw == "largest" else np.zeros(len(able))
        chosen = able[np.lexsort((lots[able], rank))[:count]]
        ordered: np.ndarray = chosen[np.argsort(lots[chosen])]
        return ordered

    def _asked(
        self,
        server: Server,
        sizes: Int[np.ndarray, " clients"],
        anchors: Int[np.ndarray, " anchors"],
    ) -> list[Int[np.ndarray, " asked"]]:
        """S_t: positions of the clients asked for the subspace in each iteration."""
        steps, m = self.iterations, self.clients
        able = sizes != 1  # whoever has not said may have two
        if self.fresh:
            able[anchors] = False
        pool = np.flatnonzero(able)
        shared = server.key("init")  # the same clients for all starts, which share the exchange
        if self.fresh:
            m = max(1, len(pool) // steps) if m is None else m
            if m * steps > len(pool):
                raise SettingError(
                    f"fresh=True needs {m} other clients in each of {steps} iterations, {m * steps} in all, "
                    f"and {len(pool)} beside the anchors have two examples: lower clients or iterations."
                )
            drawn = pool[np.argsort(_lots(server, shared, "asked")[pool])]
            return [np.sort(drawn[t * m : (t + 1) * m]) for t in range(steps)]
        if m is None:
            return [pool] * steps
        if m > len(pool):
            raise SettingError(f"clients={m} are to be asked, but {len(pool)} have two examples.")
        return [
            np.sort(pool[np.argsort(_lots(server, shared, f"asked/{t}")[pool])[:m]]) for t in range(steps)
        ]


def _named(server: Server, wanted: tuple[Any, ...]) -> Int[np.ndarray, " anchors"]:
    at = {str(name): i for i, name in enumerate(server.ids)}
    for name in wanted:
        if str(name) not in at:
            raise SettingError(f"anchor {str(name)!r} is none of the {len(at)} clients.")
    return np.unique([at[str(name)] for name in wanted])


def _lots(server: Server, key: Key[Array, ""], purpose: str) -> np.ndarray:
    """A number for every client, from a key and the client's id alone."""
    salt = np.asarray(jax.random.key_data(key)).tolist()
    return keys.tokens(f"{salt}/{purpose}/{name}" for name in server.ids)
