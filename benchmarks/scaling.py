"""How time and memory grow with the number of clients, and what a heavy tail of shard sizes costs.

Claims: twice the clients take at most twice the time and, at a fixed batch, no more memory beyond the data
than a few numbers per client; a population with 2 to 2,000 examples per client (Zipf) costs at most twice the
arithmetic of its real examples.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from measure import fastest, fresh_models, median_ratio, population, report

import coterie as ct
from coterie.aggregate import Summing
from coterie.federation.simulation import _ask
from coterie.learn.tasks import ChooseAndTrain

LEARNER = ct.Learner(ct.models.MLP(hidden=(64,)), local=ct.SGD(lr=0.1, steps=10))


class Cohort:
    """Training of all clients of a population, summed by cluster."""

    def __init__(self, sizes: np.ndarray, batch: int = 16) -> None:
        self.simulation = ct.Simulation(population(sizes, 64), batch=batch).with_learner(LEARNER)
        models = fresh_models(LEARNER, self.simulation, 4)
        self.task = self.simulation.place(ChooseAndTrain(models, jnp.asarray(0)))

    def seconds(self) -> float:
        return fastest(lambda: self.simulation.ask(self.task, reduce=Summing(4)).value)

    def memory_beyond_data(self) -> int:
        kind, everybody, each = self.task.split()
        lowered = _ask.lower(
            self.simulation, kind, Summing(4), None, everybody, each, None, None, jax.random.key(0)
        )
        return int(lowered.compile().memory_analysis().temp_size_in_bytes)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=1000)
    m = options.parse_args().clients
    one, two = Cohort(np.full(m, 20)), Cohort(np.full(2 * m, 20))
    time = median_ratio(two.seconds, one.seconds)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(one.task.models)) / 4
    memory = (two.memory_beyond_data() - one.memory_beyond_data()) / m / model
    report("twice the clients, time", time, "at most 2x", less=True)
    # so little that its own noise is far above a fifth of it: not compared
    print(f"memory that a client adds beyond its data, in models: {memory:.2%}   (claim: next to nothing)")

    sizes = np.clip((2000 / np.arange(1, m + 1)).astype(int), 2, 2000)
    tail = Cohort(sizes)
    arithmetic = tail.simulation.shards.stored_examples / sizes.sum()
    per_example = median_ratio(lambda: tail.seconds() / sizes.sum(), lambda: one.seconds() / (20 * m))
    report("Zipf sizes up to 2,000, arithmetic per real example", arithmetic, "at most 2x", less=True)
    report("Zipf sizes against equal ones, time per real example", per_example, less=True)


if __name__ == "__main__":
    main()
