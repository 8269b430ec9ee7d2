"""The same experiment, seed and data in a simulation and over Flower: the same groups, the same models."""

import jax
import numpy as np
import pytest
from support.in_process import InProcessGrid

import coterie as ct
from coterie.flower import FlowerFederation, JaxClient, Own, client_app

REGRESSION = ct.data.mixed_regression(clients=8, k=2, dim=5, examples=20, seed=3)
DIGITS = ct.data.rotated_digits(clients=6, rotations=(0, 90), unseen=0, seed=1)

# a new algorithm is one more line; clients compile less for equal k and n_init
ALGORITHMS = {
    "ifca": ct.IFCA(k=2, rounds=4, n_init=2),
    "ifca, some clients": ct.IFCA(k=2, rounds=4, n_init=2, participation=0.5),
    "ifca, by examples": ct.IFCA(k=2, rounds=3, n_init=2, weight="examples"),
    "ifca, gradients": ct.IFCA(k=2, rounds=3, n_init=2, average="gradients"),
    "ifca, settled": ct.IFCA(k=2, rounds=7, n_init=2, settle=2, recheck=3),
    "ifca, shared weights": ct.IFCA(k=2, rounds=3, n_init=2, share=lambda name: name.endswith("0.bias")),
    "ifca, frozen weights": ct.IFCA(
        k=2, rounds=3, n_init=2, share=lambda name: name.endswith("0.bias"), preset="authors"
    ),
    "ifca, revived": ct.IFCA(k=4, rounds=5, n_init=2, empty="revive"),
    "ifca, re-sampled": ct.IFCA(k=2, rounds=3, n_init=2, average="gradients", resample=True),
    "ifca, farthest": ct.IFCA(k=2, rounds=2, n_init=2, init=ct.FarthestLoss(rounds=2)),
    "ifca, one shot": ct.IFCA(k=2, rounds=2, n_init=2, init=ct.OneShot(rounds=2)),
    "ifca, components": ct.IFCA(rounds=2, init=ct.Components(rounds=2, threshold="40%")),
    "ifca, server momentum": ct.IFCA(k=2, rounds=3, n_init=2, aggregate=ct.FedAvgM(momentum=0.5)),
    "fedx": ct.FedX(k=2, rounds=3, n_init=2),
    "fedx, moment descent": ct.FedX(
        k=2, rounds=3, n_init=2, init=ct.MomentDescent(anchors=4, iterations=2, alpha=1.0, beta=1.0)
    ),
    "fedx, soft": ct.FedX(k=2, rounds=3, n_init=2, temperature=0.5),
    "srfca": ct.SRFCA(rounds=2, refines=2, threshold="40%"),
    "srfca, as printed": ct.SRFCA(
        rounds=3, refines=1, threshold="40%", distance="l2", average="gradients", radius=2.0
    ),
    "srfca, re-sampled, then FedProx": ct.SRFCA(
        rounds=2, refines=1, threshold="40%", resample=True, final_rounds=2, final_proximal=0.1
    ),
    "cfl": ct.CFL(rounds=4, eps1=10.0, eps2=0.001, gamma=0.0, warmup=1),
    "fedsoft": ct.FedSoft(k=2, rounds=4, select=3),
    "oracle": ct.Oracle(REGRESSION.truth, rounds=3),
    "one-shot k-means": ct.OneShotKMeans(rounds=3, alone=2),
    "one-shot k-means, no training after it": ct.OneShotKMeans(2, rounds=0, alone=2),
    "global, trimmed": ct.Global(rounds=3, aggregate=ct.TrimmedMean(0.2)),
    "global, Adam": ct.Global(rounds=3, aggregate=ct.FedAdam()),
    "global": ct.Global(rounds=3),
    "local": ct.Local(rounds=3),
    "local, some clients": ct.Local(rounds=4, participation=0.5),
}
PROBLEMS = {
    "regression": (
        REGRESSION,
        ct.Learner(ct.models.Linear(bias=True), loss="squared", local=ct.SGD(lr=0.05, steps=3)),
    ),
    "single steps": (
        REGRESSION,
        ct.Learner(ct.models.Linear(bias=True), loss="squared", local=ct.SGD(lr=0.05, steps=1)),
    ),
    "minibatches": (
        REGRESSION,
        ct.Learner(
            ct.models.Linear(), loss="squared", local=ct.SGD(lr=0.05, epochs=1, batch_size=8, momentum=0.5)
        ),
    ),
    "digits": (
        DIGITS,
        ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(lr=0.1, epochs=1, batch_size=32, momentum=0.5)),
    ),
}


def grid_of(data, learner):
    def app(i):
        test = None if data.test is None else data.test[[i]]
        own = Own(str(data.train.ids[i]), data.train[[i]], test)
        return client_app(lambda context: JaxClient(learner, own))

    return InProcessGrid([app(i) for i in range(len(data.train))])


# a network takes far longer to compile than to train: one stands for the others there
CASES = [
    (name, "single steps" if getattr(algorithm, "average", "models") == "gradients" else "regression")
    for name, algorithm in ALGORITHMS.items()
] + [("ifca", "digits"), ("local", "minibatches")]


@pytest.mark.parametrize("name, problem", CASES)
def test_flower_and_simulation_agree(name, problem):
    data, learner = PROBLEMS[problem]
    algorithm = ALGORITHMS[name]
    # programs for one device and one batch compile faster
    simulation = ct.Simulation(data.train, batch=len(data.train), devices=jax.local_devices()[:1])
    simulated = algorithm.fit(simulation, learner, seed=5)
    flower = FlowerFederation(grid_of(data, learner), min_clients=len(data.train), poll=0.001)
    real = algorithm.fit(flower, learner, seed=5)
    assert real.ids.tolist() == list(map(str, simulated.ids))
    np.testing.assert_array_equal(real.assignment, simulated.assignment)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), real.models, simulated.models
    )
    for ours, theirs in zip(real.history, simulated.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert (ours.asked, ours.answered, ours.sizes) == (theirs.asked, theirs.answered, theirs.sizes)
        assert (ours.bytes_down, ours.bytes_up) == (theirs.bytes_down, theirs.bytes_up)
        assert ours.bytes_spared == theirs.bytes_spared
    for ours, theirs in zip(real.history.events, simulated.history.events, strict=True):
        assert (ours.after, ours.name, ours.moved, ours.asks) == (
            theirs.after,
            theirs.name,
            theirs.moved,
            theirs.asks,
        )
        assert (ours.bytes_down, ours.bytes_up) == (theirs.bytes_down, theirs.bytes_up)
