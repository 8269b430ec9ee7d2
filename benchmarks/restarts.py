"""Five starts of IFCA side by side against one, per round.

240 clients x 200 images, MLP 784-200-10, 10 full-batch steps, k = 4. Starts share the data and every
exchange, so that five should take no more than five times one. On a GPU: --clients 1200 --precision tf32.
"""

from __future__ import annotations

import argparse

from measure import LR, STEPS, WIDTHS, K, fastest, ifca_round, median_ratio, population, report

import coterie as ct


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=240)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--starts", type=int, default=5)
    options.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
    given = options.parse_args()
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    shards = population([given.examples] * given.clients, WIDTHS[0])
    one, several = (
        ifca_round(shards, learner, K, starts, precision=given.precision) for starts in (1, given.starts)
    )
    ratio = median_ratio(lambda: 1 / fastest(one, repeats=3), lambda: 1 / fastest(several, repeats=3))
    what = f"time of a round of {given.starts} starts side by side against one start"
    report(what, ratio, less=True)


if __name__ == "__main__":
    main()
