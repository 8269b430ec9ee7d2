"""The cost of a round against the number of clients: 10,000, 100,000 and, on a GPU, a million.

FedX on clients of 2 to 100 examples (Zipf 1.6), 64 features, k = 4, one start, 5 full-batch steps. Claim: a
round costs no more per client with ten times as many. What `fit` takes beside its rounds (placing clients,
models to begin with, looking at every round, the last exchange) is told by one of 12 rounds whose programs
are compiled. On a GPU: --clients 10000 100000 1000000. With --starts 5 it has FedX's default.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from measure import compiled, fastest, report

import coterie as ct

FEATURES, K, STEPS, ROUNDS = 64, 4, 5, 12


def population(clients: int) -> tuple[ct.Shards, float, int]:
    """Clients, the seconds that it took to make shards of flat arrays, and the bytes of those."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.zipf(1.6, clients) + 1, 2, 100)
    owner = np.repeat(np.arange(clients), sizes)
    x = rng.standard_normal((len(owner), FEATURES), np.float32)
    theta = rng.standard_normal((K, FEATURES), np.float32)
    y = np.einsum("ed,ed->e", x, theta[owner % K])
    began = time.perf_counter()
    return ct.Shards.from_flat(x, y, owner), time.perf_counter() - began, x.nbytes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, nargs="+", default=[10_000, 100_000])
    options.add_argument("--starts", type=int, default=1, help="side by side")
    options.add_argument("--seconds", action="store_true", help="print seconds as well")
    given = options.parse_args()
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=STEPS))
    algorithm = ct.FedX(k=K, rounds=10**6, n_init=given.starts)
    first = 0.0
    for clients in given.clients:
        shards, making, size = population(clients)
        copied = fastest(lambda size=size: np.copy(np.zeros(size, np.uint8)), repeats=1, warm_up=False)
        once = compiled(algorithm, shards, learner)
        seconds = fastest(once) / clients
        first = first or seconds
        if clients > given.clients[0]:
            what = f"{clients} clients against {given.clients[0]}, time of a round per client"
            report(what, seconds / first, "at most 1x", less=True)
        report(f"{clients} clients, shards of flat arrays against copying these", making / copied, less=True)

        def fit(shards: ct.Shards = shards) -> object:
            return ct.FedX(k=K, rounds=ROUNDS, n_init=given.starts).fit(shards, learner).models

        fitting = fastest(fit, repeats=1)
        what = f"{clients} clients, a fit of {ROUNDS} rounds against its rounds"
        report(what, fitting / (ROUNDS * seconds * clients), less=True)
        if given.seconds:
            print(
                f"{clients} clients: {seconds * clients * 1e3:.2f} ms a round, shards {making:.2f} s, "
                f"fit {fitting:.2f} s"
            )


if __name__ == "__main__":
    main()
