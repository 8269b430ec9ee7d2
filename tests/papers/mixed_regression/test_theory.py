"""What is measured of Theorems 2 and 3, and how it is judged."""

import math

import numpy as np
import pytest

import coterie as ct
from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.mixed_regression import bounds, theory
from coterie.papers.mixed_regression.measures import stability
from coterie.papers.mixed_regression.problem import separation


def curve(rate, last, trials=20, rounds=400, start=0.9):
    """Errors of all trials that fall at a rate to where they stay."""
    spread = np.exp(0.003 * np.random.default_rng(0).standard_normal((trials, 1)))
    return np.maximum(start * np.exp(-rate * np.arange(rounds + 1)), last) * spread


def test_rates_and_exponents():
    result = {"error": curve(0.05, 0.01)}
    np.testing.assert_allclose(bounds.rate(result), 0.05, rtol=1e-6)
    np.testing.assert_allclose(bounds.straight(result), 1, rtol=1e-6)
    np.testing.assert_allclose(bounds.last(result), 0.01, rtol=0.02)
    floor = {"error": curve(0.05, 0.5)}  # never falls far enough: to the last round
    np.testing.assert_allclose(bounds.rate(floor), math.log(0.9 / 0.5) / 400, rtol=1e-6)
    of = {m: np.array([m**-0.5, 3 * m**-0.25]) for m in (100, 200, 800)}
    np.testing.assert_allclose(bounds.exponent(of), [-0.5, -0.25])


def test_kappa_and_the_skewness_of_sizes():
    gamma = 0.3
    steps = [(1 - gamma) ** t for t in range(5)]
    assert stability(gamma, 5) == pytest.approx(5 / sum(steps))  # gamma s over a geometric sum times gamma
    assert stability(gamma, 1) == pytest.approx(1) and stability(gamma, None) == pytest.approx(1.3)
    sizes = [5] * 720 + [55] * 80
    share, even = np.array(sizes) / sum(sizes), 1 / 800
    assert theory.skewness(sizes) == pytest.approx(((share - even) ** 2 / even).sum())
    case = theory.Case("M", 800, tuple(sizes))
    assert case.deviation == pytest.approx(
        math.sqrt(20 * 3 * math.log(3) / 800 * (theory.skewness(sizes) + 1))
    )


def test_every_model_begins_delta_thirds_off():
    models = np.random.default_rng(1).standard_normal((3, 20))
    off = theory._off(models, 0.7, 5)
    np.testing.assert_allclose(np.linalg.norm(off - models, axis=1), 0.7, rtol=1e-5)
    assert not np.allclose(off, theory._off(models, 0.7, 6))


def test_wrong_labels_are_those_of_7():
    data = ct.data.mixed_regression(k=3, clients=60, examples=2, dim=20, noise=1.0, scale=2.0, seed=9)
    wrong = [
        int(np.argmin([np.linalg.norm(y - x @ theta) for theta in data.models])) != z
        for (x, y), z in zip(data.train, data.truth, strict=True)
    ]
    assert 0 < np.mean(wrong) < 1
    assert theory._mislabelled(2, 60, 9) == pytest.approx(np.mean(wrong))


def made_up(experiment, **changed):
    """Results as the bounds have them, where constants are one; `changed` are factors, by name and what."""
    results = {}
    for name, case in experiment.cases.items():
        gamma = case.rate * 3
        kappa, rho = float(stability(min(gamma, 0.9), case.steps)), min(case.proportions)
        rate = (case.steps or 1) * case.rate * rho / kappa * changed.get(f"{name} rate", 1)
        last = 0.05 / math.sqrt(sum(case.sizes) / 1000) * (1 if case.known else 2.5)
        error = curve(rate, last * changed.get(f"{name} last", 1), rounds=case.rounds)
        alike = {"rho": np.full(20, rho), "gamma": np.full(20, gamma), "kappa": np.full(20, kappa)}
        results[name] = {"error": error, **alike}
    for name, n in experiment.labels.items():
        results[name] = {"wrong": np.full(20, changed.get(name, 0.3 * math.exp(-n / 2)))}
    return results


def disagreeing(**changed):
    experiment = find("mixed-regression/theory", "paper", "text")
    return [f.paper for f in experiment.findings(made_up(experiment, **changed)) if f.agrees is False]


@pytest.mark.parametrize(
    "changed, words",
    [
        ({}, []),
        ({"s 10 rate": 0.5}, ["in proportion to s"]),
        ({"s far 10 rate": 0.5}, ["where kappa is larger"]),
        ({"rho 0.1 rate": 0.5}, ["in proportion to rho"]),
        ({"eta 0.3 rate": 0.5}, ["FedProx, we only need"]),
        ({"s far 5 last": 3}, ["linearly in kappa"]),
        ({"eta 0.3 last": 3}, ["the same with FedProx"]),
        ({"M 1600 last": 9}, ["1 / sqrt(M), or faster"]),
        ({"M 1600 known last": 9}, ["known exactly"]),
        ({"sigma 0.5 last": 0.4}, ["noise 0.5"]),
        ({"chi2 12.25 last": 9}, ["skewness of sizes"]),
        ({"labels 2": 0.001, "labels 12": 0.2}, ["diminishes exponentially"]),
    ],
)
def test_what_is_not_as_the_bound_has_it_disagrees_and_nothing_else(changed, words):
    found = disagreeing(**changed)
    assert len(found) == len(words)
    for some, paper in zip(words, found, strict=True):
        assert some in paper


def test_a_smoke_run_writes_everything_and_decides_nothing(tmp_path):
    found = reproduce("mixed-regression/theory", "smoke", out=tmp_path)
    for name in ("figure.png", "figure.svg", "table.csv", "table.md", "results.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert all(one["agrees"] is None for one in found["findings"])
    labels = [row["wrong labels (%)"] for row in found["table"]]
    assert labels[:-2] == [None] * len(labels[:-2]) and 0 < labels[-1] < labels[-2]
    experiment = find("mixed-regression/theory", "smoke", "text")
    case = experiment.cases["s 1"]
    result = experiment.compute(
        next(p for p in experiment.points() if p.name == "s 1"), 0, lambda _: None, {}
    )
    (data,) = theory.populations(case.problem, 1, 0)
    assert result["error"][0, 0] == pytest.approx(separation(data) / 3)
    assert result["error"].shape == (1, 1 + case.rounds)
    assert result["error"][0, -1] < 0.1 * result["error"][0, 0]
    worst = max(np.linalg.norm(x, 2) ** 2 / len(x) for x, _ in data.train)
    assert result["gamma"][0] == pytest.approx(0.01 * worst, rel=1e-5)
