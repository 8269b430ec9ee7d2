"""How long a new process waits for its first round, with a cold and with a warm cache, in rounds.

IFCA, 240 clients x 200 images, MLP 784-200-10, 10 full-batch steps, k = 4: `fit` is called in a process of
its own, first with an empty cache of compiled programs and then again. On a GPU: --clients 1200.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from measure import population, report

import coterie as ct
from coterie.algorithms.observer import Moment, Observer


class Times(Observer):
    """When each round was told."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def after(self, moment: Moment) -> None:
        if moment.place.done:
            self.told.append(time.perf_counter())

    def wants_states(self) -> bool:
        return False


def fit(clients: int, examples: int, rounds: int) -> dict[str, float]:
    """Seconds until the first round was told, of a round later on, and of the whole fit."""
    shards = population([examples] * clients, 784)
    learner = ct.Learner(ct.models.MLP(hidden=(200,)), local=ct.SGD(lr=0.1, steps=10))
    simulation, times = ct.Simulation(shards), Times()
    began = time.perf_counter()
    ct.IFCA(k=4, rounds=rounds, n_init=1).fit(simulation, learner, observers=[times])
    whole = time.perf_counter() - began
    each = np.diff(times.told)[1:]
    return {"first": times.told[0] - began, "round": float(np.median(each)), "whole": whole}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=240)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--seconds", action="store_true", help="print seconds as well")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        print(json.dumps(fit(given.clients, given.examples, given.rounds)))
        return
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm"):
            environment = {**os.environ, "COTERIE_CACHE": cache}
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
            child = [sys.executable, __file__, "--child", *sys.argv[1:]]
            said = subprocess.run(child, env=environment, capture_output=True, text=True, check=True).stdout
            found = json.loads(said.splitlines()[-1])
            first, whole = (found[part] / found["round"] for part in ("first", "whole"))
            report(f"{name} cache: wait for the first round, in rounds", first, less=True)
            what = f"{name} cache: a fit of {given.rounds} rounds against its rounds"
            report(what, whole / given.rounds, less=True)
            if given.seconds:
                print(f"{name} cache: {found['first']:.2f} s to the first round, {found['whole']:.2f} s")


if __name__ == "__main__":
    main()
