"""Section V of the mixed-regression paper: two phases lead where only the oracle would, from any start.

The clients are the paper's in number and size, and Phase 2 is as printed: clients count by their examples,
and all of them enter the mean for every model, w_i = n_i / N. Only eta is ours, as the paper does not print
it: so large that the paper's 400 rounds or fewer suffice.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from coterie.algorithms import FedX
from coterie.federation.simulation import Simulation
from coterie.papers.figures import find
from coterie.papers.mixed_regression import problem
from coterie.papers.mixed_regression.claims import EQUAL
from coterie.papers.mixed_regression.methods import measured

TRIALS = 3


@pytest.fixture(autouse=True)
def one_program_for_all_trials(monkeypatch):
    """One device, since several have another number of anchors in every trial; and no batches are timed."""

    def simulation(shards, **settings):
        return Simulation(shards, **settings | {"batch": 50, "devices": jax.local_devices()[:1]})

    monkeypatch.setattr(problem, "Simulation", simulation)
    problem.simulations.cache_clear()
    yield
    problem.simulations.cache_clear()


def test_phase_2_is_the_printed_one():
    assert (FedX(3).weight, FedX(3).normalise) == ("examples", "participants")


@pytest.mark.parametrize("figure, rounds", [(1, 100), (3, 400)])
def test_the_error_is_the_oracles_in_every_trial(figure, rounds):
    paper = find(f"mixed-regression/fig{figure}", "paper", "text", trials=TRIALS)
    plan = replace(paper, rate=0.1, rounds=rounds)
    ours, oracle = (measured(plan, name, 0)["error"] for name in ("s=5", "oracle"))
    assert ours.shape == (TRIALS, 1 + 5 + rounds)
    assert (ours[:, 0] > 1.5).all()  # from far away
    assert (ours[:, -1] <= EQUAL * oracle[:, -1]).all()
    assert np.median(oracle[:, -1]) < 0.08
