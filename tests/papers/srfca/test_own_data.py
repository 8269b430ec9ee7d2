"""Tables 1 to 5 and Figure 3 on the paper's own data: what is shared, told, judged and written."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.errors import ConfigError
from coterie.learn.local import SGD
from coterie.papers import reproduce
from coterie.papers.everything import default_folder, tasks
from coterie.papers.figures import FIGURES, find
from coterie.papers.seeds import Published
from coterie.papers.srfca import fair, statements, trial, views
from coterie.papers.srfca.published import ACCURACY, ALL, COURSE, SIMULATED
from coterie.papers.srfca.setups import AUTHORS, TEXT, clients, learner, setup
from coterie.papers.srfca.triangular import Triangular

NAMES = [f"srfca/{name}" for name in views.VIEWS]


@pytest.fixture(autouse=True)
def forget():
    """No draw of another test."""
    yield
    trial.drawn.cache_clear()
    trial.alone.cache_clear()


# -- what is printed -----------------------------------------------------------------------------------------


def test_what_the_text_prints():
    inverted, rotated, turned, labelled, *_ = TEXT.values()
    assert tuple(TEXT) == ALL
    assert [s.clients for s in TEXT.values()] == [100, 100, 32, 32, 50, 50]
    assert [s.iterations for s in TEXT.values()] == [280, 250, 2400, 2400, 1000, 2400]
    assert [s.refines for s in TEXT.values()] == [2, 2, 2, 2, 1, 1]
    assert [s.drawn for s in (inverted, rotated, turned, labelled)] == [1.0, 1.0, 0.5, 0.5]
    assert (rotated.k, inverted.k, turned.k, labelled.k) == (4, 2, 2, 2)
    assert labelled.labels == (tuple(range(7)), tuple(range(3, 10)))
    assert all(s.rounds * s.local == s.iterations for s in TEXT.values())


def test_published_numbers_are_where_they_belong():
    assert ACCURACY["rotated-mnist srfca"] == Published(91.66, 0.13)
    assert ACCURACY["label-cifar10 local-kmeans"] == Published(72.89, 0.61)
    assert ACCURACY["shakespeare fedsoft"] == Published(46.98, 1.25)
    assert COURSE["femnist", "after ONE_SHOT"] == Published(66.18, 2.14)
    assert COURSE["inverted-mnist", "after 1st REFINE"] == Published(91.88, 0.39)
    assert COURSE["rotated-cifar10", "after 2nd REFINE"] == Published(91.38, 0.27)


# -- clients and what they do --------------------------------------------------------------------------------


def test_raw_pixels_and_labels_filtered_twice(files):
    small = setup("inverted-mnist", "smoke", "text")
    made = {raw: clients("inverted-mnist", replace(small, raw=raw), 3) for raw in (False, True)}
    seen = {raw: [one.train.spec.seen(x) for x, _ in one.train] for raw, one in made.items()}
    np.testing.assert_allclose(np.stack(seen[True]), 255 * np.stack(seen[False]), rtol=1e-5)
    assert AUTHORS["inverted-mnist"].raw and not TEXT["inverted-mnist"].raw
    data = clients("label-cifar10", setup("label-cifar10", "smoke", "authors"), 0)
    of = [set(), set()]
    for (_, y), cluster in zip(data.train, data.truth, strict=True):
        of[cluster] |= set(y.tolist())
    assert of == [set(range(6)), {4, 5}]


@pytest.mark.parametrize("data", ["femnist", "shakespeare"])
def test_real_clients_have_one_shape_whoever_is_drawn(files, data):
    small = setup(data, "smoke", "text")
    draws = [clients(data, small, seed) for seed in (0, 1)]
    shapes = [[bucket.x.shape for bucket in made.train.buckets] for made in draws]
    assert shapes[0] == shapes[1] and len(shapes[0]) == 1
    assert draws[0].train.ids.tolist() != draws[1].train.ids.tolist()
    whole = getattr(ct.data, data)(small.clients, seed=0)
    for (x, y), (all_x, all_y) in zip(draws[0].train, whole.train, strict=True):
        np.testing.assert_array_equal(x, all_x[: small.most])
        np.testing.assert_array_equal(y, all_y[: small.most])


def test_step_sizes_rise_and_fall_over_all_rounds():
    rule = Triangular(0.8, steps=2, batch_size=4, whole=8, rise=2)
    rates = []
    for round_ in range(4):
        optimiser = replace(rule, before=2 * round_).optimiser()
        state = optimiser.init(jnp.zeros(()))
        for _ in range(2):
            update, state = optimiser.update(jnp.ones(()), state, jnp.zeros(()))
            rates.append(-float(update))
    expected = [0.8 * min((s + 1) / 3, (8 - s) / 6, 1) for s in range(8)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_rounds_of_one_step_are_one_round_of_many_where_nothing_else_is_kept():
    data = ct.data.mixed_regression(1, 2, 6, 3, seed=0)

    def trained(rounds, steps):
        rule = Triangular(0.1, steps=steps, whole=6, rise=2)
        return ct.Local(rounds=rounds).fit(data.train, ct.Learner(ct.models.Linear(), "squared", rule)).models

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), trained(6, 1), trained(1, 6))
    plain = ct.Learner(ct.models.Linear(), "squared", SGD(0.1, steps=6))
    others = ct.Local(rounds=1).fit(data.train, plain).models
    assert not np.allclose(jax.tree.leaves(others)[0], jax.tree.leaves(trained(1, 6))[0])


# -- a trial -------------------------------------------------------------------------------------------------


# nearly all of it is compiling: all methods with the smallest network, and elsewhere some that use all parts
RUNS = [
    ("text", "inverted-mnist", None),
    ("authors", "inverted-mnist", None),
    ("authors", "rotated-mnist", ("ifca",)),
    ("authors", "label-cifar10", ("srfca-released",)),
    ("text", "femnist", ("fedsoft",)),
    ("text", "shakespeare", ("one-shot-ifca",)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "data", "some"), RUNS, ids=lambda value: str(value))
def test_methods_run_on_every_data_set(files, data, preset, some):
    view = find(f"srfca/table{2 if data in SIMULATED else 4}", "smoke", preset)
    assert {*(some or ())} <= {*view.methods(data)}
    for method in some or view.methods(data):
        found = trial.trial(data, view.of[data], method, 0)
        assert 0 <= found["accuracy"] <= 1 and found["steps"] > 0, method


def test_trained_once_and_seen_at_every_step(files, monkeypatch):
    name, small = "rotated-mnist", setup("rotated-mnist", "smoke", "text")
    found = {method: trial.trial(name, small, method, 0) for method in ("srfca", "local", "local-kmeans")}
    assert trial.alone.cache_info().misses == 1
    ours, local = found["srfca"], found["local"]
    assert ours["after ONE_SHOT"] == local["accuracy"]
    assert ours["accuracy"] == ours["after 2nd REFINE"]
    one = replace(small, refines=1)
    assert trial.trial(name, one, "srfca", 0)["accuracy"] == ours["after 1st REFINE"]
    nobody = trial.trial(name, replace(small, released=1e-9), "srfca-released", 0)
    assert nobody["accuracy"] == local["accuracy"] and nobody["clusters"] == small.clients
    m = small.clients
    assert local["steps"] == found["local-kmeans"]["steps"] == m * small.iterations
    # those of clients trained alone come on top of REFINEs, and of merges that are tried where no gap is seen
    assert m * small.iterations < ours["steps"]
    assert nobody["steps"] <= 3 * m * small.iterations
    assert ours["passes"] >= m * m
    assert found["local-kmeans"]["models moved"] == pytest.approx(2 * m, rel=1e-3)


def test_models_of_the_head_of_a_vector(files):
    name, small = "inverted-mnist", setup("inverted-mnist", "smoke", "authors")
    found = trial.alone(name, small, 0).found
    vectors = np.asarray(ct.models.stacked.to_matrix(found.models))
    for leaf in jax.tree.leaves(trial.from_the_head(found).models):
        np.testing.assert_array_equal(leaf.reshape(len(leaf), -1), vectors[:, : leaf[0].size])


def test_networks_of_the_paper():
    for data, parameters in (("inverted-mnist", 159_010), ("femnist", 6_603_710)):
        whole = TEXT[data]
        knows = learner(data, whole, whole.rate, whole.local)
        spec = ct.data.shards.Spec(
            (28, 28), "uint8", (), "uint8", 10 if "mnist" in data[-10:] else 62, 1 / 255
        )
        shapes = knows.for_data(replace(spec, classes=62 if data == "femnist" else 10)).shapes(spec)
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


# -- the folder ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_methods(monkeypatch):
    """Fewer methods and data sets, to be quick."""
    monkeypatch.setattr(views.OwnData, "methods", lambda self, data: ("srfca", "local"))
    for name in ("table2", "table3", "table5", "fig3"):
        figure = FIGURES[f"srfca/{name}"]

        def make(scale, preset, figure=figure):
            whole = figure.make(scale, preset)
            return replace(whole, setups=tuple(one for one in whole.setups if one[0] == "inverted-mnist"))

        monkeypatch.setitem(FIGURES, figure.name, replace(figure, make=make))


def test_views_share_what_they_show(files, two_methods, tmp_path):
    out = tmp_path / "out"
    table2 = reproduce("srfca/table2", "smoke", out=out)
    computed = {file.name: file.stat().st_mtime_ns for file in (out / "points").iterdir()}
    assert len(computed) == 2
    for name in ("table3", "table5", "fig3"):
        content = reproduce(f"srfca/{name}", "smoke", out=out)
        assert content["folder"] == str(out / name)
        for file in ("results.json", "table.csv", "table.md", "figure.png", "figure.svg"):
            assert (out / name / file).stat().st_size > 0
        assert all(finding["agrees"] is None for finding in content["findings"])
    assert {file.name: file.stat().st_mtime_ns for file in (out / "points").iterdir()} == computed
    assert table2["table"][0]["published"] == 92.03 and table2["table"][1]["published"] == 76.52
    steps = json.loads((out / "table5" / "results.json").read_text())["table"]
    assert [row["published"] for row in steps] == [76.52, 91.88, 92.03]
    assert steps[2]["accuracy (%)"] == table2["table"][0]["accuracy (%)"]


def test_a_point_is_foretold_once(files, two_methods, tmp_path):
    shown = ("srfca/table2", "srfca/table3", "srfca/table5", "srfca/fig3")
    of = {task.name: task for task in tasks("smoke", "text", 0, tmp_path)}
    # Table 1 comes first, and has them all
    assert of["srfca/table1"].missing == of["srfca/table1"].points == 2 * len(SIMULATED)
    assert [of[name].missing for name in shown] == [0, 0, 0, 0]
    assert [of[name].points for name in shown] == [2, 1, 1, 1]
    reproduce("srfca/table3", "smoke", out=default_folder("srfca/table3", "smoke", "text", 0, tmp_path))
    of = {task.name: task for task in tasks("smoke", "text", 0, tmp_path)}
    assert of["srfca/table1"].missing == 2 * len(SIMULATED) - 1


def test_settings_are_those_of_what_is_shown(files, two_methods, tmp_path, monkeypatch):
    reproduce("srfca/table2", "smoke", out=tmp_path / "out", only="local")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())
    assert settings["inverted-mnist"]["iterations"] == setup("inverted-mnist", "smoke", "text").iterations
    assert settings["name"] == "srfca/tables" and "femnist" not in settings
    figure = FIGURES["srfca/table3"]

    def otherwise(scale, preset):
        whole = figure.make(scale, preset)
        return replace(whole, setups=tuple((name, replace(s, rate=7.0)) for name, s in whole.setups))

    monkeypatch.setitem(FIGURES, "srfca/table3", replace(figure, make=otherwise))
    with pytest.raises(ct.errors.RunFolderError, match="inverted-mnist is"):
        reproduce("srfca/table3", "smoke", out=tmp_path / "out")


# -- the fair comparison -------------------------------------------------------------------------------------


def test_settings_are_chosen_first_and_on_training_examples(files, tmp_path, monkeypatch):
    monkeypatch.setattr(views.OwnData, "methods", lambda self, data: ("local",))
    figure = FIGURES["srfca/table2"]

    def make(scale, preset):
        whole = figure.make(scale, preset)
        return replace(whole, setups=whole.setups[:1])

    monkeypatch.setitem(FIGURES, figure.name, replace(figure, make=make))
    with pytest.raises(ConfigError, match="--only 'inverted-mnist local tuning'"):
        reproduce(figure.name, "smoke", "fair", out=tmp_path / "out", only="seed 0")
    reproduce(figure.name, "smoke", "fair", out=tmp_path / "out", only="tuning")
    content = reproduce(figure.name, "smoke", "fair", out=tmp_path / "out", only="seed 0")
    tried = {
        float(name.rpartition(" ")[2]): how for name, how in content["points"].items() if "tuning" in name
    }
    small = setup("inverted-mnist", "smoke", "fair")
    assert len(tried) == 5 and small.rate in tried
    whole = clients("inverted-mnist", small, 999)
    assert whole.test is not None
    shown = fair._validation("inverted-mnist", small, 999)
    held_out = {x.tobytes() for xs, _ in shown.test.shards for x in xs}
    assert held_out <= {x.tobytes() for xs, _ in whole.train for x in xs}
    assert not held_out & {x.tobytes() for xs, _ in shown.train.shards for x in xs}


@pytest.mark.parametrize("rounds", [6, 50, 56, 200, 1000])
def test_five_starts_take_no_more_than_one(rounds):
    few = fair.rounds_of_starts(rounds)

    def taken(rounds):
        contest = ct.IFCA(2, rounds=rounds).contest
        return 5 * min(contest, rounds) + max(0, rounds - contest)

    assert taken(few) <= rounds < taken(few + 1)


# -- what is said --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "judge, values, verdict",
    [
        (statements.better(), ([0.9, 0.91, 0.9], [0.8, 0.81, 0.8]), True),
        (statements.better(0.2), ([0.9, 0.91, 0.9], [0.8, 0.81, 0.8]), False),
        (statements.better(), ([0.9, 0.91, 0.9], [0.8, 0.81, 0.8], [0.95, 0.96, 0.95]), False),
        (statements.better(), ([0.9, 0.8, 0.7], [0.8, 0.9, 0.7]), None),
        (statements.similar(0.05), ([0.9, 0.91, 0.9], [0.91, 0.91, 0.9]), True),
        (statements.similar(0.05), ([0.9, 0.91, 0.9], [0.7, 0.71, 0.7]), False),
        (statements.similar(0.05), ([0.9, 0.8, 0.7], [0.7, 0.8, 0.9]), None),
        (statements.no_more(0.002), ([0.9, 0.9, 0.9], [0.901, 0.9, 0.9005]), True),
        (statements.no_more(0.002), ([0.9, 0.9, 0.9], [0.92, 0.93, 0.92]), False),
        (statements.reaches(Published(91.0, 0.5)), ([0.91, 0.911, 0.909],), True),
        (statements.reaches(Published(91.0, 0.5)), ([0.89, 0.891, 0.889],), False),
        (statements.near(0.5, 0.05), ([0.5, 0.47],), True),
        (statements.near(0.5, 0.05), ([0.5, 0.0],), False),
        (statements.never_wrong, ([0.0, 0.0],), True),
        (statements.never_wrong, ([0.0, 0.1],), False),
        (statements.always_wrong, ([0.2, 0.1],), True),
        (statements.always_wrong, ([0.0, 0.0],), False),
        (statements.always_wrong, ([0.0, 0.1],), None),
    ],
)
def test_verdicts(judge, values, verdict):
    said, found = judge(*map(np.array, values))
    assert found is verdict and said.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_about_what_is_computed(name):
    for preset in FIGURES[name].presets:
        view = find(name, "paper", preset)
        computed = set(view.computed())
        claims = view.claims()
        assert claims
        for claim in claims:
            assert {one if isinstance(one, str) else one[0] for one in claim.of} <= computed, claim.paper


def test_too_little_training_decides_nothing():
    view = replace(find("srfca/table3", "small", "text"), trials=1)
    results = {name: {"misclustering": np.array(0.0)} for name in (point.name for point in view.points())}
    for finding in view.findings(results):
        assert (finding.agrees is None) == ("CIFAR" in finding.paper)
