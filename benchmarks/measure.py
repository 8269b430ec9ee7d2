"""What the benchmarks share: timing, and the rate that this device's matrix product reaches right now."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import coterie as ct
from coterie.algorithms.driver import Run
from coterie.algorithms.rounds import Step, compiled_round

PAIRS = int(os.environ.get("COTERIE_BENCHMARK_PAIRS", "5"))  # tests, which look at no number, need one
WIDTHS, K, STEPS, LR = (784, 200, 10), 4, 10, 0.1  # an IFCA round of the kind of rotated MNIST's
PRECISION = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}


def report(what: str, ratio: float, claim: str = "", percent: bool = False, less: bool = False) -> None:
    """Print a ratio; `less` tells that a smaller one is better. Also kept for compare.py, if it wants it."""
    number = f"{ratio:.0%}" if percent else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
    print(f"{what}: {number}{f'   (claim: {claim})' if claim else ''}", flush=True)
    if file := os.environ.get("COTERIE_BENCHMARK_RATIOS"):
        with open(file, "a") as kept:
            kept.write(json.dumps({"what": what, "ratio": ratio, "less": less}) + "\n")


def fastest(work: Callable[[], object], repeats: int = 5, warm_up: bool = True) -> float:
    """Seconds of the fastest of some repetitions, after one that compiles."""
    if warm_up:
        jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return min(times)


def matmul_rate(precision: str = "float32") -> Callable[[], float]:
    """FLOP/s of one large matrix product on the whole device, measured anew with every call."""
    size = 1536 if jax.default_backend() == "cpu" else 8192
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=PRECISION[precision]))
    return lambda: 2 * size**3 / fastest(lambda: product(a))


def median_ratio(rate: Callable[[], float], reference: Callable[[], float], pairs: int = PAIRS) -> float:
    """The median of rate / reference over pairs measured in turn: a noisy machine disturbs both alike."""
    return statistics.median(rate() / reference() for _ in range(pairs))


def population(sizes: Sequence[int] | np.ndarray, features: int, classes: int = 10) -> ct.Shards:
    """Clients with that many random examples each."""
    rng = np.random.default_rng(0)
    xs = [rng.random((n, features), np.float32) for n in sizes]
    return ct.Shards.from_lists(xs, [rng.integers(0, classes, n) for n in sizes], classes=classes)


def ifca_round(
    shards: ct.Shards, learner: ct.Learner, k: int, starts: int = 1, **settings: Any
) -> Callable[[], object]:
    """A compiled round of IFCA in which everybody takes part; `settings` are those of the simulation."""
    algorithm = ct.IFCA(k=k, n_init=starts, init=ct.Random())
    learner = learner.for_data(shards.spec)
    simulation = ct.Simulation(shards, **settings).with_learner(learner)
    run = Run(algorithm, simulation, learner, seed=0, observers=())
    run.begin()
    step = Step(jnp.asarray(0), jax.random.key(1))

    def once() -> object:
        # the compiled program consumes its states, so each repetition starts from a copy
        copy = simulation.place(jax.tree.map(jnp.copy, run.states))
        return compiled_round(algorithm, simulation, learner, copy, step)

    return once


def forward_flops(widths: Sequence[int]) -> int:
    """Matrix-product arithmetic of one example's way through an MLP."""
    return sum(2 * a * b for a, b in pairwise(widths))


def training_flops(widths: Sequence[int]) -> int:
    """Matrix-product arithmetic that one example needs in one training step of an MLP.

    Forward, gradient of the weights, and gradient of the activations except those of the input.
    """
    return 2 * forward_flops(widths) + forward_flops(widths[1:])


def torch_seconds(
    shards: ct.Shards, widths: Sequence[int], lr: float, steps: int, models: int
) -> float | None:
    """Seconds that plain PyTorch takes, one client after another as the papers' released code does.

    Each client evaluates `models` models, then trains one. None where torch is not installed.
    """
    try:
        import torch
    except ImportError:
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = [
        (torch.from_numpy(np.array(x)).to(device), torch.from_numpy(np.array(y)).long().to(device))
        for x, y in shards
    ]

    def network() -> torch.nn.Module:
        layers: list[torch.nn.Module] = []
        for a, b in pairwise(widths):
            layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1]).to(device)

    candidates = [network() for _ in range(models)]

    def loop() -> None:
        for x, y in data:
            with torch.no_grad():
                losses = [torch.nn.functional.cross_entropy(net(x), y).item() for net in candidates]
            net = network()
            net.load_state_dict(candidates[int(np.argmin(losses))].state_dict())
            optimiser = torch.optim.SGD(net.parameters(), lr=lr)
            for _ in range(steps):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                optimiser.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return fastest(loop, repeats=1, warm_up=False)
