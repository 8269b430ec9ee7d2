"""The comparison of all methods: one budget, costs as computed by hand, nothing tuned on test examples."""

import numpy as np
import pytest

import coterie as ct
from coterie.papers import srfca
from coterie.papers.claims import METHODS, claims
from coterie.papers.costs import cost
from coterie.papers.figures import find
from coterie.papers.populations import POPULATIONS, parted
from coterie.papers.reproduce import reproduce

FEW = ("srfca", "local", "global", "ifca", "one-shot-kmeans", "cfl")
CLIENTS, ROUNDS, STEPS = 8, 6, 5


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A smoke run of some of the methods, which share a compiled program or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(srfca, "METHODS", {name: srfca.METHODS[name] for name in FEW})
        patch.setattr("coterie.papers.pictures.METHODS", srfca.METHODS)
        out = tmp_path_factory.mktemp("srfca")
        yield reproduce("srfca/synthetic", "smoke", out=out), out


def test_a_smoke_run_writes_everything(smoke):
    content, out = smoke
    for name in ("results.json", "table.csv", "table.md", "figure.png", "figure.svg"):
        assert (out / name).stat().st_size > 0
    assert len(content["table"]) == 2 * len(FEW)
    assert all(finding["agrees"] is None for finding in content["findings"])  # it is too short to tell


def test_the_precision_that_is_written_down_is_the_one_in_force(monkeypatch):
    digits, regressions = find("srfca/digits", "smoke", "text"), find("srfca/synthetic", "smoke", "text")
    assert {digits.precision(point) for point in digits.points()} == {"float32"}
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")  # where networks have less by default
    assert {digits.precision(point) for point in digits.points()} == {"tf32"}
    assert {regressions.precision(point) for point in regressions.points()} == {"float32"}


def test_every_method_takes_as_many_local_steps(smoke):
    content, _ = smoke
    assert {row["steps taken"] for row in content["table"]} == {CLIENTS * ROUNDS * STEPS}


def test_costs_are_those_of_table_1_and_of_one_shot(smoke):
    content, _ = smoke
    rows = {row["method"]: row for row in content["table"] if row["clients"] == "equal"}
    # a round also carries its number, which is little beside a model of 20 parameters
    near = {"rel": 0.08}
    ifca = rows["IFCA, one start"]
    assert ifca["models down"] == pytest.approx(CLIENTS * ROUNDS * 2, **near)
    assert ifca["forward"] == pytest.approx(CLIENTS * ROUNDS * 2, **near)
    third, k = ROUNDS // 3, int(rows["SR-FCA"]["clusters"])
    assert rows["SR-FCA"]["models down"] == pytest.approx(CLIENTS + CLIENTS * third * 2, rel=0.2)
    assert rows["SR-FCA"]["forward"] == pytest.approx(0, abs=0.2 * CLIENTS) and k >= 1  # Euclidean distances
    assert rows["Local"]["models down"] == 0 and rows["Local"]["models up"] == CLIENTS


def test_cross_losses_cost_a_pass_per_pair_and_per_cluster():
    data = ct.data.mixed_regression(k=2, clients=6, examples=10, dim=50, noise=0.1, seed=0)
    algorithm = ct.SRFCA(rounds=2, refines=2, threshold="100%")
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.02, steps=1))
    found = algorithm.fit(data.train, learner, seed=0)
    total = cost(found, algorithm, steps=1)
    assert found.k == 1
    assert total.forward == pytest.approx(6 * 6 + 2 * 6, rel=0.02)
    assert total.steps_taken == 6 * 2 + 6 * 2 * 2
    assert total.models_down == pytest.approx(6 + 6 * 6 + 2 * 2 * 6 + 2 * 6, rel=0.03)


def test_step_sizes_are_chosen_without_the_test_examples():
    experiment = find("srfca/digits", "smoke", "text")
    data = POPULATIONS["rotated"].make(experiment.clients, 0)
    fit, held_out = parted(data.train)
    for i, (x, y) in enumerate(data.train):
        a, b = fit.client(i), held_out.client(i)
        assert len(b[0]) == len(x) // 5
        np.testing.assert_array_equal(np.concatenate([a[0], b[0]]), x)
        np.testing.assert_array_equal(np.concatenate([a[1], b[1]]), y)
    assert fit.ids.tolist() == data.train.ids.tolist()


def test_all_methods_know_how_to_train():
    experiment = find("srfca/digits", "small", "text")
    data = POPULATIONS["inverted"].make(8, 0)
    for method in srfca.METHODS:
        experiment.algorithm(method, data).check(8)
        assert experiment.learner("inverted", method, 0.1).local.proximal == (
            0.1 if method == "fedprox" else 0
        )


@pytest.mark.parametrize(
    "wrong, agrees",
    [([0.2, 0.1, 0.0], True), ([0.1, 0.1, 0.2], False), ([0.0, 0.0, 0.0], None), ([0.5] * 3, None)],
)
def test_that_nothing_changed_is_not_taken_for_agreement(wrong, agrees):
    ours = {"misclustering": np.array([wrong[-1]]), "wrong": np.array([wrong])}
    *_, last = claims("some", {method: np.ones(1) for method in METHODS}, ours, regression=True)
    assert "Theorem 4.8" in last.paper and last.agrees is agrees
