"""A round of IFCA against the same round of others: FedJAX's HypCluster, and PyTorch client by client.

80 clients x 200 images of 784 pixels in four groups, MLP 784-200-10, 10 full-batch steps, k = 4. Every peer
starts from the same models and must find the same clusters and, but for rounding in float32, the same new
models: what does other work is no peer. On a GPU: --clients 1200 --precision tf32.

`pip install torch fedjax` installs both into the environment of Coterie; one that is missing is left out.
FedJAX runs under the same JAX, with its `jit` backend (on two cores, with a JAX that still has what its
`pmap` backend needs, that took a third longer), on batches of all examples that are not shuffled.
"""

from __future__ import annotations

import argparse
import warnings
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import LR, STEPS, WIDTHS, K, compiled, fastest, installed, median_ratio, report
from torch_ifca import Plain, Round, torch_round

import coterie as ct


def problem(clients: int, examples: int) -> tuple[ct.Shards, Plain]:
    """Clients with images, and models to begin with, of which each is right about the labels of a group."""
    rng = np.random.default_rng(0)
    models = []
    for _ in range(K):
        layers = pairwise(WIDTHS)
        shapes = [(shape, a**-0.5) for a, b in layers for shape in ((b, a), (b,))]
        models.append([rng.uniform(-most, most, shape).astype(np.float32) for shape, most in shapes])
    xs = [rng.integers(0, 256, (examples, WIDTHS[0])).astype(np.float32) / 255 for _ in range(clients)]
    ys = [outputs(models[i % K], x).argmax(axis=1) for i, x in enumerate(xs)]
    return ct.Shards.from_lists(xs, ys, classes=WIDTHS[-1]), models


def outputs(model: Any, x: Any) -> Any:
    """What a model makes of examples, in NumPy and in JAX."""
    *first, weight, bias = model
    for w, b in zip(first[::2], first[1::2], strict=True):
        x = (x @ w.T + b).clip(0)
    return x @ weight.T + bias


def flat(model: Any) -> np.ndarray:
    """All parameters of a model in a row."""
    return np.concatenate([np.ravel(array) for array in model])


def coterie_round(shards: ct.Shards, models: Plain, precision: str, **settings: Any) -> Round:
    learner = ct.Learner(ct.models.MLP(hidden=WIDTHS[1:-1]), local=ct.SGD(lr=LR, steps=STEPS))
    ifca = ct.IFCA(k=K, n_init=1, init=np.stack([flat(model) for model in models]))
    round_: Any = compiled(ifca, shards, learner, precision=precision, **settings)

    def once() -> tuple[Any, Plain]:
        state, _ = round_()
        return state.assignment[0], [[leaf[0, j] for leaf in jax.tree.leaves(state.models)] for j in range(K)]

    return once


def fedjax_round(shards: ct.Shards, models: Plain, precision: str) -> Round:
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # FedJAX 0.0.17 calls it by the name that JAX gave up in 0.6
    import fedjax
    from fedjax.algorithms.hyp_cluster import hyp_cluster

    def loss(model: Any, batch: Any, key: Any) -> jax.Array:
        log = jax.nn.log_softmax(outputs(model, batch["x"]))
        return -jnp.take_along_axis(log, batch["y"][:, None], axis=1)[:, 0]

    clients = [
        (i, fedjax.ClientDataset({"x": np.array(x), "y": np.array(y)}), jax.random.PRNGKey(i))
        for i, (x, y) in enumerate(shards)
    ]
    examples = int(shards.sizes.max())
    with fedjax.for_each_client_backend("jit"):
        algorithm = hyp_cluster(
            loss,
            client_optimizer=fedjax.optimizers.sgd(LR),
            server_optimizer=fedjax.optimizers.sgd(1.0),  # the new model is the mean of the clients'
            maximization_batch_hparams=fedjax.PaddedBatchHParams(batch_size=examples),
            expectation_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
                batch_size=examples, num_epochs=None, num_steps=STEPS, skip_shuffle=True
            ),
        )
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")  # those that FedJAX donates
    start = algorithm.init([list(map(jnp.asarray, model)) for model in models])

    def once() -> tuple[Any, Plain]:
        with jax.default_matmul_precision("float32" if precision == "float32" else "tensorfloat32"):
            state, told = algorithm.apply(start, clients)
        return [told[i]["cluster_id"] for i in range(len(clients))], state.cluster_params

    return once


PEERS = {
    "FedJAX": ("fedjax", fedjax_round),
    "PyTorch": ("torch", lambda shards, models, precision: torch_round(shards, models, LR, STEPS, precision)),
}


def check_same(theirs: Round, ours: Round, start: Plain) -> None:
    """Fail unless two rounds do the same work: the same clusters, and models that moved to the same place."""
    (their_clusters, their_models), (our_clusters, our_models) = theirs(), ours()
    np.testing.assert_array_equal(np.asarray(their_clusters), np.asarray(our_clusters))
    for their, our, old in zip(map(flat, their_models), map(flat, our_models), map(flat, start), strict=True):
        # where rounding switches a ReLU on for an example, a few weights differ by far more than by rounding
        apart = np.linalg.norm(their - our) / np.linalg.norm(our - old)
        assert apart < 1e-3, f"the models of two rounds are {apart:.1e} of their way apart"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=80)
    options.add_argument("--examples", type=int, default=200)
    options.add_argument("--precision", choices=("float32", "tf32"), default="float32")
    given = options.parse_args()
    shards, models = problem(given.clients, given.examples)
    ours = {
        "in the span of the examples where that is less": coterie_round(shards, models, given.precision),
        "in the usual way": coterie_round(shards, models, given.precision, sample_space=False),
    }
    exact = coterie_round(shards, models, "float32")
    for name, (package, peer) in PEERS.items():
        if not installed(package, name):
            continue
        theirs = peer(shards, models, "float32")
        check_same(theirs, exact, models)
        if given.precision != "float32":
            theirs = peer(shards, models, given.precision)
        for way, own in ours.items():
            ratio = median_ratio(
                lambda theirs=theirs: fastest(theirs, repeats=2, warm_up=False),
                lambda own=own: fastest(own, repeats=3),
            )
            what = f"a round of {given.clients} x {given.examples}, {way}, as fast as {name}'s"
            report(what, ratio)


if __name__ == "__main__":
    main()
