"""A cohort of small clients against the same work done client by client.

1,000 clients x 20 examples, MLP 64-64-10, 10 full-batch steps each. Claims, on 2 CPU cores: at least 3x as
fast as a jitted local update called client by client; at least 30x as fast as a plain PyTorch loop (when
torch is installed); at least half of the sgemm rate measured in the same process, a training step counted as
three forward passes as is usual. The last line counts only the arithmetic that is needed: the gradient with
respect to the input is not, and nobody computes it.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
from measure import (
    fastest,
    forward_flops,
    installed,
    matmul_rate,
    median_ratio,
    population,
    report,
    training_flops,
)
from torch_ifca import torch_round

import coterie as ct
from coterie.aggregate import Summing
from coterie.learn.shard import Shard
from coterie.learn.task import Client
from coterie.learn.tasks import ChooseAndTrain

WIDTHS, STEPS, LR = (64, 64, 10), 10, 0.1


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=1000)
    options.add_argument("--examples", type=int, default=20)
    size = options.parse_args()

    shards = population([size.examples] * size.clients, WIDTHS[0])
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    simulation = ct.Simulation(shards, precision="float32").with_learner(learner)
    learner = learner.for_data(shards.spec)
    model = learner.init(jax.random.key(0), shards.spec)
    task = simulation.place(ChooseAndTrain(jax.tree.map(lambda a: a[None], model), jnp.asarray(0)))

    def cohort() -> object:
        return simulation.ask(task, reduce=Summing(1)).value

    local = jax.jit(lambda task, shard: task(Client(learner, shard, jax.random.key(0))).value)
    singles = [Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(len(x))) for x, y in shards]
    alone = jax.device_put(task, jax.local_devices()[0])

    def one_by_one() -> object:
        return [local(alone, shard) for shard in singles]

    apart = median_ratio(lambda: fastest(one_by_one, repeats=1), lambda: fastest(cohort))
    report("cohort against client by client (jitted)", apart, "at least 3x")
    if installed("torch", "PyTorch"):
        plain = torch_round(shards, [jax.tree.leaves(model)], LR, STEPS)
        report("cohort against a PyTorch loop", fastest(plain, repeats=1) / fastest(cohort), "at least 30x")
    examples, forward = size.clients * size.examples, forward_flops(WIDTHS)
    per_flop = median_ratio(lambda: 1 / fastest(cohort, repeats=3), matmul_rate())
    for name, step in (("usual count", 3 * forward), ("needed only", training_flops(WIDTHS))):
        rate = per_flop * examples * (forward + STEPS * step)
        claim = "at least 50%" if name == "usual count" else ""
        report(f"cohort against sgemm, in FLOP/s, {name}", rate, claim, percent=True)


if __name__ == "__main__":
    main()
