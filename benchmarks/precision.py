"""What computing in bfloat16 costs: test accuracy on rotated MNIST against float32, same seeds, same starts.

IFCA, k = 4, MLP 784-200-10, 10 full-batch steps, one random start; clients are tested as the IFCA paper does,
each unseen one under the model of lowest loss. Claim: within 0.1 points on average over 3 seeds. At the size
of the paper: --clients 1200 --unseen 200 --rounds 300.
"""

from __future__ import annotations

import argparse

import numpy as np

import coterie as ct


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", help="with the files of MNIST; downloaded when not given")
    options.add_argument("--clients", type=int, default=120)
    options.add_argument("--unseen", type=int, default=40)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--seeds", type=int, default=3)
    given = options.parse_args()
    learner = ct.Learner(ct.models.MLP(hidden=(200,)), local=ct.SGD(lr=0.1, steps=10))
    algorithm = ct.IFCA(k=4, rounds=given.rounds, n_init=1)
    differences = []
    for seed in range(given.seeds):
        data = ct.data.rotated_mnist(
            given.clients, given.unseen, given.examples, seed=seed, folder=given.folder
        )
        found = {
            precision: algorithm.fit(ct.Simulation(data.train, precision=precision), learner, seed=seed)
            for precision in ("float32", "bfloat16")
        }
        # by the same measure: in float32
        accuracy = {name: 100 * float(one.evaluate(data.unseen).accuracy) for name, one in found.items()}
        moved = ct.metrics.misclustering(found["bfloat16"].assignment, found["float32"].assignment)
        differences.append(accuracy["bfloat16"] - accuracy["float32"])
        print(
            f"seed {seed}: {accuracy['bfloat16']:.2f} % in bfloat16, {accuracy['float32']:.2f} % in float32, "
            f"{moved:.1%} of the clients elsewhere",
            flush=True,
        )
    print(
        f"difference in points: {np.mean(differences):+.3f} on average, at most "
        f"{np.abs(differences).max():.3f} of {given.seeds} seeds   (claim: within 0.1)"
    )


if __name__ == "__main__":
    main()
