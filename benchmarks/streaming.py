"""How fast clients that stay in memory-mapped files are asked, against the rate of the way to the device.

Clients of 100 examples with 64 features are asked for their losses under four models, block by block. Claim:
at least 80 % of the rate at which arrays in memory are put on the device, or at which clients that are there
already are asked, whichever is lower: one is hidden behind the other. On a GPU: --gigabytes 200, or as much
as the disk of --folder has room for.
"""

from __future__ import annotations

import argparse
import math
import tempfile

import jax
import numpy as np
from measure import fastest, median_ratio, report

import coterie as ct
from coterie.federation import streaming
from coterie.learn.tasks import MeasureLosses
from coterie.models import stacked

FEATURES, EXAMPLES, K = 64, 100, 4
BYTES = EXAMPLES * (FEATURES + 1) * 4  # of a client


class Asked:
    """The rate, in bytes per second, at which clients are asked."""

    def __init__(self, shards: ct.Shards, resident: bool) -> None:
        learner = ct.Learner(ct.models.Linear(), "squared").for_data(shards.spec)
        self.simulation = ct.Simulation(shards, resident=resident).with_learner(learner, trains=False)
        matrix = np.random.default_rng(1).standard_normal((K, FEATURES), np.float32)
        models = stacked.from_matrix(matrix, learner.shapes(shards.spec))
        self.task = self.simulation.place(MeasureLosses(models))
        self.bytes = len(shards) * BYTES

    def __call__(self) -> float:
        return self.bytes / fastest(lambda: self.simulation.ask(self.task).report, repeats=1)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gigabytes", type=float, default=1.0)
    options.add_argument("--folder", help="where the files are made, and deleted in the end")
    options.add_argument("--seconds", action="store_true", help="print rates as well")
    given = options.parse_args()
    clients = max(K, round(given.gigabytes * 1e9 / BYTES))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((EXAMPLES, FEATURES), np.float32), rng.standard_normal(EXAMPLES, np.float32)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        # the same client over and over: what it holds takes no time to make
        shards = ct.Shards.from_lists([x] * clients, [y] * clients, folder=folder)
        block = shards[: math.ceil(min(len(shards), streaming.BLOCK_BYTES / BYTES))]
        array = np.array(block.buckets[0].x)
        streamed, asked = Asked(shards, resident=False), Asked(block, resident=True)

        def put() -> float:
            return array.nbytes / fastest(lambda: jax.device_put(array, jax.local_devices()[0]))

        def slower() -> float:
            # what a CPU is to compute with may stay where it is
            return asked() if jax.default_backend() == "cpu" else min(put(), asked())

        what = "streamed against putting arrays on the device, or asking clients that are there"
        report(what, median_ratio(streamed, slower), "at least 80 %", percent=True)
        if given.seconds:
            rates = ", ".join(f"{rate() / 1e9:.2f} GB/s" for rate in (streamed, put, asked))
            print(f"streamed, put on the device, asked there: {rates}")


if __name__ == "__main__":
    main()
