"""The comparison of all methods: what it tunes on, what it is made of, and what it writes."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from coterie.errors import diverged
from coterie.papers.figures import FIGURES, find
from coterie.papers.reproduce import reproduce
from coterie.papers.srfca.authors import AUTHORS, METHODS
from coterie.papers.srfca.comparison import TUNING_DRAW
from coterie.papers.srfca.methods import TEXT, Method
from coterie.papers.srfca.populations import POPULATIONS
from coterie.papers.srfca.tables import inside_the_grids

FEW = ("srfca", "srfca-equal", "local", "ifca")
CLIENTS, ROUNDS, STEPS = 8, 6, 5


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A smoke run of some of the methods."""
    with pytest.MonkeyPatch.context() as patch:
        whole = find("srfca/synthetic", "smoke", "text")
        some = replace(whole, methods=FEW, populations=("equal",))
        figure = replace(FIGURES["srfca/synthetic"], make=lambda *_: some)
        patch.setitem(FIGURES, "srfca/synthetic", figure)
        out = tmp_path_factory.mktemp("srfca")
        return reproduce("srfca/synthetic", "smoke", out=out), out


def test_a_smoke_run_writes_everything(smoke):
    content, out = smoke
    for name in ("results.json", "table.csv", "table.md", "figure.png", "figure.svg"):
        assert (out / name).stat().st_size > 0
    assert [row["method"] for row in content["table"]] == [TEXT[method].label for method in FEW]
    assert all(finding["agrees"] is None for finding in content["findings"])  # it is too short to tell


def test_srfca_trains_in_full_in_each_refine_and_beside_it_with_the_budget_of_others(smoke):
    content, _ = smoke
    steps = {row["method"]: row["steps taken"] for row in content["table"]}
    budget = CLIENTS * ROUNDS * STEPS
    assert steps["Local"] == steps["IFCA, one start"] == budget
    # clients that ONE_SHOT leaves without a cluster do not train in the first REFINE
    assert budget < steps["SR-FCA"] <= 3 * budget and steps["SR-FCA, equal budget"] <= budget


def test_the_precision_that_is_written_down_is_the_one_in_force(monkeypatch):
    digits, regressions = find("srfca/digits", "smoke", "text"), find("srfca/synthetic", "smoke", "text")
    assert {digits.precision(point) for point in digits.points()} == {"float32"}
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")  # where networks have less by default
    assert {digits.precision(point) for point in digits.points()} == {"tf32"}
    assert {regressions.precision(point) for point in regressions.points()} == {"float32"}


# -- what is tuned on ------------------------------------------------------------------------------------


def identity(image):
    """What is the same for an image, however it is turned and whether it is inverted."""
    turned = [np.rot90(image, turns) for turns in range(4)]
    return min(np.round(16 * view).astype(np.uint8).tobytes() for a in turned for view in (a, 1 - a))


def images(shards):
    return [identity(image) for x, _ in shards for image in x]


@dataclass
class Spy:
    """An algorithm that learns nothing, and remembers what it was shown."""

    seen: set
    best: float
    most: float = np.inf  # beyond which it diverges

    def fit(self, train, learner, *, seed):
        if learner.local.lr > self.most:
            raise diverged("as it was told to")
        self.seen |= set(images(train))
        self.learner = learner
        return self

    def evaluate(self, clients, chosen_by, *, personal):
        self.seen |= set(images(clients))
        return SimpleNamespace(loss=abs(np.log(self.learner.local.lr / self.best)))


@pytest.mark.parametrize("population", ["rotated", "inverted"])
def test_no_setting_is_chosen_on_an_image_that_any_draw_is_tested_on(population):
    experiment = replace(find("srfca/digits", "small", "text"), clients=8)
    seen: set = set()
    method = Method("spy", lambda problem, settings: Spy(seen, best=0.8))
    chosen, tried = experiment.tuned(population, method, seed=0)
    assert chosen["rate"] == pytest.approx(0.8) and len(tried["rate"]) > 3  # it did choose
    draws = [POPULATIONS[population].make(8, seed) for seed in range(experiment.trials)]
    for data in draws:
        assert len(images(data.test)) == 359 and not seen & set(images(data.test))
        # while the very images that are trained on are known again, whichever way they are turned
        assert seen == set(images(data.train))
        everything = images(data.train) + images(data.test)
        assert len(everything) == len(set(everything)) == 1797  # no two clients hold the same
    assert experiment.trials <= TUNING_DRAW


def test_step_sizes_with_which_training_diverges_are_not_chosen():
    experiment = replace(find("srfca/digits", "small", "text"), clients=8)
    method = Method("spy", lambda problem, settings: Spy(set(), best=0.8, most=0.03))
    chosen, tried = experiment.tuned("rotated", method, seed=0)
    assert chosen["rate"] == 0.025 and max(tried["rate"]) == 0.2 and min(tried["rate"]) < 0.025


def test_a_fifth_of_each_clients_training_examples_is_held_out():
    data = POPULATIONS["rotated"].make(8, 0)
    fit, held_out = data.train.split(0.2, seed=None)
    assert fit.ids.tolist() == held_out.ids.tolist() == data.train.ids.tolist()
    for i, (x, y) in enumerate(data.train):
        a, b = fit.client(i), held_out.client(i)
        assert len(b[0]) == len(x) // 5
        np.testing.assert_array_equal(np.concatenate([a[0], b[0]]), x)
        np.testing.assert_array_equal(np.concatenate([a[1], b[1]]), y)


@pytest.mark.parametrize(
    "tried, agrees", [([0.05, 0.1, 0.2], True), ([0.1, 0.2, 0.4], False), ([0.025, 0.05, 0.1], False)]
)
def test_a_choice_at_the_edge_is_a_finding(tried, agrees):
    experiment = replace(find("srfca/synthetic", "small", "text"), methods=("local",), populations=("equal",))
    results = {"equal local": {"rate.chosen": np.array(0.1), "rate.tried": np.array(tried)}}
    finding = inside_the_grids(experiment, results)
    assert finding.agrees is agrees and ("equal, Local: η = 0.1" in finding.found) is not agrees


# -- what it is made of ----------------------------------------------------------------------------------


def test_all_methods_know_how_to_train():
    for name, preset in (
        ("srfca/digits", "text"),
        ("srfca/synthetic", "text"),
        ("srfca/synthetic", "authors"),
    ):
        experiment = find(name, "small", preset)
        population = experiment.populations[0]
        data = POPULATIONS[population].make(8, 0)
        for method in experiment.methods:
            chosen = {"rate": 0.3, "threshold": 0.05, "trim": 0.2, "mu": 0.7, "pull": 0.4}
            chosen = {name: chosen[name] for name in METHODS[method].tuned}
            algorithm = experiment.algorithm(population, METHODS[method], chosen, data)
            learner = experiment.learner(population, METHODS[method], chosen)
            algorithm.check(8, learner.for_data(data.train.spec))
            local = experiment.learner(population, METHODS[method], chosen).local
            assert local.proximal == chosen.get("mu", 0.0)
            if "threshold" in chosen:
                assert (algorithm.threshold, algorithm.trim) == ("5.0000%", 0.2)
            if "pull" in chosen:
                assert algorithm.pull == 0.4


def test_the_released_rows_have_the_released_settings():
    experiment = find("srfca/synthetic", "full", "authors")
    assert (experiment.clients, experiment.rounds, experiment.local) == (50, 56, 5)
    data = POPULATIONS["released"].make(50, 0)
    assert data.train.spec.x_shape == (1000,) and set(data.train.sizes) == set(data.test.sizes) == {100}
    assert set(np.unique(data.models)) == {0, 1} and np.bincount(data.truth).tolist() == [25, 25]
    method = AUTHORS["srfca-released"]
    algorithm = experiment.algorithm("released", method, {}, data)
    assert (algorithm.threshold, algorithm.trim, algorithm.refines) == (22.2, 0.00098, 1)
    assert (algorithm.rounds, algorithm.distance, algorithm.min_size) == (56, "l2", 2)
    learner = experiment.learner("released", method, {}).for_data(data.train.spec)
    assert (learner.local.steps, learner.local.batch_size) == (5, 50)
    weights = jax.tree.leaves(learner.init(jax.random.key(0), data.train.spec))[0]
    assert set(np.unique(weights)) == {0, 1} and 400 < weights.sum() < 600
    # Adam's first step is as long as its step size, whatever the gradient
    gradient = np.array([3.0, -200.0])
    update, _ = learner.local.rule.update(gradient, learner.local.rule.init(gradient))
    np.testing.assert_allclose(update, [-2.05e-3, 2.05e-3], rtol=1e-4)
    rates = {name: AUTHORS[name].local({}, 5).lr for name in ("ifca-released", "global-released")}
    assert rates == {"ifca-released": 3.9e-4, "global-released": 1e-3}
    assert not any(AUTHORS[name].tuned for name in AUTHORS if name.endswith("released"))
