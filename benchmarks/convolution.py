"""Clients that train convolutional networks, against a tuned training loop of one such network.

The CIFAR-10 network of the IFCA paper's code and ResNet-9; every client passes once over its images in
batches of 50. The loop trains one model on all of the images, with the best of a few batch sizes, that of the
clients among them; both are counted in images per second. Claim: the clients are at least as fast. The other
lines compare ways to compute the same clients with what the library chooses: convolutions as JAX has them,
one client after another and all at once (grouped convolutions), and all at once with products of patches.

The defaults are small networks on small images, for two CPU cores. On a GPU: --clients 200 16 --examples 500
3125 --sizes 24 32 --width 64 --batches 50 200 1000 --precision tf32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from measure import PRECISION, fastest, median_ratio, report

import coterie as ct
from coterie.aggregate import Summing
from coterie.learn.task import Client, Reply, Task
from coterie.models import convolution

LR, BATCH = 0.01, 50
# how convolutions are spelled, if not as the library does, and whether all clients are computed at once
WAYS: dict[str, tuple[Callable[..., Any] | None, bool]] = {
    "one by one": (None, False),
    "all at once": (None, True),
    "one by one with convolutions as JAX has them": (convolution.plain, False),
    "all at once with grouped convolutions": (convolution.plain, True),
    "all at once with products of patches": (convolution.by_patches, True),
}


@dataclass(frozen=True)
class Spelled:
    """A model whose convolutions are computed in another way than the library's."""

    model: Any
    way: Callable[..., Any]

    def init(self, key: Any, x: Any) -> Any:
        return self.model.init(key, x)

    def apply(self, params: Any, x: Any) -> Any:
        def convolved(window: Any, on_cpu: bool) -> Any:
            return lambda x, kernel: self.way(x, kernel, window)

        with mock.patch.object(convolution, "convolution", convolved):
            return self.model.apply(params, x)


class Train(Task):
    """Train a model on the shard."""

    start: Any

    def __call__(self, client: Client) -> Reply:
        trained = client.learner.train(self.start, client.shard, client.key, jnp.asarray(0))
        return Reply(value=trained)


def images(clients: int, examples: int, size: int) -> ct.Shards:
    """Clients with random images."""
    rng = np.random.default_rng(0)
    xs = rng.random((clients, examples, size, size, 3), np.float32)
    return ct.Shards.from_lists(list(xs), list(rng.integers(0, 10, (clients, examples))), classes=10)


def cohort(shards: ct.Shards, model: Any, batch: Any, precision: Any) -> Callable[[], float]:
    """Images per second of clients that all train the same model."""
    learner = ct.Learner(model, local=ct.SGD(lr=LR, epochs=1, batch_size=BATCH))
    simulation = ct.Simulation(shards, batch=batch, precision=precision).with_learner(learner)
    start = learner.init(jax.random.key(0), shards.spec)
    task = simulation.place(Train(start))

    def once() -> object:
        return simulation.ask(task, reduce=Summing(1)).value

    jax.block_until_ready(once())
    return lambda: shards.sizes.sum() / fastest(once, repeats=1, warm_up=False)


def loop(shards: ct.Shards, model: Any, batch: int, precision: str) -> Callable[[], float]:
    """Images per second of one model that is trained on all images, in batches of so many."""
    learner = ct.Learner(model)
    x, y = (jnp.asarray(np.concatenate([part[i] for part in shards])) for i in (0, 1))
    steps = len(x) // batch

    def mean_loss(params: Any, x: Any, y: Any) -> Any:
        return learner.per_example(params, x, y).mean()

    @jax.jit
    def epoch(params: Any, key: Any, x: Any, y: Any) -> Any:  # images that are no arguments are compiled in
        def step(params: Any, rows: Any) -> Any:
            gradient = jax.grad(mean_loss)(params, x[rows], y[rows])
            return jax.tree.map(lambda p, g: p - LR * g, params, gradient), None

        with jax.default_matmul_precision(PRECISION[precision]):
            order = jax.random.permutation(key, len(x))[: steps * batch].reshape(steps, batch)
            return jax.lax.scan(step, params, order)[0]

    start = jax.device_put(learner.init(jax.random.key(0), shards.spec), x.device)
    key = jax.device_put(jax.random.key(1), x.device)
    jax.block_until_ready(epoch(start, key, x, y))
    return lambda: steps * batch / fastest(lambda: epoch(start, key, x, y), repeats=1, warm_up=False)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--networks", nargs="+", choices=("CNN", "ResNet-9"), default=["CNN", "ResNet-9"])
    options.add_argument("--clients", type=int, nargs=2, default=[4, 2], help="of the CNN and of ResNet-9")
    options.add_argument("--examples", type=int, nargs=2, default=[100, 50])
    options.add_argument("--sizes", type=int, nargs=2, default=[24, 16], help="of the images")
    options.add_argument("--width", type=int, default=16, help="of the networks; 64 is that of the papers")
    options.add_argument("--batches", type=int, nargs="+", default=[100, 200], help="of the loop, beside 50")
    options.add_argument("--precision", choices=tuple(PRECISION), default="float32")
    options.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), help="others to compare")
    given = options.parse_args()
    cnn = replace(ct.models.CNN.cifar10("authors"), channels=(given.width, given.width))
    nets = {"CNN": cnn, "ResNet-9": ct.models.ResNet9(width=given.width, groups=min(32, given.width))}
    for i, (name, net) in enumerate(nets.items()):
        if name not in given.networks:
            continue
        clients, examples = given.clients[i], given.examples[i]
        shards = images(clients, examples, given.sizes[i])
        net, of_all = net.for_data(shards.spec), f"{name}, {clients} x {examples}"
        chosen = cohort(shards, net, "auto", given.precision)
        sizes = {min(batch, clients * examples) for batch in (BATCH, *given.batches)}
        loops = [loop(shards, net, batch, given.precision) for batch in sizes]
        ratio = median_ratio(chosen, lambda loops=loops: max(rate() for rate in loops))
        report(f"{of_all}, images per second against a loop over one model", ratio, "at least 1x")
        for what in given.ways:
            spelled, together = WAYS[what]
            model, batch = net if spelled is None else Spelled(net, spelled), clients if together else 1
            # the slow ways are far slower: once is enough
            ratio = median_ratio(cohort(shards, model, batch, given.precision), chosen, pairs=1)
            report(f"{of_all}, {what}, as fast as what is chosen", ratio)


if __name__ == "__main__":
    main()
