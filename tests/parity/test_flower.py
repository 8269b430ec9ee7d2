"""The same experiment, seed and data in a simulation and over Flower: the same groups, the same models."""

import jax
import numpy as np
import pytest
from support.in_process import InProcessGrid, apps_of

import coterie as ct
from coterie.flower import FlowerFederation

REGRESSION = ct.data.mixed_regression(clients=6, k=2, dim=5, examples=20, seed=3)
UNEVEN = ct.data.mixed_regression(clients=6, k=2, dim=5, examples=[12, 20] * 3, seed=3)
DIGITS = ct.data.rotated_digits(clients=4, rotations=(0, 90), unseen=0, seed=1)

NETWORKS = 0.3 * np.random.default_rng(0).standard_normal((2, 64 * 8 + 8 + 8 * 10 + 10), np.float32)
WHOLE = ct.SGD(lr=0.05, steps=3)
BATCHES = ct.SGD(lr=0.05, epochs=1, batch_size=8, momentum=0.5)


def regression(local):
    return ct.Learner(ct.models.Linear(bias=True), loss="squared", local=local)


PROBLEMS = {
    "regression": (REGRESSION, regression(WHOLE)),
    "single steps": (REGRESSION, regression(ct.SGD(lr=0.05, steps=1))),
    "minibatches": (REGRESSION, regression(BATCHES)),
    "two sizes": (UNEVEN, regression(WHOLE)),
    # a network takes far longer to compile than to train: a small one
    "digits": (DIGITS, ct.Learner(ct.models.MLP(hidden=(8,)), local=ct.SGD(lr=0.1, steps=2))),
    "crops of digits": (
        DIGITS,
        ct.Learner(
            ct.models.Linear(), local=ct.SGD(lr=0.1, steps=3, batch_size=20), augment=ct.Crop(6, pad=1)
        ),
    ),
}


def bias(name):
    return name.endswith("0.bias")


# a new algorithm is one more line. Nearly all the time is compilation: what does not touch another thing may
# be in one line with it, and clients compile less for equal k and n_init
CASES = {
    "ifca": ("regression", ct.IFCA(k=2, rounds=2, n_init=2)),
    "ifca, a network": ("digits", ct.IFCA(k=2, rounds=2, init=NETWORKS)),
    "ifca, images changed at random": ("crops of digits", ct.IFCA(k=2, rounds=2)),
    "ifca, some clients, by examples, server momentum": (
        "two sizes",
        ct.IFCA(
            k=2,
            rounds=3,
            n_init=2,
            participation=0.5,
            weight="examples",
            aggregate=ct.FedAvgM(momentum=0.5),
        ),
    ),
    "ifca, re-sampled gradients": (
        "single steps",
        ct.IFCA(k=2, rounds=2, n_init=2, average="gradients", resample=True),
    ),
    "ifca, shared weights": ("regression", ct.IFCA(k=2, rounds=2, n_init=2, share=bias)),
    "ifca, one shot, frozen weights": (
        "regression",
        ct.IFCA(k=2, rounds=2, n_init=2, init=ct.OneShot(rounds=2), share=bias, preset="authors"),
    ),
    # nobody takes the second model
    "ifca, revived": (
        "regression",
        ct.IFCA(k=2, rounds=3, init=np.array([[0.0] * 6, [99.0] * 6]), empty="revive"),
    ),
    "ifca, farthest, settled": (
        "regression",
        ct.IFCA(k=2, rounds=5, n_init=2, init=ct.FarthestLoss(rounds=2), settle=1, recheck=2),
    ),
    "ifca, components": (
        "regression",
        ct.IFCA(rounds=2, init=ct.Components(rounds=2, threshold="40%")),
    ),
    "fedx": ("regression", ct.FedX(k=2, rounds=2, n_init=2, keep_best_after=1)),
    "fedx, soft, moment descent": (
        "regression",
        ct.FedX(
            k=2,
            rounds=2,
            n_init=2,
            temperature=0.5,
            init=ct.MomentDescent(anchors=4, iterations=2, alpha=1.0, beta=1.0),
        ),
    ),
    "srfca, then FedProx": (
        "regression",
        ct.SRFCA(rounds=2, refines=2, threshold="40%", final_rounds=2, final_proximal=0.1),
    ),
    "srfca, as printed, re-sampled": (
        "single steps",
        ct.SRFCA(
            rounds=2,
            refines=1,
            threshold="40%",
            distance="l2",
            average="gradients",
            radius=2.0,
            resample=True,
        ),
    ),
    "srfca, merged on held-out examples": ("regression", ct.SRFCA(rounds=2, refines=1, init_steps=6)),
    "discover": ("regression", ct.Discover(rounds=2, alone=3, sweep=2)),
    "cfl": ("regression", ct.CFL(rounds=4, eps1=10.0, eps2=0.001, gamma=0.0, warmup=1)),
    "fedsoft": ("regression", ct.FedSoft(k=2, rounds=2, select=3)),
    "oracle": ("regression", ct.Oracle(REGRESSION.truth, rounds=2)),
    "one-shot k-means": ("regression", ct.OneShotKMeans(rounds=2, alone=2)),
    "one-shot k-means, no training after it": ("regression", ct.OneShotKMeans(2, rounds=0, alone=2)),
    "global, minibatches": ("minibatches", ct.Global(rounds=2)),
    "global, Adam of a trimmed mean": (
        "regression",
        ct.Global(rounds=3, aggregate=ct.FedAdam(aggregate=ct.TrimmedMean(0.2))),
    ),
    "local": ("regression", ct.Local(rounds=2)),
    "local, some clients, minibatches": ("minibatches", ct.Local(rounds=4, participation=0.5)),
}


# settings whose parts are in other lines as well
VARIANTS = {
    "ifca, one shot, frozen weights",
    "ifca, revived",
    "ifca, a network",
    "fedx, soft, moment descent",
    "ifca, components",
    "ifca, images changed at random",
    "srfca, then FedProx",
    "srfca, as printed, re-sampled",
    "srfca, merged on held-out examples",
    "one-shot k-means, no training after it",
    "local, some clients, minibatches",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in CASES]
)
def test_flower_and_simulation_agree(name):
    problem, algorithm = CASES[name]
    data, learner = PROBLEMS[problem]
    # programs for one device and one batch compile faster
    simulation = ct.Simulation(data.train, batch=len(data.train), devices=jax.local_devices()[:1])
    simulated = algorithm.fit(simulation, learner, seed=5)
    flower = FlowerFederation(InProcessGrid(apps_of(learner, data)), min_clients=len(data.train), poll=0.001)
    real = algorithm.fit(flower, learner, seed=5)
    assert real.ids.tolist() == list(map(str, simulated.ids))
    np.testing.assert_array_equal(real.assignment, simulated.assignment)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), real.models, simulated.models
    )
    assert (real.confidence is None) == (simulated.confidence is None) == (name != "discover")
    if name == "discover":
        sure, also = (found.confidence.arrays("") for found in (real, simulated))
        for one in sure:
            np.testing.assert_allclose(sure[one], also[one], rtol=1e-3, atol=1e-4)
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
