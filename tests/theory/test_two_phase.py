"""Section V of the mixed-regression paper: two phases lead where only the oracle would, from any start."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from coterie.algorithms import FedX
from coterie.federation.simulation import Simulation
from coterie.papers import mixed_regression
from coterie.papers.experiment import Point
from coterie.papers.figures import find
from coterie.papers.mixed_regression import NEAR, Convergence


class Sooner(Convergence):
    """The same with clusters that move by the mean of their own clients, and so need fewer rounds."""

    def _fedx(self, rounds):
        return FedX(self.k, n_init=1, rounds=rounds, normalise="cluster")


@pytest.fixture(autouse=True)
def one_program_for_all_trials(monkeypatch):
    """One device, since several have another number of anchors in every trial; and no batches are timed."""

    def simulation(shards, **settings):
        return Simulation(shards, **settings | {"batch": 50, "devices": jax.local_devices()[:1]})

    monkeypatch.setattr(mixed_regression, "Simulation", simulation)


@pytest.mark.parametrize("figure", [1, 2, 3])
def test_the_error_is_the_oracles_on_at_least_19_of_20_seeds(figure):
    paper = find(f"mixed-regression/fig{figure}", "paper", "text", trials=20)
    experiment = replace(Sooner(**paper.settings()), rate=0.1, rounds=80)

    def last(name):
        return experiment.compute(Point(name, {}), 0, lambda done: None)["error"][:, -1]

    oracle = last("oracle")
    assert (last("s=5") <= NEAR * oracle).sum() >= 19
    assert (last("fedavg") > 10 * oracle).all()  # one model for all is no use here
    assert np.median(oracle) < 0.06
