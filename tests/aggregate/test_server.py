"""Optimisers on the server, against the papers' formulas in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.references import local_update, loss

import coterie as ct
from coterie.aggregate import FedAdam, FedAvgM, Mean, Median
from coterie.errors import SettingError
from coterie.models import stacked

K, ROUNDS = 3, 6
MOMENTUM = FedAvgM(lr=0.7, momentum=0.8)
ADAM = FedAdam(lr=0.05, b1=0.6, b2=0.9, eps=0.01)


def fed_avg_m(w, means, lr, momentum):
    """Hsu, Qi and Brown: the update of a round is dw = w - mean; v <- beta v + dw, w <- w - lr v."""
    w, v = w.copy(), np.zeros_like(w)
    for mean in means:
        v = momentum * v + (w - mean(w))
        w = w - lr * v
    return w


def fed_adam(w, means, lr, b1, b2, eps):
    """Algorithm 2 of Reddi et al., FedAdam: x is w, and Delta_t the mean of what clients moved by."""
    x, m, v = w.copy(), np.zeros_like(w), np.full_like(w, eps**2)  # line 1: v_{-1} >= tau^2
    for mean in means:
        delta = mean(x) - x
        m = b1 * m + (1 - b1) * delta
        v = b2 * v + (1 - b2) * delta**2
        x = x + lr * m / (np.sqrt(v) + eps)
    return x


CASES = {
    "momentum": (MOMENTUM, partial(fed_avg_m, lr=0.7, momentum=0.8)),
    "adam": (ADAM, partial(fed_adam, lr=0.05, b1=0.6, b2=0.9, eps=0.01)),
}


def models(seed=0):
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((K, 2, 2)), "b": rng.standard_normal(K)}


def as_32(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)


step = jax.jit(lambda optimiser, *arguments: optimiser.step(*arguments), static_argnums=0)


@pytest.mark.parametrize("case", CASES)
def test_every_cluster_goes_as_the_formulas_say(case):
    """A cluster that nobody contributes to in a round knows nothing of that round: neither does its state."""
    optimiser, reference = CASES[case]
    begin = models()
    here, kept = as_32(begin), optimiser.start(as_32(begin))
    active = np.array([[1, 0, 1], [0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1], [0, 1, 1]], bool)
    means = [models(10 + t) for t in range(ROUNDS)]
    for t in range(ROUNDS):
        target = stacked.where(active[t], as_32(means[t]), as_32(models(99)))
        before, state = here, kept
        kept, here = step(optimiser, kept, here, target, jnp.asarray(active[t]))
        for old, new in ((before, here), (state, kept)):
            for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
                same = (np.asarray(a) == np.asarray(b)).reshape(K, -1).all(axis=1)
                np.testing.assert_array_equal(same, ~active[t])
    for name in begin:
        for j in range(K):
            mine = [lambda w, t=t: means[t][name][j] for t in range(ROUNDS) if active[t, j]]  # noqa: B023
            np.testing.assert_allclose(here[name][j], reference(begin[name][j], mine), rtol=1e-4, atol=1e-5)


def test_a_cluster_that_diverged_leaves_the_others_alone():
    here = as_32(models())
    broken = jax.tree.map(lambda a: a.at[1].set(jnp.nan), here)
    for optimiser, _ in CASES.values():
        _, after = step(optimiser, optimiser.start(here), here, broken, jnp.ones(K, bool))
        for leaf in jax.tree.leaves(after):
            finite = np.isfinite(np.asarray(leaf)).reshape(K, -1)
            assert finite[[0, 2]].all() and not finite[1].any()


# -- in a run ---------------------------------------------------------------------------------------------

DATA = ct.data.mixed_regression(k=2, clients=6, examples=[3, 5, 8, 4, 6, 7], dim=3, noise=0.1, seed=1)
CLIENTS = [(x.astype(float), y.astype(float)) for x, y in DATA.train]
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))
STARTS = np.random.default_rng(2).standard_normal((2, 3)).astype(np.float32)


def fitted(algorithm):
    found = algorithm.fit(DATA.train, LEARNER, seed=3)
    return np.asarray(stacked.to_matrix(found.models))


@pytest.mark.parametrize(
    ("case", "inner"),
    [("momentum", Median()), pytest.param("adam", Mean(), marks=pytest.mark.slow)],
    ids=["median", "mean"],
)
def test_one_model_is_trained_as_the_formulas_say(case, inner):
    optimiser, reference = CASES[case]
    one = type(optimiser)(**{**vars(optimiser), "aggregate": inner})

    def together(w):
        """What clients reach from a model, as one."""
        reached = [local_update(w, x, y, 0.05, 2) for x, y in CLIENTS]
        return np.mean(reached, axis=0) if inner == Mean() else np.median(reached, axis=0)

    found = fitted(ct.IFCA(k=1, rounds=ROUNDS, init=STARTS[:1], aggregate=one))
    wanted = reference(STARTS[0].astype(float), [together] * ROUNDS)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)
    plain = fitted(ct.IFCA(k=1, rounds=ROUNDS, init=STARTS[:1], aggregate=inner))
    assert np.abs(found - plain).max() > 0.01


def test_without_momentum_and_with_whole_steps_it_is_plain_averaging():
    inner, how = Median(), {"k": 1, "rounds": ROUNDS, "init": STARTS[:1]}
    plain = fitted(ct.IFCA(**how, aggregate=inner))
    found = fitted(ct.IFCA(**how, aggregate=FedAvgM(lr=1.0, momentum=0.0, aggregate=inner)))
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_cluster_that_nobody_belongs_to_stays_where_it_is():
    optimiser, reference = CASES["momentum"]
    starts = np.stack([STARTS[0], np.full(3, 100, np.float32)])
    assert all(loss(starts[0], x, y) < loss(starts[1], x, y) for x, y in CLIENTS)
    found = fitted(ct.IFCA(k=2, rounds=2, init=starts, aggregate=optimiser))
    np.testing.assert_array_equal(found[1], starts[1])
    together = [lambda w: np.mean([local_update(w, x, y, 0.05, 2) for x, y in CLIENTS], axis=0)] * 2
    np.testing.assert_allclose(found[0], reference(starts[0].astype(float), together), rtol=1e-4, atol=1e-5)


# -- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAvgM(lr=0.0), "the server's lr must be a positive number, not 0.0"),
        (lambda: FedAvgM(lr=-1.0), "the server's lr must be a positive number, not -1.0"),
        (lambda: FedAdam(lr=float("inf")), "the server's lr must be a positive number, not inf"),
        (lambda: FedAdam(lr=float("nan")), "lr must be a number, not nan"),
        (lambda: FedAvgM(momentum=-0.1), "momentum must be at least 0 and below 1, not -0.1"),
        (lambda: FedAvgM(momentum=1.0), "momentum must be at least 0 and below 1, not 1.0"),
        (lambda: FedAvgM(momentum=float("nan")), "momentum must be a number, not nan"),
        (lambda: FedAdam(b1=1.0), "b1 must be at least 0 and below 1, not 1.0"),
        (lambda: FedAdam(b2=-0.5), "b2 must be at least 0 and below 1, not -0.5"),
        (lambda: FedAdam(eps=0.0), "eps must be a positive number, not 0.0"),
        (lambda: FedAdam(eps=float("inf")), "eps must be a positive number, not inf"),
        (lambda: FedAdam(eps=float("nan")), "eps must be a number, not nan"),
        (lambda: FedAvgM(aggregate=FedAdam()), "one server optimiser cannot be inside another"),
    ],
)
def test_what_makes_no_sense_is_refused(make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make()
