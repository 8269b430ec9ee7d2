"""One run in several processes, on one machine or on many, that JAX's own runtime brings together.

All processes run the same program, each with its own clients on its devices. Process 0 alone writes to the
run folder and speaks; the others have a folder of their own that holds the same and is thrown away.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from coterie.errors import ConfigError, CoterieError, FederationError
from coterie.federation.devices import use_every_core
from coterie.run.folder import BASELINES, OURS, RunFolder

PATIENCE = 300  # seconds to wait for the others at the beginning
HEARTBEAT = 10  # seconds without a sign of life, after which a process counts as gone
LOST = 3  # exit code of a process that another one has taken down

# how a launcher tells a process its number and how many there are; and, where it tells JAX the address of
# process 0 as well, by which name JAX knows the launcher, and the variable by which it recognises it
LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_NTASKS", "slurm", "SLURM_STEP_NODELIST"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "ompi", "OMPI_MCA_orte_hnp_uri"),
    ("PMI_RANK", "PMI_SIZE", "", ""),
)


class Seat(NamedTuple):
    """Which of several processes this is, and how it finds the others."""

    rank: int
    processes: int
    address: str | None  # of process 0, HOST:PORT; None where JAX finds it out from the launcher
    launcher: str = ""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def __str__(self) -> str:
        return f"process {self.rank} of {self.processes}"


def seat(
    address: str | None, processes: int | None, rank: int | None, environment: Mapping[str, str]
) -> Seat | None:
    """The seat that options and the launcher's environment variables give; None for a process alone."""
    if (processes is None) != (rank is None):
        raise ConfigError(
            "--processes and --rank go together: how many there are, and which of them this is."
        )
    if processes is not None and rank is not None:
        if not 0 <= rank < processes:
            raise ConfigError(f"--rank must be between 0 and {processes - 1}, not {rank}.")
        if address is None:
            raise ConfigError("--processes needs --address, HOST:PORT of process 0, the same for all.")
        return Seat(rank, processes, _checked(address)) if processes > 1 else None
    for number, count, launcher, tells in LAUNCHERS:
        if number in environment and int(environment.get(count, 1)) > 1:
            found = Seat(int(environment[number]), int(environment[count]), address)
            if address is not None:
                _checked(address)
            elif launcher and tells in environment:
                return found._replace(launcher=launcher)
            else:
                raise ConfigError(
                    f"this is {found}, and nothing says where process 0 is: give --address HOST:PORT."
                )
            return found
    if address is not None:
        raise ConfigError("--address is for several processes: give --processes and --rank as well.")
    return None


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--address must be HOST:PORT, such as node1:12345, not {address!r}.")
    return address


def go_on_in_a_child(own: Seat, folder: RunFolder) -> None:
    """Return in a child process; this one waits for it and says what became of it, if it cannot itself.

    JAX ends a process at once when process 0 is gone, with words of its own. The child's JAX writes those to
    a file, which is shown only where it is all that is known.
    """
    said = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as both processes)
    sys.stdout.flush(), sys.stderr.flush()
    child = os.fork()
    if child == 0:
        for name, number in (("stdout", 1), ("stderr", 2)):
            setattr(sys, name, os.fdopen(os.dup(number), "w", buffering=1))
            os.dup2(said.fileno(), number)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        sys.exit(code)
    last, name = _last_words(said), signal.Signals(-code).name
    if code == -signal.SIGABRT and "distributed service" in last:
        sentence = _lost([0], own.processes, folder)
    else:
        sentence = f"{own} was ended by {name}: {_advice(folder)}"
        print(last, end="", file=sys.stderr)
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(LOST)


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode(errors="replace")


def _lost(gone: list[int], processes: int, folder: RunFolder) -> str:
    which = f"process {gone[0]}" if len(gone) == 1 else f"processes {', '.join(map(str, gone))}"
    return (
        f"{which} of {processes} ended before the run did, and took the others down: look there for the "
        f"reason, then {_advice(folder)}"
    )


def _advice(folder: RunFolder) -> str:
    return f"continue from the last checkpoint with --resume --out {folder.path}, also with other processes."


@contextmanager
def together(own: Seat, folder: RunFolder) -> Iterator[RunFolder]:
    """Join the others; what is run meanwhile, with the folder given, is run by all of them."""
    _join(own)
    over, parent = threading.Event(), os.getppid()
    watch = threading.Thread(target=_watch, args=(own, folder, over, parent), daemon=True)
    watch.start()
    try:
        with _same_content(folder) as mine:
            yield mine
        multihost_utils.sync_global_devices("the run has ended")
    except Exception as error:
        if not isinstance(error, CoterieError):
            watch.join(2 * HEARTBEAT)  # if another process is gone, that is the reason, and the watch says so
        raise
    finally:
        over.set()
        _leave(own, watch)


def _leave(own: Seat, watch: threading.Thread) -> None:
    """End what this process has in common with the others; process 0 does so last, within some time.

    JAX aborts the processes that process 0 leaves behind; and they may be about to find the mistake that it
    has found, and could not without it.
    """
    patience = time.monotonic() + HEARTBEAT
    watch.join(HEARTBEAT)
    while own.first and len(_alive()) > 1 and time.monotonic() < patience:
        time.sleep(0.05)
    if not own.first:
        jax.distributed.shutdown()


def _join(own: Seat) -> None:
    use_every_core()
    jax.config.update("jax_enable_recoverability", True)  # so that it is us who say which process is gone
    place = own.address or "the address that the launcher gives"
    try:
        jax.distributed.initialize(
            own.address,
            own.processes,
            own.rank,
            cluster_detection_method=own.launcher or "deactivate",
            initialization_timeout=PATIENCE,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise FederationError(
            f"{own} could not join the others at {place} ({reason}): start all of them within "
            f"{PATIENCE} seconds, with the same address, at which process 0 can be reached."
        ) from error


def _watch(own: Seat, folder: RunFolder, over: threading.Event, parent: int) -> None:
    """End this process if another one is gone, or the one that waits for this one."""
    while not over.wait(1):
        if os.getppid() != parent:
            os._exit(LOST)
        alive = _alive()
        gone = sorted(set(range(own.processes)) - alive)
        # whoever has come to the end of the run leaves as well
        if gone and not over.wait(2):
            if own.rank == min(alive):
                print(f"error: {_lost(gone, own.processes, folder)}", file=sys.stderr, flush=True)
            os._exit(LOST)


def _alive() -> set[int]:
    """The processes that are there; all that are have to ask."""
    while True:
        try:
            with multihost_utils.live_devices(jax.devices()) as live:
                return {device.process_index for device in live}
        except Exception:  # somebody left meanwhile: the next look tells who
            time.sleep(0.05)


@contextmanager
def _same_content(folder: RunFolder) -> Iterator[RunFolder]:
    """The run folder in process 0, and one with the same content, for the time being, in all others."""
    first = jax.process_index() == 0
    content = _of_first(_packed(folder.path) if first else b"")
    if first:
        yield folder
        return
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            files.extractall(scratch, filter="data")
        yield RunFolder(scratch)


def _packed(folder: Path) -> bytes:
    """What a run folder holds of a run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as files:
        for part in (folder, *sorted((folder / BASELINES).glob("*"))):
            for path in (part / name for name in OURS):
                if path.exists():
                    files.add(path, path.relative_to(folder))
    return packed.getvalue()


def _of_first(content: bytes) -> bytes:
    """What process 0 gives, in all processes."""
    size = int(multihost_utils.broadcast_one_to_all(np.uint32(len(content))))
    mine = np.frombuffer(content.ljust(size, b"\0")[:size], np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine)).astype(np.uint8).tobytes()
