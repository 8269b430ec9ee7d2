"""The same clients with other examples, drawn inside a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.errors import SettingError
from coterie.learn.tasks import MeasureLosses

SIZES = (3, 1, 8, 3, 2)
LEARNER = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=0.1, steps=1))


def shards(x, y):
    return ct.Shards.from_lists(
        [a[:n] for a, n in zip(x, SIZES, strict=True)], [b[:n] for b, n in zip(y, SIZES, strict=True)]
    )


def data(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(5, 8, 2)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)


def losses(simulation):
    model = LEARNER.for_data(simulation.spec).init(jax.random.key(0), simulation.spec)
    return simulation.ask(MeasureLosses(jax.tree.map(lambda a: a[None], model))).report.losses


def test_asks_are_answered_from_the_new_examples_whatever_the_buckets():
    old, new = data(0), data(1)
    simulation = ct.Simulation(shards(*old)).with_learner(LEARNER)
    expected = losses(ct.Simulation(shards(*new)).with_learner(LEARNER))
    assert not np.allclose(losses(simulation), expected)
    np.testing.assert_allclose(losses(simulation.with_examples(*map(jnp.asarray, new))), expected, rtol=1e-5)
    traced = jax.jit(lambda s, x, y: losses(s.with_examples(x, y)))(simulation, *new)
    np.testing.assert_allclose(traced, expected, rtol=1e-5)


def test_clients_keep_their_positions_when_they_were_selected_in_another_order():
    x, y = data(2)
    chosen = ct.Simulation(shards(*data(3))[[2, 0, 3]]).with_learner(LEARNER)
    expected = losses(ct.Simulation(shards(x, y)[[2, 0, 3]]).with_learner(LEARNER))
    other = chosen.with_examples(jnp.asarray(x[[2, 0, 3]]), jnp.asarray(y[[2, 0, 3]]))
    np.testing.assert_allclose(losses(other), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "resident, features, targets, sentence",
    [
        (True, (5, 7, 2), (5, 8), r"x must have shape \(5, 8, 2\) for these clients, not \(5, 7, 2\)"),
        (True, (5, 8, 2), (4, 8), r"y must have shape \(5, 8\)"),
        (False, (5, 8, 2), (5, 8), "lives on the devices"),
    ],
)
def test_other_shapes_and_data_that_is_elsewhere_are_refused(resident, features, targets, sentence):
    simulation = ct.Simulation(shards(*data(0)), resident=resident)
    with pytest.raises(SettingError, match=sentence):
        simulation.with_examples(np.zeros(features), np.zeros(targets))
