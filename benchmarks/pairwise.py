"""The loss of every client under every other client's model, asked for in blocks, against pair by pair.

400 clients x 40 examples, MLP 64-64-10: the m x m matrix of SR-FCA's cross-cluster distances. Claims, on 2
CPU cores: at least 3x as fast as one jitted call per pair; at least half of the sgemm rate measured in the
same process. With `--clients 1000 --examples 600 --features 784 --hidden 200 --seconds` it has the size of
MNIST, for a GPU.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from measure import (
    all_pairs,
    fastest,
    forward_flops,
    fresh_models,
    matmul_rate,
    median_ratio,
    population,
    report,
)

import coterie as ct
from coterie.learn.shard import Shard

PAIRS = 2000  # of which the time is taken, pair by pair; all of them would take too long


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=400)
    options.add_argument("--examples", type=int, default=40)
    options.add_argument("--features", type=int, default=64)
    options.add_argument("--hidden", type=int, default=64)
    options.add_argument("--seconds", action="store_true", help="tell the time of all pairs, too")
    size = options.parse_args()

    widths = (size.features, size.hidden, 10)
    shards = population([size.examples] * size.clients, size.features)
    learner = ct.Learner(ct.models.MLP(hidden=(size.hidden,))).for_data(shards.spec)
    simulation = ct.Simulation(shards).with_learner(learner)
    own = fresh_models(learner, simulation, size.clients)
    matrix = all_pairs(simulation, own)
    one = jax.jit(learner.shard_loss)
    some = np.random.default_rng(0).integers(0, size.clients, (PAIRS, 2))
    shard = {i: Shard(*map(jnp.asarray, (*shards.client(i), size.examples))) for i in np.unique(some[:, 0])}
    model = {j: jax.tree.map(lambda a: a[j], own) for j in np.unique(some[:, 1])}  # noqa: B023

    def by_pair() -> object:
        return [one(model[j], shard[i]) for i, j in some]

    matrix()
    share = PAIRS / size.clients**2
    gain = median_ratio(lambda: fastest(by_pair, repeats=1) / share, lambda: fastest(matrix, repeats=2))
    report("all pairs in blocks against pair by pair", gain, "at least 3x")
    flops = size.clients**2 * size.examples * forward_flops(widths)
    rate = median_ratio(lambda: flops / fastest(matrix, repeats=2), matmul_rate(simulation.precision))
    report("all pairs against a matrix product, in FLOP/s", rate, "at least 50%", percent=True)
    if size.seconds:
        print(f"all {size.clients**2:,} pairs on this device: {fastest(matrix, repeats=3):.3f} s")


if __name__ == "__main__":
    main()
