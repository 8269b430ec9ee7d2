"""One trial of Figure 2(b) of the IFCA paper: its 30 runs side by side against the same one after another.

400 clients x 100 examples in 1,000 dimensions, k = 4, gradient averaging, 10 starts x 3 step sizes, float32.
A trial has 300 rounds; every round is the same arithmetic, so a few are timed, after the data is drawn.
Claim, on 2 CPU cores: at least 3x as fast. The last lines compare with the rate of one large matrix product
measured in the same process. A round is k forward passes over the data for every run, then a gradient: k + 2
passes in all, or k + 1 where the forward pass of the chosen model is not repeated.
"""

from __future__ import annotations

import argparse
from functools import partial

import jax
import jax.numpy as jnp
from measure import fastest, matmul_rate, median_ratio, report

import coterie as ct
from coterie.algorithms.rounds import rounds_of_everybody
from coterie.models import stacked
from coterie.papers.ifca.recovery import Problem, drawn

STARTS, RATES, K = 10, (0.5, 1.0, 2.0), 4
SEPARATION, NOISE = 0.5, 0.1


trained = partial(jax.jit, static_argnums=(0, 5))(rounds_of_everybody)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=400)
    options.add_argument("--examples", type=int, default=100)
    options.add_argument("--dim", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=2, help="how many of a trial's 300 rounds to time")
    size = options.parse_args()

    ct.use_every_core()  # the data is drawn before there is a simulation
    problem = Problem(K, size.clients, size.examples, size.dim, STARTS, RATES, size.rounds)
    draw = jax.jit(partial(drawn, problem, separation=SEPARATION, noise=NOISE))
    x, y, _ = draw(jax.random.key(0))
    together = problem.simulation().with_examples(x, y)
    learner, algorithm = problem.learner(), problem.algorithm()
    shapes, key = learner.shapes(problem.spec), jax.random.key(1)
    states = [
        algorithm.state_of(stacked.from_matrix(models, shapes), size.clients)
        for models in problem.starts_of(jax.random.key(2))
    ]
    begin = together.place(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))

    def side_by_side() -> object:
        return trained(algorithm, together, learner, begin, key, size.rounds)

    one = ct.IFCA(K, n_init=1, rounds=size.rounds, average="gradients")
    runs = []
    for run in range(problem.runs):
        rate = RATES[run % len(RATES)]
        alone = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=rate, steps=1))
        alone = alone.for_data(problem.spec)
        own = together.place(stacked.take(begin, slice(run, run + 1)))
        runs.append(partial(trained, one, together.with_learner(alone), alone, own, key, size.rounds))

    def one_after_another() -> object:
        return [run() for run in runs]

    gain = median_ratio(
        lambda: fastest(one_after_another, repeats=1), lambda: fastest(side_by_side, repeats=3), pairs=3
    )
    what = f"{problem.runs} runs side by side, {size.rounds} of 300 rounds"
    report(f"{what}, against one after another", gain, "at least 3x")
    one_pass = 2 * size.clients * size.examples * size.dim * problem.runs * size.rounds
    rate = median_ratio(lambda: one_pass / fastest(side_by_side, repeats=3), matmul_rate())
    for name, count in (("k + 2 passes", K + 2), ("k + 1 passes", K + 1)):
        report(f"{what}, against sgemm in FLOP/s, {name}", count * rate, percent=True)


if __name__ == "__main__":
    main()
