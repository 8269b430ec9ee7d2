"""PyTorch's random numbers, from a seed of ours, for one use at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from coterie import keys

_ONE_AT_A_TIME = threading.RLock()


def seed_of(*parts: object) -> int:
    """The seed that stands for all of these."""
    return int(keys.token("/".join(map(str, parts))))


@contextmanager
def seeded(seed: int, generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Whatever PyTorch draws in here depends on the seed alone; outside, nobody notices.

    The generator of PyTorch belongs to the whole process and a module holds one set of weights, while JAX
    calls back from several threads: hence one use at a time.
    """
    cuda: Any = torch.cuda  # not all of it is annotated
    devices = range(cuda.device_count()) if cuda.is_initialized() else range(0)
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=list(devices)), ExitStack() as after:
        torch.manual_seed(seed)
        for generator in generators:
            after.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        yield
