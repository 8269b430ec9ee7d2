"""Corollary 1 and Theorem 2 of the IFCA paper: what is run, what is measured, and what is made of it."""

import jax
import numpy as np
import pytest
from support.planted_table import planted, refuted, verdicts

from coterie.papers import find, reproduce
from coterie.papers.ifca import rates
from coterie.papers.ifca.contraction import Mixture, contraction, courses, floor, simulation
from coterie.papers.ifca.rates import COROLLARY, QUIET, THEOREM, Case, misplaced_at_most

NAME = "ifca/rates"


def test_step_sizes_bounds_and_clusters():
    assert (COROLLARY.rate, COROLLARY.bound) == (0.6, 0.5)
    assert (THEOREM.rate, THEOREM.bound) == (0.5, 1 - 0.5 * 0.25 / 8)
    assert Case("theorem", p=0.2).sizes == (20, 80) and Case("theorem", k=4, p=0.25).sizes == (25,) * 4
    for case in [*rates.CONTRACTIONS, *(case for sweep in rates.SWEEPS.values() for case in sweep)]:
        assert sum(case.sizes) == case.m and min(case.sizes) == pytest.approx(case.p * case.m)
    # k eta^2 / (lambda^2 Delta^4 n'), with 5/4 of Delta to the farthest model
    assert misplaced_at_most(Case("corollary", sigma=1.0)) == pytest.approx(
        2 * 2 * (1 + 1.5625) ** 2 / (4 * 50)
    )


def test_the_contraction_is_that_of_the_rounds_before_the_floor():
    course = np.maximum(0.5 ** np.arange(40.0), 1e-4)
    assert floor(course[None]) == pytest.approx([1e-4])
    assert contraction(np.stack([course, course])) == pytest.approx(0.5, rel=1e-6)
    # three quarters of a floor that is reached at once: the first round counts
    assert contraction(np.array([[1.0, 0.25] + [0.25] * 10])) == pytest.approx(0.25)


@pytest.mark.parametrize("flattest, rate", [(1.0, 0.6), (0.25, 0.5)])
def test_a_round_is_a_gradient_step_of_the_population_loss_where_examples_are_many(flattest, rate):
    mixture = Mixture((8, 8), examples=500, dim=3, rounds=4, runs=2)
    draws = jax.random.split(jax.random.key(0), 2)
    error, misplaced = courses(mixture, simulation(mixture), draws, 1.0, 0.0, rate, flattest)
    error = np.asarray(error)
    np.testing.assert_allclose(error[:, 0], 0.25 * np.sqrt(flattest), rtol=1e-5)
    assert not np.asarray(misplaced).any()
    factors = 1 - 2 * rate / 2 * np.linspace(flattest, 1, 3)  # 1 - 2 gamma p_j times a variance
    step = error[:, 1:] / error[:, :-1]
    assert (step > factors.min() - 0.05).all() and (step < factors.max() + 0.05).all()
    if flattest == 1:
        np.testing.assert_allclose(step, 0.4, atol=0.05)


def test_examples_are_new_in_every_round():
    """With noise, and from the same models on, two rounds differ; a fixed sample would come to rest."""
    mixture = Mixture((4, 4), examples=20, dim=3, rounds=40, runs=1)
    error, _ = courses(
        mixture, simulation(mixture), jax.random.split(jax.random.key(0), 1), 1.0, 0.3, 0.6, 1.0
    )
    assert np.asarray(error)[0, -10:].std() > 1e-4


def results(table, exponent=-0.5, contracts=0.4, decay=0.14, at_first=0.01):
    def value(name, what):
        return float(name.split(f"{what}=")[1].split()[0])

    def distance(name, trial):
        size = (
            (value(name, " m") * value(name, " n")) ** exponent
            * value(name, "sigma")
            * value(name, " d") ** 0.5
        )
        return size / value(name, "delta") * (1 + 1e-3 * trial)

    def share(name, trial):
        return 0.3 * np.exp(-decay * value(name, " n")) * (1 + 1e-3 * trial)

    return planted(
        table,
        distance=distance,
        contraction=lambda name, trial: contracts + 1e-4 * trial if value(name, "sigma") == QUIET else None,
        misplaced=share,
        misplaced_at_first=lambda name, trial: at_first,
    )


def failing(table, **changed):
    return refuted(table, results(table, **changed))


def test_claims_hold_and_fail():
    table = find(NAME, "full", "text")
    assert set(verdicts(table, results(table)).values()) == {True}
    slow = failing(table, exponent=-0.3)
    assert len(slow) == 4 and all(paper.endswith(("on m", "on n'")) for paper in slow)
    assert len(failing(table, contracts=0.6)) == 3, "1/2 is printed in three cases"
    assert "Lemma 3" in failing(table, at_first=0.9)[0]
    # a power of n' in the place of an exponential
    found = results(table)
    for name in found:
        n = float(name.split(" n=")[1].split()[0])
        found[name]["misplaced"] = np.array(0.9 / n**2) * (1 + 1e-3 * int(name[-1]))
    assert refuted(table, found)[0].startswith("the second")


def test_a_step_too_long_for_the_largest_cluster_is_told():
    table = find(NAME, "full", "text")
    said = [f.found for f in table.findings(results(table, contracts=1.4)) if "Theorem 1" in f.paper]
    assert ["no γ" in sentence for sentence in said] == [False, False, True]
    assert "|1 - 2γ p_j|, here 1.4 for the largest" in said[2]


def test_smoke_runs(tmp_path):
    found = reproduce(NAME, "smoke", out=tmp_path, only="corollary m=50 n=50 d=20 k=2 p=0.5")
    assert {finding["agrees"] for finding in found["findings"]} == {None}
    (row,) = [row for row in found["table"] if row["seeds"]]
    assert 0 < row["distance"] < 0.25 and row["misplaced"] < 0.05
