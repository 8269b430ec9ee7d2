"""What more devices, and more processes, make of a round of IFCA.

The same 240 clients x 200 images, MLP 784-200-10, 10 full-batch steps, k = 4, on 1, 2, 4, 8 devices of one
process and of two, against one device: how many times as fast a round is. On a CPU devices are forced, and
beyond one for each core they can only cost.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys

import jax
from measure import LR, STEPS, WIDTHS, K, fastest, ifca_round, population, report

import coterie as ct


def seconds(clients: int, examples: int) -> float:
    """A round on all devices of all processes."""
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    return fastest(ifca_round(population([examples] * clients, WIDTHS[0]), learner, K))


def in_children(processes: int, devices: int) -> float:
    """The same, in so many processes with so many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--child", address, str(processes), str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [process.communicate()[0] for process in running]
    return float(said[0].splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=240)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--devices", type=int, nargs="+", default=[2, 4, 8])
    options.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        address, processes, rank = given.child
        if processes != "1":
            jax.distributed.initialize(address, int(processes), int(rank))
        print(seconds(given.clients, given.examples))
        return
    one = in_children(1, 1)
    for devices in given.devices:
        report(f"{devices} devices of one process, as fast as one", one / in_children(1, devices))
    for devices in given.devices:
        each = max(1, devices // 2)
        report(f"{2 * each} devices of two processes, as fast as one", one / in_children(2, each))


if __name__ == "__main__":
    main()
