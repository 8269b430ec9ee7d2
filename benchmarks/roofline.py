"""How near the main asks come to what this device can do at most.

An ask needs so much arithmetic and has to move so many bytes, both by formula: matrix products alone, and
what clients hold, are sent and reply, each moved once. The limit is the longer of the times that these take
at the rate of one large matrix product and at that of a copy of large arrays, measured in the same process
and in turn with the ask. Networks are MLP 784-200-10 with 10 full-batch steps and k = 4; regressions have
100 features, 40 examples, k = 4 and 5 steps, and moment descent 16 anchors.

With `--seconds` the numbers behind the fractions are printed too, as rows of a table. On a GPU:
--clients 1200 --pairs 400 --regressions 100000 --precision tf32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from measure import (
    LR,
    STEPS,
    WIDTHS,
    K,
    all_pairs,
    compiled,
    copy_rate,
    fastest,
    forward_flops,
    fresh_models,
    ifca_round,
    matmul_rate,
    median_ratio,
    population,
    report,
    training_flops,
)

import coterie as ct
from coterie.aggregate import Summing
from coterie.algorithms import cfl
from coterie.algorithms.bipartition import Rule
from coterie.learn.moments import MultiplyMoment
from coterie.learn.tasks import MeasureLosses

FEATURES, EACH, LINEAR_STEPS, ANCHORS = 100, 40, 5, 16
PARAMETERS = sum((a + 1) * b for a, b in pairwise(WIDTHS))
FLOAT = 4  # bytes


class Measured(NamedTuple):
    """What is timed, and what it needs at least."""

    what: str
    flops: float
    bytes: float
    precision: str
    work: Callable[[], object]


def of_networks(clients: int, examples: int, pairs: int, precision: str) -> Iterator[Measured]:
    """Rounds of IFCA, losses under k models, products of updates, and losses under everybody's models."""
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    shards = population([examples] * clients, WIDTHS[0])
    every, forward = clients * examples, forward_flops(WIDTHS)
    data = FLOAT * every * (WIDTHS[0] + 1)
    models = 2 * FLOAT * K * PARAMETERS  # k are sent, and k sums are what becomes of the replies
    usual = ifca_round(shards, learner, K, precision=precision, sample_space=False)
    flops = every * (K * forward + STEPS * training_flops(WIDTHS))
    yield Measured("IFCA, the usual way", flops, data + models, precision, usual)

    spanned = ifca_round(shards, learner, K, precision=precision, sample_space=True)
    step = 2 * examples * WIDTHS[1] + 3 * forward_flops(WIDTHS[1:])
    flops = every * (K * forward + STEPS * step + 2 * WIDTHS[0] * WIDTHS[1])
    products = FLOAT * every * examples
    yield Measured("IFCA, in the span of examples", flops, data + models + products, precision, spanned)

    simulation = ct.Simulation(shards, precision=precision).with_learner(learner, trains=False)
    task = MeasureLosses(fresh_models(learner, simulation, K))
    yield Measured(
        "losses of k models", K * every * forward, data + models / 2, precision, lambda: simulation.ask(task)
    )

    # the models that clients of one cluster send, whose updates CFL compares: it finds them ripe for a split
    rule = Rule(eps1=1e9, eps2=1e-9)
    start, own = (fresh_models(learner, simulation, count) for count in (1, clients))
    who, cluster, weight = jnp.arange(clients), jnp.zeros(clients, int), jnp.ones(clients)
    sent = simulation.place((start, jnp.zeros(()), who, own, cluster, weight, weight > 0))
    moved = FLOAT * (clients * PARAMETERS + clients**2)
    yield Measured(
        "products of all updates (CFL)",
        2 * clients**2 * PARAMETERS,
        moved,
        "float32",
        lambda: cfl._look(rule, clients, *sent),
    )

    shards = population([examples] * pairs, WIDTHS[0])
    simulation = ct.Simulation(shards, precision=precision).with_learner(learner, trains=False)
    work = all_pairs(simulation, fresh_models(learner, simulation, pairs))
    moved = FLOAT * (pairs * examples * (WIDTHS[0] + 1) + pairs * PARAMETERS + pairs**2)
    yield Measured("losses of all pairs", pairs**2 * examples * forward, moved, precision, work)


def of_regressions(clients: int) -> Iterator[Measured]:
    """A round of FedX, and what moment descent asks of everybody."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, EACH, FEATURES), np.float32)
    shards = ct.Shards.from_lists(list(x), list(rng.standard_normal((clients, EACH), np.float32)))
    learner = ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(lr=0.05, steps=LINEAR_STEPS))
    one_pass = 2 * clients * EACH * FEATURES
    data = FLOAT * clients * EACH * (FEATURES + 1)
    round_ = compiled(ct.FedX(k=K, n_init=1), shards, learner)
    # with so few examples steps are taken in their span
    flops = one_pass * (K + 1) + LINEAR_STEPS * 2 * clients * EACH**2
    moved = data + FLOAT * (clients * EACH**2 + 2 * K * FEATURES)
    yield Measured("FedX", flops, moved, "float32", round_)

    simulation = ct.Simulation(shards).with_learner(learner)
    anchors = fresh_models(learner, simulation, ANCHORS)
    directions = jax.tree.map(lambda a: jnp.stack([a] * K, axis=1), anchors)
    task, sums = simulation.place(MultiplyMoment(directions, models=anchors)), Summing(1)
    flops, models = one_pass * ANCHORS * (1 + 2 * K), FLOAT * ANCHORS * (1 + 2 * K) * FEATURES
    yield Measured(
        "moment descent", flops, data + models, "float32", lambda: simulation.ask(task, reduce=sums).value
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=80)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--pairs", type=int, default=32, help="clients whose models are all compared")
    options.add_argument("--regressions", type=int, default=6000, help="clients with regressions")
    options.add_argument("--precision", choices=("float32", "tf32"), default="float32", help="of networks")
    options.add_argument("--seconds", action="store_true", help="print the numbers behind the fractions too")
    given = options.parse_args()
    copy = copy_rate()

    def measure(ask: Measured) -> None:
        product = matmul_rate(ask.precision)
        jax.block_until_ready(ask.work())  # compiles

        def limits() -> dict[str, float]:
            return {"arithmetic": ask.flops / product(), "memory": ask.bytes / copy()}

        fraction = median_ratio(
            lambda: max(limits().values()), lambda: fastest(ask.work, repeats=3, warm_up=False)
        )
        report(f"{ask.what}, of the limit of this device", fraction, percent=True)
        if given.seconds:
            known, seconds = limits(), fastest(ask.work)
            by = max(known, key=lambda name: known[name])
            numbers = f"{ask.flops / 1e9:.4g} | {ask.bytes / 1e9:.3g} | {1e3 * known[by]:.3g}, {by}"
            print(f"| {ask.what} | {numbers} | {1e3 * seconds:.3g} | {known[by] / seconds:.0%} |")

    for ask in of_networks(given.clients, given.examples, given.pairs, given.precision):
        measure(ask)
    for ask in of_regressions(given.regressions):
        measure(ask)


if __name__ == "__main__":
    main()
