"""The synthetic experiment with the settings of the released code, which chose them on test data.

From its configs/clustering/*/synthetic/best_hp.yaml: every method has an optimiser of its own, batches of 50
and 10 clients per cluster and round. Beside these rows stand some with settings chosen as in the other
experiments. What is a mistake there is not repeated: see the notes of the experiment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

from coterie.algorithms import CFL, IFCA, SRFCA, Global, Local, Oracle
from coterie.learn.local import SGD, LocalUpdate, Optax
from coterie.papers.srfca.methods import LAMBDA_BETA, TEXT, Method, Problem, refined
from coterie.papers.srfca.tuning import Settings

BATCH, PER_CLUSTER = 50, 10


def _adam(settings: Settings, steps: int) -> LocalUpdate:
    return Optax(optax.adam(2.05e-3), steps=steps, batch_size=BATCH)


def _sgd(rate: float) -> Callable[[Settings, int], LocalUpdate]:
    return lambda settings, steps: SGD(lr=rate, steps=steps, batch_size=BATCH)


def _drawn(problem: Problem, clusters: int) -> dict[str, Any]:
    assert problem.truth is not None
    return {"rounds": problem.rounds, "participation": min(PER_CLUSTER * clusters, len(problem.truth))}


def _released(problem: Problem, settings: Settings) -> SRFCA:
    return SRFCA(threshold=22.2, trim=0.00098, refines=1, distance="l2", **_drawn(problem, 2))


AUTHORS: dict[str, Method] = {
    "srfca-released": Method("SR-FCA, released", _released, (), _adam, course=True),
    "local-released": Method("Local, released", lambda p, s: Local(rounds=p.rounds), (), _adam, alone=True),
    "global-released": Method("Global, released", lambda p, s: Global(**_drawn(p, 1)), (), _sgd(1e-3)),
    "ifca-released": Method(
        "IFCA, released",
        lambda p, s: IFCA(p.k, n_init=1, **_drawn(p, p.k)),
        (),
        _sgd(3.9e-4),
    ),
    "cfl-released": Method("CFL, released", lambda p, s: CFL(max_clusters=2, **_drawn(p, 2)), (), _sgd(1e-3)),
    "srfca-l2": Method("SR-FCA, L2, λ and β tuned", lambda p, s: refined(p, s, p.rounds), LAMBDA_BETA),
    "srfca-cross": Method(
        "SR-FCA, cross loss, λ and β tuned",
        lambda p, s: refined(p, s, p.rounds, distance="cross_loss"),
        LAMBDA_BETA,
    ),
    "ifca-tuned": Method("IFCA, one start, tuned", lambda p, s: IFCA(p.k, rounds=p.rounds, n_init=1)),
    "oracle-tuned": Method("oracle, tuned", lambda p, s: Oracle(p.truth, rounds=p.rounds)),
}
METHODS: dict[str, Method] = {**TEXT, **AUTHORS}
