"""Several processes on loopback that run one program together."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

JOIN = "import sys, jax; jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"


def free_address():
    """An address that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def started(arguments, processes, environment=lambda rank: {}):
    """So many processes: `arguments(rank)` are those of Python, each has one device."""
    usual = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_NUM_CPU_DEVICES": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *map(str, arguments(rank))],
            env=usual | environment(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def ended(running, within=240):
    """Exit code, output and errors of each."""
    said = [process.communicate(timeout=within) for process in running]
    return [(process.returncode, *words) for process, words in zip(running, said, strict=True)]


def script(code, processes):
    """What each of some processes prints that run this code, after they have come together."""
    address = free_address()
    done = ended(started(lambda rank: ["-c", f"{JOIN}\n{code}", address, processes, rank], processes))
    assert [code for code, _, _ in done] == [0] * processes, "\n".join(errors for _, _, errors in done)
    return [output for _, output, _ in done]


def coterie(processes, *options, environment=lambda rank: {}, seats=True):
    """`coterie run` in so many processes, not waited for."""
    address = free_address()

    def arguments(rank):
        seat = ["--address", address, "--processes", processes, "--rank", rank] if seats else []
        return ["-m", "coterie", "run", *options, *seat]

    return started(arguments, processes, environment)


def wait_for_rounds(folder, count, within=120):
    """Wait until a run has written down so many rounds and a checkpoint."""
    rounds, give_up = Path(folder) / "rounds.jsonl", time.monotonic() + within
    while not (
        rounds.exists()
        and rounds.read_text().count("\n") >= count
        and (Path(folder) / "checkpoint.safetensors").exists()
    ):
        assert time.monotonic() < give_up, "no rounds in time"
        time.sleep(0.1)
