"""Figures 1 to 3 of the mixed-regression paper: what is drawn, and that every method is what it says."""

import json
from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from references import fedx

import coterie as ct
from coterie.papers import reproduce
from coterie.papers.convergence import distance, errors_by_round
from coterie.papers.figures import find
from coterie.papers.mixed_regression import _begun


@pytest.mark.parametrize("seed", range(3))
def test_the_distance_is_that_of_the_paper(seed):
    rng = np.random.default_rng(seed)
    models, true = rng.standard_normal((2, 3, 4))
    wanted = min(
        max(np.linalg.norm(models[p] - t) for p, t in zip(order, true, strict=True))
        for order in permutations(range(3))
    )
    assert float(distance(jnp.asarray(models), jnp.asarray(true))) == pytest.approx(wanted, rel=1e-5)
    alone = max(np.linalg.norm(models[0] - t) for t in true)
    assert float(distance(jnp.asarray(models[:1]), jnp.asarray(true))) == pytest.approx(alone, rel=1e-5)


def test_the_paper_scale_is_the_papers():
    for number, clients in ((1, [50] * 200), (2, [10] * 900 + [50] * 20), (3, [10] * 900 + [50] * 20)):
        experiment = find(f"mixed-regression/fig{number}", "paper", "text")
        assert list(experiment.sizes) == clients and sum(clients) == 10_000
        assert (experiment.k, experiment.dim, experiment.iterations, experiment.rounds) == (3, 100, 5, 400)
    assert experiment.proportions == (0.2, 0.3, 0.5)


def test_errors_are_those_of_a_loop_over_clients():
    data = [
        ct.data.mixed_regression(k=3, clients=6, examples=[3, 9, 4, 8, 5, 6], dim=4, noise=0.2, seed=s)
        for s in range(2)
    ]
    learner = ct.Learner(ct.models.Linear(), "half_squared", ct.SGD(lr=0.1, steps=3)).for_data(
        data[0].train.spec
    )
    starts = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    algorithm = ct.FedX(3, n_init=1, rounds=5)
    begun = [_begun(algorithm, jnp.asarray(m), [], d) for m, d in zip(starts, data, strict=True)]
    true = jnp.stack([jnp.asarray(d.models, jnp.float32) for d in data])
    simulations = [ct.Simulation(d.train) for d in data]
    found = errors_by_round(algorithm, learner, simulations, [one.state for one in begun], true)
    assert found.shape == (2, 5)
    for trial, d in enumerate(data):
        clients = [(np.asarray(x, float), np.asarray(y, float)) for x, y in d.train]
        for t in range(5):
            thetas = fedx(clients, starts[trial].astype(float), 0.1, 3, [range(6)] * (t + 1))
            wanted = ct.metrics.parameter_distance(thetas, d.models)
            assert float(found[trial, t]) == pytest.approx(wanted, rel=1e-3)


def test_a_smoke_run_writes_everything_and_is_continued(tmp_path):
    out = tmp_path / "fig3"
    found = reproduce("mixed-regression/fig3", "smoke", out=out)
    assert {row["method"] for row in found["table"]} >= {"oracle", "IFCA", "two-phase, FedProx"}
    for name in ("figure.png", "figure.svg", "table.csv", "table.md", "results.json"):
        assert (out / name).stat().st_size > 0
    assert json.loads((out / "results.json").read_text())["settings"]["figure"] == 3
    assert all(finding["agrees"] is None for finding in found["findings"])  # a smoke test decides nothing
    (out / "points" / "ifca.safetensors").unlink()
    again = reproduce("mixed-regression/fig3", "smoke", out=out)
    assert again["table"] == found["table"]
    oracle = next(row for row in found["table"] if row["method"] == "oracle")
    fedavg = next(row for row in found["table"] if row["method"] == "vanilla FedAvg")
    assert fedavg["median error"] > 5 * oracle["median error"]


def test_another_number_of_trials_is_another_folder_and_none_are_refused():
    assert find("mixed-regression/fig1", "paper", "text", trials=7).trials == 7
    with pytest.raises(ct.errors.ConfigError, match="--trials 0: choose a whole number from 1 up"):
        find("mixed-regression/fig1", "paper", "text", trials=0)
    with pytest.raises(ct.errors.ConfigError, match="--preset authors: choose one of text"):
        find("mixed-regression/fig1", "paper", "authors")
