"""A round of IFCA of the size of rotated MNIST, against the matrix rate of the same device.

240 clients x 200 images, MLP 784-200-10, 10 full-batch steps, k = 4. Claim, on 2 CPU cores: the round's
matrix products, counting only the arithmetic that is needed, run at 75 % or more of the sgemm rate measured
in the same process. On a GPU use the paper's size: --clients 1200 --precision tf32.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
from measure import (
    fastest,
    forward_flops,
    matmul_rate,
    median_ratio,
    population,
    torch_seconds,
    training_flops,
)

import coterie as ct
from coterie.algorithms.driver import Run, Step, compiled_round

WIDTHS, K, STEPS, LR = (784, 200, 10), 4, 10, 0.1


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=240)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
    options.add_argument("--batch", default="auto")
    size = options.parse_args()

    shards = population([size.examples] * size.clients, WIDTHS[0])
    batch = size.batch if size.batch == "auto" else int(size.batch)
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    simulation = ct.Simulation(shards, batch=batch, precision=size.precision).with_learner(learner)
    algorithm = ct.IFCA(k=K, n_init=1)
    sized = learner.for_data(shards.spec)
    run = Run(algorithm, simulation, sized, seed=0, observers=())
    run.begin()
    step = Step(jnp.asarray(0), jax.random.key(1))

    def round_() -> object:
        # the compiled program consumes its states, so each repetition starts from a copy
        copy = simulation.place(jax.tree.map(jnp.copy, run.states))
        return compiled_round(algorithm, simulation, sized, copy, step)

    flops = size.clients * size.examples * (K * forward_flops(WIDTHS) + STEPS * training_flops(WIDTHS))
    reference = matmul_rate(size.precision)
    ratio = median_ratio(lambda: flops / fastest(round_, repeats=3), reference)
    print(
        f"round against one large {size.precision} product, in FLOP/s: {ratio:6.0%}   "
        "(claim: at least 75% in float32 on a CPU)"
    )
    plain = torch_seconds(shards, WIDTHS, LR, STEPS, models=K)
    if plain is None:
        print("round against a PyTorch loop over clients:          torch is not installed")
    else:
        print(f"round against a PyTorch loop over clients:     {plain / fastest(round_):6.0f}x")


if __name__ == "__main__":
    main()
