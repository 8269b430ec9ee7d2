"""Fresh models are the model's own, one per key."""

import jax
import numpy as np
from support.exchanges import server_of, started

import coterie as ct
from coterie import keys
from coterie.initialise.random import fresh_model
from coterie.models import stacked

DATA = ct.data.mixed_regression(clients=2, examples=3, dim=4)
LEARNER = ct.Learner(ct.models.Linear(), "squared")


def same(models, others):
    for leaf, own in zip(jax.tree.leaves(models), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(leaf, own, rtol=1e-6)


def test_every_start_and_cluster_has_the_model_of_its_key():
    federation = ct.Simulation(DATA.train)
    server = server_of(federation, LEARNER, seed=3)
    found = started(federation, LEARNER, ct.Random(), k=3, starts=2, seed=3)
    for r, models in enumerate(found):
        for j, key in enumerate(keys.numbered(server.start_key(r), 3)):
            same(stacked.take(models, j), server.learner.init(key, DATA.train.spec))
            same(stacked.take(models, j), fresh_model(server, server.start_key(r), j))
    assert (
        len({matrix.tobytes() for models in found for matrix in np.asarray(stacked.to_matrix(models))}) == 6
    )


def test_a_model_does_not_depend_on_how_many_there_are():
    federation = ct.Simulation(DATA.train)
    few = started(federation, LEARNER, ct.Random(), k=3, starts=2)[0]
    many = started(federation, LEARNER, ct.Random(), k=5, starts=3)[0]
    same(few, stacked.take(many, slice(3)))


def test_keys_of_a_table_do_not_depend_on_its_size():
    small, large = keys.grid(jax.random.key(0), 2, 3), keys.grid(jax.random.key(0), 4, 5)
    np.testing.assert_array_equal(jax.random.key_data(small), jax.random.key_data(large)[:2, :3])
    assert len(np.unique(jax.random.key_data(large).reshape(-1, 2), axis=0)) == 20
