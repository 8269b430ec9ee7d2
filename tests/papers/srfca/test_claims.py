"""Verdicts on what the paper says, on both sides of each, and where results do not decide."""

import numpy as np
import pytest

from coterie.papers.srfca import claims

LABELS = {"srfca": "SR-FCA", "equal": "equal budget", "ifca": "IFCA", "local": "Local", "other": "another"}
NOISE = np.array([-0.001, 0.0, 0.001])


def ours(wrong=((0.1, 0.0, 0.0),), course=((0.7, 0.9, 0.9),), misclustering=(0.0,)):
    return {
        "misclustering": np.array(misclustering),
        "wrong": np.array(wrong),
        "course": np.array(course),
    }


@pytest.mark.parametrize("misclustering, agrees", [((0.0, 0.0), True), ((0.0, 0.1), False)])
def test_clusters_are_recovered_in_every_trial_or_not(misclustering, agrees):
    found = claims.of_theory("some", ours(misclustering=misclustering))[0]
    assert found.agrees is agrees and "some: the true clusters in" in found.found


@pytest.mark.parametrize(
    "mean, agrees",
    [
        (0.96, True),
        (0.9486, True),  # less than the paper lets pass
        (0.947, None),  # worse, but three trials that differ so much cannot tell
        (0.93, False),
    ],
)
def test_no_worse_than_the_best_baseline(mean, agrees):
    assert claims.no_worse(mean + NOISE * [1, 1, 1], 0.95 - 2 * NOISE) is agrees
    assert claims.no_worse(np.array([0.5]), np.array([0.95])) is False  # a single trial


def test_the_verdict_is_on_the_papers_protocol_and_its_baselines():
    accuracy = {"srfca": 0.95, "equal": 0.5, "ifca": 0.94, "local": 0.6, "other": 0.99}
    accuracy = {method: np.full(3, value) for method, value in accuracy.items()}
    second = claims.of_tables("rotated", accuracy, LABELS, ours(), "equal")[1]
    assert second.agrees is True  # neither the equal budget nor a method that Table 2 has not decides
    assert "SR-FCA 95.00%" in second.found and "IFCA with 94.00%" in second.found
    assert "equal budget: 50.00%" in second.found
    accuracy["ifca"] = np.full(3, 0.97)
    assert claims.of_tables("rotated", accuracy, LABELS, ours(), "equal")[1].agrees is False


@pytest.mark.parametrize(
    "course, first, second",
    [
        ([[0.7, 0.90, 0.95], [0.71, 0.91, 0.96]], True, True),
        ([[0.7, 0.90, 0.90], [0.71, 0.91, 0.91]], True, False),  # the second changes nothing
        ([[0.7, 0.90, 0.91], [0.71, 0.91, 0.90]], True, None),
        ([[0.9, 0.70, 0.60], [0.91, 0.71, 0.61]], False, False),
    ],
)
def test_accuracy_rises_with_the_first_refine_and_with_the_second(course, first, second):
    accuracy = {method: np.ones(2) for method in ("srfca", "ifca")}
    _, _, one, more, _ = claims.of_tables("inverted", accuracy, LABELS, ours(course=course))
    assert "first REFINE" in one.paper and one.agrees is first
    assert "multiple REFINE" in more.paper and more.agrees is second


@pytest.mark.parametrize(
    "wrong, agrees",
    [([0.2, 0.1, 0.0], True), ([0.1, 0.1, 0.2], False), ([0.0, 0.0, 0.0], None), ([0.5] * 3, None)],
)
def test_that_nothing_changed_is_not_taken_for_agreement(wrong, agrees):
    *_, last = claims.of_theory("some", ours(wrong=[wrong]))
    assert "Theorem 4.8" in last.paper and last.agrees is agrees


def test_where_the_paper_claims_nothing_there_is_no_verdict():
    wrong = {"srfca": np.array([0.0, 0.5]), "ifca": np.zeros(2)}
    (only,) = claims.of_nothing("released", wrong, LABELS)
    assert only.agrees is None and "SR-FCA finds the true clusters in 1 of 2 trials (25%" in only.found
