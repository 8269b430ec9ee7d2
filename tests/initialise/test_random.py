"""Fresh models are the model's own, one per key."""

import jax
import numpy as np

import coterie as ct
from coterie import keys


def test_every_restart_and_cluster_has_the_model_of_its_key():
    data = ct.data.mixed_regression(clients=2, examples=3, dim=4)
    learner = ct.Learner(ct.models.Linear(bias=True), "squared").for_data(data.train.spec)
    table = keys.grid(jax.random.key(3), 2, 3)
    models = ct.Random()(ct.Simulation(data.train), learner, table)
    for r in range(2):
        for j in range(3):
            one = learner.init(table[r, j], data.train.spec)
            for leaf, own in zip(jax.tree.leaves(models), jax.tree.leaves(one), strict=True):
                np.testing.assert_allclose(leaf[r, j], own, rtol=1e-6)


def test_keys_of_a_table_do_not_depend_on_its_size():
    small, large = keys.grid(jax.random.key(0), 2, 3), keys.grid(jax.random.key(0), 4, 5)
    np.testing.assert_array_equal(jax.random.key_data(small), jax.random.key_data(large)[:2, :3])
    assert len(np.unique(jax.random.key_data(large).reshape(-1, 2), axis=0)) == 20
