"""What the benchmarks share: timing, the rates that this device reaches right now, and what is timed."""

from __future__ import annotations

import importlib.util
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
from coterie.algorithms.algorithm import Algorithm
from coterie.algorithms.distances import CrossLoss
from coterie.algorithms.driver import Run
from coterie.algorithms.lockstep import in_step
from coterie.algorithms.records import Count
from coterie.algorithms.rounds import Step, compiled_round
from coterie.federation.devices import mesh, spread

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


def installed(package: str, name: str) -> bool:
    """Whether there is that package to compare with; if not, print how there would be."""
    if importlib.util.find_spec(package) is None:
        print(f"{name} is not installed: `pip install {package}` to compare with it.", flush=True)
        return False
    return True


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


def copy_rate() -> Callable[[], float]:
    """Bytes per second, read and written, of a pass over a large array, measured anew with every call."""
    ct.use_every_core()
    devices = jax.local_devices()
    rows = 64 if jax.default_backend() == "cpu" else 512
    array = [spread(np.zeros((rows, 2**20), np.float32), grid=mesh(devices), device=devices[0])]
    # in place: on a CPU the pages of a new array take far longer than what is written there
    added = jax.jit(lambda a: a + 1, donate_argnums=0)

    def once() -> object:
        array[0] = added(array[0])
        return array[0]

    return lambda: 2 * array[0].nbytes / fastest(once)


def median_ratio(rate: Callable[[], float], reference: Callable[[], float], pairs: int = PAIRS) -> float:
    """The median of rate / reference over pairs measured in turn: a noisy machine disturbs both alike."""
    return statistics.median(rate() / reference() for _ in range(pairs))


def population(sizes: Sequence[int] | np.ndarray, features: int, classes: int = 10) -> ct.Shards:
    """Clients with that many random examples each."""
    rng = np.random.default_rng(0)
    xs = [rng.random((n, features), np.float32) for n in sizes]
    return ct.Shards.from_lists(xs, [rng.integers(0, classes, n) for n in sizes], classes=classes)


def fresh_models(learner: ct.Learner, simulation: ct.Simulation, count: int) -> Any:
    """So many initial models, stacked, where the simulation computes."""
    spec = simulation.spec
    init = jax.vmap(lambda key: learner.for_data(spec).init(key, spec))
    return simulation.place(init(jax.random.split(jax.random.key(0), count)))


def compiled(
    algorithm: Algorithm[Any], shards: ct.Shards, learner: ct.Learner, **settings: Any
) -> Callable[[], object]:
    """A compiled round in which everybody takes part, from the states that the algorithm starts with.

    `settings` are those of the simulation. A call gives the states after the round, and what it tells.
    """
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


def ifca_round(
    shards: ct.Shards, learner: ct.Learner, k: int, starts: int = 1, **settings: Any
) -> Callable[[], object]:
    """A compiled round of IFCA from random models."""
    return compiled(ct.IFCA(k=k, n_init=starts, init=ct.Random()), shards, learner, **settings)


def all_pairs(simulation: ct.Simulation, own: Any) -> Callable[[], object]:
    """The losses of all clients under the models of all clients, asked for in blocks."""
    everybody = np.ones(simulation.clients, bool)
    return lambda: in_step(simulation, [CrossLoss().measure(own, everybody)], jax.random.key(1), Count())


def forward_flops(widths: Sequence[int]) -> int:
    """Matrix-product arithmetic of one example's way through an MLP."""
    return sum(2 * a * b for a, b in pairwise(widths))


def training_flops(widths: Sequence[int]) -> int:
    """Matrix-product arithmetic that one example needs in one training step of an MLP.

    Forward, gradient of the weights, and gradient of the activations except those of the input.
    """
    return 2 * forward_flops(widths) + forward_flops(widths[1:])
