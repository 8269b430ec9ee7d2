"""A round of IFCA of the size of rotated MNIST, against the matrix rate of the same device.

240 clients x 200 images, MLP 784-200-10, 10 full-batch steps, k = 4. Claim, on 2 CPU cores: the round's
matrix products, counting only the arithmetic that is needed, run at 75 % or more of the sgemm rate measured
in the same process. On a GPU use the paper's size: --clients 1200 --precision tf32. Local updates are the
usual ones here: what is gained in the span of a client's examples is for sample_space.py to say.
"""

from __future__ import annotations

import argparse

from measure import (
    LR,
    STEPS,
    WIDTHS,
    K,
    fastest,
    forward_flops,
    ifca_round,
    matmul_rate,
    median_ratio,
    population,
    report,
    training_flops,
)

import coterie as ct


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
    round_ = ifca_round(shards, learner, K, batch=batch, precision=size.precision, sample_space=False)
    flops = size.clients * size.examples * (K * forward_flops(WIDTHS) + STEPS * training_flops(WIDTHS))
    reference = matmul_rate(size.precision)
    ratio = median_ratio(lambda: flops / fastest(round_, repeats=3), reference)
    claim = "at least 75% in float32 on a CPU"
    report(f"round against one large {size.precision} product, in FLOP/s", ratio, claim, percent=True)


if __name__ == "__main__":
    main()
