"""What SR-FCA has after each REFINE, from one run."""

import jax.numpy as jnp
import numpy as np
from support.observers import moment

import coterie as ct
from coterie.algorithms.algorithm import State
from coterie.clustering.history import Event
from coterie.models import stacked
from coterie.papers.srfca.course import Stages

LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=4))


def test_what_a_run_that_ended_there_would_give():
    data = ct.data.mixed_regression(k=3, clients=14, examples=12, dim=5, noise=0.6, scale=2.0, seed=0)
    stages = Stages()

    def fit(refines, *observers):
        algorithm = ct.SRFCA(rounds=4, refines=refines, threshold="12%")
        return algorithm.fit(data.train, LEARNER, seed=0, observers=observers)

    found = stages.results(fit(2, stages))
    assert len(found) == 2
    for refines, stage in enumerate(found, 1):
        ended = fit(refines)
        np.testing.assert_array_equal(stage.assignment, ended.assignment)
        np.testing.assert_array_equal(stacked.to_matrix(stage.models), stacked.to_matrix(ended.models))


def test_clients_of_clusters_that_are_too_small_are_where_they_would_end():
    stages, states = Stages(), State({"w": jnp.zeros((1, 2, 3))}, jnp.array([[0, -1, 1, -1]]))
    told = Event(4, "refine", "", {"nearest": {"1": 1, "3": 0}}, [[]], [[1, 1]], 0, 0, 0, 0.0)
    stages.after(moment([told], 4)._replace(states=states))
    assert [stage.assignment.tolist() for stage in stages.refined] == [[0, 1, 1, 0]]
