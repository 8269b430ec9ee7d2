"""The experiments of the mixed-regression paper: what methods do, and how claims are judged."""

import json
import math
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.references import fedx

import coterie as ct
from coterie.federation.simulation import Simulation
from coterie.initialise.anchors import Anchors
from coterie.papers import reproduce
from coterie.papers.figures import find
from coterie.papers.mixed_regression import methods, problem
from coterie.papers.mixed_regression.changes import CHANGES, _changed
from coterie.papers.mixed_regression.claims import UPDATES, claims
from coterie.papers.mixed_regression.drawing import first_phases
from coterie.papers.mixed_regression.measures import Curves
from coterie.papers.mixed_regression.phase_one import AS_PRINTED, centres
from coterie.papers.mixed_regression.rounds import distance, errors_by_round
from coterie.papers.mixed_regression.verdicts import Part, finding

TRIALS, PHASE_1, ROUNDS = 20, 5, 400


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
        assert list(experiment.problem.sizes) == clients and sum(clients) == 10_000
        assert (experiment.problem.k, experiment.problem.dim) == (3, 100)
        assert (experiment.iterations, experiment.rounds) == (5, 400)
        assert (experiment.before is None) == (number == 1)
        assert find(f"mixed-regression/fig{number}", "paper", "text", trials=7).trials == 7
    assert experiment.problem.proportions == (0.2, 0.3, 0.5)
    assert experiment.before == find("mixed-regression/fig2", "paper", "text").problem


def test_as_printed_is_every_constant_of_the_text():
    """Section V: ceil(3 k log k) anchors at random, 5 iterations, SVD; the box: two examples, Delta / 2."""
    printed = AS_PRINTED
    assert (printed.anchors, printed.draw, printed.iterations) == (10, "uniform", 5)
    assert (printed.estimator, printed.anchor_estimator, printed.subspace) == ("two", None, "svd")
    assert (printed.alpha, printed.beta, printed.scale, printed.stopping) == (1.0, 1.0, 2.0, "journal")
    assert printed.epsilon < printed.alpha / 8  # Theorem 1
    assert not printed.fresh and printed.clients is None and printed.noise == 0  # all data, used again
    alone = [name for name, change in CHANGES.items() if "+" not in name and name != "printed"]
    assert len(alone) == 9
    for name in alone:
        change = CHANGES[name]
        together = {"guessed": 3, "products": 3, "pairs-subspace": 2}.get(name, 1)
        assert len(change.settings) + change.ward == together, name


def test_facts_about_the_clients():
    data = ct.data.mixed_regression(k=3, clients=6, examples=[3, 9, 4, 8, 5, 6], dim=4, seed=1)
    models, truth = np.asarray(data.models), np.asarray(data.truth)
    apart = [np.linalg.norm(models[a] - models[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert problem.separation(data) == pytest.approx(min(apart))
    held = [sum(n for n, z in zip(data.train.sizes, truth, strict=True) if z == j) for j in range(3)]
    assert problem.smallest_share(data) == pytest.approx(min(held) / 35)
    curvature = max(np.linalg.eigvalsh(x.T @ x / len(x))[-1] for x, _ in data.train)
    assert problem.largest_curvature(data) == pytest.approx(curvature, rel=1e-5)


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
    begun = [methods.begun(algorithm, jnp.asarray(m), [], d) for m, d in zip(starts, data, strict=True)]
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


def test_too_few_groups_are_k_equal_models():
    theta = np.array([[0.0, 0], [0, 1], [9, 9]], np.float32)
    now = Anchors(np.zeros(3, int), theta, np.zeros(3), np.zeros(3, bool), np.ones(3, bool))
    np.testing.assert_allclose(sorted(centres(now, 2, 4.0).tolist()), [[0, 0.5], [9, 9]])
    np.testing.assert_allclose(centres(now, 3, 4.0), [[3, 10 / 3]] * 3, rtol=1e-6)


# -- Phase 1 as printed, and with changes -----------------------------------------------------------------


@pytest.fixture
def one_device(monkeypatch):
    """For which programs compile faster; and no batches are timed."""

    def simulation(shards, **settings):
        return Simulation(shards, **settings | {"batch": 40, "devices": jax.local_devices()[:1]})

    monkeypatch.setattr(problem, "Simulation", simulation)
    problem.simulations.cache_clear()
    yield
    problem.simulations.cache_clear()


@pytest.mark.usefixtures("one_device")
def test_phase_1_needs_all_pairs_for_the_subspace_and_little_else():
    """On 40 clients with 50 examples of 20 coordinates, of which two each do not show the subspace."""
    plan = methods.Plan(problem.problem(1, "smoke"), 0.05, 5, 1, 0, 3)
    found = {
        name: _changed(plan, CHANGES[name], 7) for name in ("printed", "pairs", "pairs-subspace", "ward")
    }
    for result in found.values():
        assert (result["covered"] == 3).all() and result["last"].shape == (3,)
    for name in ("printed", "ward"):
        assert np.median(found[name]["first"]) > 0.8
    for name in ("pairs", "pairs-subspace"):
        assert np.median(found[name]["first"]) < 0.5


def test_the_table_of_changes_has_a_row_for_each_and_is_drawn():
    experiment = find("mixed-regression/phase1-fig2", "paper", "text", trials=10)
    assert experiment.problem == find("mixed-regression/fig2", "paper", "text").problem
    good = {"covered": np.full(10, 3), "groups": np.full(10, 4), "anchors": np.full(10, 0.2)}
    results = {
        point.name: good | {"first": np.full(10, 0.3), "last": np.full(10, 0.04)}
        for point in experiment.points()
    }
    results["printed"] |= {"last": np.full(10, 1.0), "groups": np.full(10, 2), "first": np.full(10, 1.1)}
    results["ward"] |= {"last": np.array([1.0] * 4 + [0.041] * 6)}
    rows = experiment.table(results)
    assert len(rows) == len(CHANGES)
    assert (rows[0]["Phase 1"], rows[0]["as good as the oracle"]) == ("as printed", "0 of 10")
    assert rows[0]["k groups or more"] == "0 of 10" and rows[1]["k groups or more"] == "10 of 10"
    assert [found.agrees for found in experiment.findings(results)] == [False, False]
    as_said = results | {"printed": results["pairs"]}
    assert [found.agrees for found in experiment.findings(as_said)] == [True, True]
    (axes,) = first_phases(experiment, results).axes
    assert {text.get_text() for text in axes.texts} == {"0 of 10", "6 of 10", "10 of 10"}


# -- how claims are judged --------------------------------------------------------------------------------


def test_an_interval_within_the_bounds_agrees_outside_disagrees_and_across_decides_nothing():
    values = np.arange(1.0, 21.0)  # of twenty, the 6th and the 15th bound the median
    assert Part("x", values).interval() == (6, 15)
    assert Part("x", values, 6, 15).holds is True
    assert Part("x", values, 15.5).holds is False and Part("x", values, high=5.5).holds is False
    assert Part("x", values, 7).holds is None and Part("x", values, high=14).holds is None
    assert Part("x", values[:5], -100, 100).holds is None  # too few
    assert "too few trials" in str(Part("x", values[:5]))
    assert Part("x", np.array([1.0] * 14 + [math.inf] * 6), high=1.1).holds is None
    assert str(Part("error", values, high=20.0)) == "error: 10.5 (6 to 15) [at most 20]"


def test_a_share_is_judged_by_its_interval():
    def often(hits):
        return Part("x", np.arange(20) < hits, 2 / 3)

    assert often(20).holds is True and often(11).holds is None and often(5).holds is False
    assert Part("x", np.ones(3, bool), 2 / 3).holds is None
    assert str(often(11)) == "x: in 11 of 20 trials [a share of at least 0.667]"


def test_all_parts_of_a_claim_have_to_hold():
    yes, no = Part("a", np.ones(20), 0.5), Part("b", np.ones(20), 2)
    unsure = Part("c", np.arange(20.0), 10)
    assert finding("p", yes, yes).agrees is True
    assert finding("p", yes, unsure).agrees is None
    assert finding("p", yes, unsure, no).agrees is False


def exponential(rate, last, seed, start=2.0, after=0.6):
    """Errors of all trials that fall in five iterations to `after` and then at a rate to `last`."""
    t = np.arange(ROUNDS + 1)
    second = np.maximum(after * np.exp(-rate * t), last)
    first = np.geomspace(start, after, PHASE_1 + 1)[:-1]
    spread = np.exp(0.005 * np.random.default_rng(seed).standard_normal((TRIALS, 1)))
    return {"error": np.concatenate([first, second]) * spread}


def made_up(last=0.04, slower=1.0, inflated=1.0, proportional=True):
    """Results as the paper describes them."""
    speed = {"s=1": 0.01, "s=5": 0.05 if proportional else 0.02, "s=10": 0.1 if proportional else 0.025}
    results = {
        name: exponential(rate / slower, last * (inflated if name == "s=10" else 1), number)
        for number, (name, rate) in enumerate((speed | {"fedprox": 0.04}).items())
    }
    results["printed"] = exponential(0.05, last, 4)
    facts = {"smallest_share": np.full(TRIALS, 1 / 3 / slower), "largest_curvature": np.full(TRIALS, 0.2)}
    results["oracle"] = exponential(0.05, last, 5, last, last) | facts
    results["ifca"] = exponential(0, 2.5, 6, 2.5, 2.5)
    results["fedavg"] = exponential(0, 1.7, 7, 1.7, 1.7)
    wrong = {"misplaced": np.zeros(TRIALS), "misplaced_few": np.zeros(TRIALS)}
    results["one-shot"] = exponential(0.05, last, 8) | wrong
    return results


def judged(figure, results, before=None):
    curves = None if before is None else Curves(before, PHASE_1)
    return {found.paper: found.agrees for found in claims(figure, 0.05, Curves(results, PHASE_1), curves)}


def verdict(judged, words):
    (found,) = [agrees for paper, agrees in judged.items() if words in paper]
    return found


def test_measures_of_made_up_curves():
    curves = Curves(made_up(), PHASE_1)
    np.testing.assert_allclose(curves.rate("s=5"), 0.05, rtol=0.02)
    np.testing.assert_allclose(curves.first_rate("s=5"), math.log(2 / 0.6) / 5, rtol=1e-6)
    np.testing.assert_allclose(curves.straight("s=5"), 1, rtol=1e-6)
    np.testing.assert_allclose(curves.left("s=5"), 0.6 / 2, rtol=1e-6)
    assert abs(np.median(curves.reached("s=5")) - (5 + math.log(0.6 / 0.08) / 0.05)) < 2
    assert np.isinf(curves.reached("ifca")).all() and (curves.needed("ifca") == 405).all()
    assert (curves.plateau("ifca") == 405).all() and (curves.plateau("s=5") < 5).all()
    slow = Curves({"slow": exponential(0.004, 0.01, 0)}, PHASE_1)
    np.testing.assert_allclose(slow.falling("slow"), math.exp(0.004 * 100), rtol=1e-6)
    gamma = 0.05 * 0.2
    np.testing.assert_allclose(curves.kappa(0.05, 10), gamma * 10 / (1 - (1 - gamma) ** 10), rtol=1e-12)


@pytest.mark.parametrize(
    "change, words",
    [
        ({}, "nothing at all"),
        ({"inflated": 1.3}, "final estimation errors stay almost the same"),
        ({"proportional": False}, "increases proportionally to s"),
    ],
)
def test_figure_1_disagrees_where_the_numbers_do_and_nowhere_else(change, words):
    found = judged(1, made_up(**change))
    assert change or set(found.values()) == {True}
    assert [paper for paper, agrees in found.items() if agrees is False] == [
        paper for paper in found if words in paper
    ]


def test_a_plateau_a_bad_start_and_a_bad_clustering_are_seen():
    results = made_up()
    results["ifca"] = exponential(0.05, 0.04, 6)
    results["printed"] = exponential(0, 2.5, 4, after=2.5)
    results["one-shot"] |= {"misplaced": np.full(TRIALS, 0.2)}
    found = judged(1, results)
    pairs = ": Phase 1 with all pairs"
    for words in ("gets stuck", "highly dependent", f"IFCA (Fig. 1), at the end{pairs}"):
        assert verdict(found, words) is False
    assert verdict(found, f"IFCA (Fig. 1), on the way{pairs}") is False
    assert verdict(found, "FedAvg (Fig. 1), at the end: Phase 1 as printed") is False
    assert verdict(found, f"FedAvg (Fig. 1), at the end{pairs}") is True
    assert verdict(found, "stay almost the same): Phase 1 as printed") is False
    assert verdict(found, "oracle algorithm (Fig. 1): Phase 1 as printed") is False
    assert verdict(found, "oracle algorithm (Fig. 1): Phase 1 with all pairs") is True
    assert verdict(found, "correctly cluster all") is False


def test_figures_2_and_3_are_compared_with_the_figure_before():
    first = made_up()
    second = made_up(inflated=1.1, proportional=False)
    second["oracle"]["largest_curvature"] = np.full(TRIALS, 1.0)
    found = judged(2, second, first)
    for words in (
        "slightly inflated",
        "larger value of kappa",
        "only noticeable",
        "stays almost the same as",
    ):
        assert verdict(found, words) is True
    assert verdict(found, "no longer performs as well") is False
    assert verdict(found, "IFCA eventually") is False and verdict(found, "for a long time") is True
    assert verdict(judged(2, made_up(), first), "slightly inflated") is False
    assert verdict(judged(2, made_up(), first), "only noticeable") is False
    third = judged(3, made_up(slower=1.6), made_up())
    for words in ("rates get smaller", "proportional to rho", "stays almost the same as"):
        assert verdict(third, words) is True
    same = judged(3, made_up(), made_up())
    assert verdict(same, "rates get smaller") is False and verdict(same, "performs poorly") is False


# -- carried out ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_device")
def test_a_smoke_run_writes_everything_and_is_continued(tmp_path):
    out = tmp_path / "fig3"
    found = reproduce("mixed-regression/fig3", "smoke", out=out)
    assert {row["method"] for row in found["table"]} >= {"oracle", "IFCA", "two-phase, FedProx"}
    for name in ("figure.png", "figure.svg", "table.csv", "table.md", "results.json"):
        assert (out / name).stat().st_size > 0
    assert json.loads((out / "results.json").read_text())["settings"]["problem"]["figure"] == 3
    assert (out / "points" / "s=1-of-figure-2.safetensors").exists()
    assert len(found["findings"]) > 12
    assert all(finding["agrees"] is None for finding in found["findings"])  # a smoke test decides nothing
    (out / "points" / "ifca.safetensors").unlink()
    again = reproduce("mixed-regression/fig3", "smoke", out=out)
    assert again["table"] == found["table"]
    oracle = next(row for row in found["table"] if row["method"] == "oracle")
    fedavg = next(row for row in found["table"] if row["method"] == "vanilla FedAvg")
    assert fedavg["median error"] > 5 * oracle["median error"]
    assert len(UPDATES) == sum("two-phase, Fed" in row["method"] for row in found["table"])
