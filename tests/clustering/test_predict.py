"""What is said of rows that come later."""

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.table import read
from coterie.errors import DataError

CLIENTS, ROWS = 8, 30


def readings(seed=0, result=None):
    """Machines of two kinds, of which heat breaks the one and cold the other."""
    rng = np.random.default_rng(seed)
    machine = np.repeat([f"m{i}" for i in range(CLIENTS)], ROWS)
    kind = np.repeat(np.arange(CLIENTS) % 2, ROWS)
    heat = rng.normal(60, 10, len(machine))
    away = (heat - 60) / 10 * np.where(kind, 1, -1)
    fault = np.where(away > 0, "yes", "no") if result is None else result(away)
    return pd.DataFrame(
        {"machine": machine, "heat": heat, "oil": rng.choice(["a", "b"], len(machine)), "fault": fault}
    )


def fitted(frame, model=None, algorithm=None, **options):
    data = ct.data.table(frame, client="machine", label="fault", **options)
    loss = "cross_entropy" if data.preparation.label.classes else "squared"
    learner = ct.Learner(model or ct.models.Linear(bias=True), loss, ct.SGD(0.5, steps=5))
    return data, (algorithm or ct.IFCA(k=2, rounds=15)).fit(data.train, learner, seed=0)


@pytest.fixture(scope="module")
def found():
    return fitted(readings())[1]


def test_rows_of_known_clients_get_names_of_classes_from_their_clusters_model(found, tmp_path):
    later = readings(seed=1).drop(columns="fault").sample(frac=1, random_state=0)
    said = found.predict(later)
    assert said.columns.tolist() == ["client", "cluster", "p(no)", "p(yes)", "prediction"]
    assert said.client.tolist() == later.machine.tolist()
    truth = readings(seed=1).fault[later.index]
    assert (said.prediction.to_numpy() == truth.to_numpy()).mean() > 0.9
    np.testing.assert_allclose(said["p(no)"] + said["p(yes)"], 1, rtol=1e-5)
    of = dict(zip(found.ids, found.assignment, strict=True))
    assert said.cluster.tolist() == [of[name] for name in said.client]
    later.to_csv(tmp_path / "later.csv", index=False)
    pd.testing.assert_frame_equal(found.predict(tmp_path / "later.csv"), said, check_dtype=False)


def test_they_are_what_the_model_gives_row_by_row(found):
    later = readings(seed=2)
    said = found.predict(later)
    x = found.preparation.x(read(later)[0])
    for i in range(0, len(x), 37):
        layer = found.models.layers[0]
        j = said.cluster[i]
        outputs = np.asarray(layer.weight[j]) @ x[i] + np.asarray(layer.bias[j])
        shares = np.exp(outputs) / np.exp(outputs).sum()
        assert said["p(yes)"][i] == pytest.approx(shares[1], abs=1e-5)


def test_one_client_or_one_cluster_may_be_said_for_all_rows(found):
    hot = {"heat": [90.0, 30.0], "oil": ["a", None]}
    warm, cold = (found.predict(hot, client=name).prediction.tolist() for name in ("m1", "m0"))
    assert (warm, cold) == (["yes", "no"], ["no", "yes"])
    cluster = int(found.assignment[1])
    said = found.predict(hot, cluster=cluster)
    assert said.prediction.tolist() == warm and said.columns[0] == "cluster"
    renamed = readings().rename(columns={"machine": "unit"})
    pd.testing.assert_frame_equal(found.predict(renamed, client="unit"), found.predict(readings()))


def test_a_regression_is_read_in_the_units_of_the_table():
    _, found = fitted(readings(result=lambda away: 1000 + 50 * away), ct.models.Linear(bias=True))
    said = found.predict(readings(seed=3))
    truth = readings(seed=3, result=lambda away: 1000 + 50 * away).fault
    assert np.abs(said.prediction - truth).max() < 10
    assert "p(no)" not in said


def test_a_result_that_was_kept_takes_tables_too(found, tmp_path):
    found.save(tmp_path)
    again = ct.load(tmp_path)
    assert again.preparation == found.preparation
    pd.testing.assert_frame_equal(again.predict(readings(seed=4)), found.predict(readings(seed=4)))


def test_clients_with_models_of_their_own_are_served_by_these():
    data, found = fitted(readings(), algorithm=ct.FedSoft(k=2, rounds=10))
    said = found.predict(readings(seed=5))
    scored = found.evaluate(data.test, personal=True).accuracy
    assert (said.prediction == readings(seed=5).fault).mean() == pytest.approx(scored, abs=0.1)
    by_cluster = found.predict(readings(seed=5), cluster=0)
    assert not np.allclose(by_cluster["p(yes)"], said["p(yes)"])


def test_arrays_are_taken_where_clients_came_from_arrays():
    data = ct.data.rotated_digits(clients=8, rotations=(0, 180), seed=0, unseen=0)
    learner = ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(0.1, steps=5))
    found = ct.Oracle(data.truth, rounds=10).fit(data.train, learner)
    x, y = data.test.client(3)
    said = found.predict(x, client=data.train.ids[3])
    wanted = found.evaluate(data.test, "train").per_client.accuracy[3]
    assert (said.prediction == y).mean() == pytest.approx(wanted)
    with pytest.raises(DataError, match=r"rows have features of shape \(3,\); the models were trained on \("):
        found.predict(np.ones((2, 3)), client=data.train.ids[3])
    with pytest.raises(DataError, match="nothing says whose rows these are: give client"):
        found.predict(x)


@pytest.mark.parametrize(
    "rows, options, said",
    [
        (
            {"heat": [1.0], "oil": ["a"]},
            {"client": "m9"},
            "client m9 has no cluster from training: say which",
        ),
        ({"heat": [1.0], "oil": ["a"]}, {"cluster": 2}, "there is no cluster 2: there are 0 to 1."),
        ({"heat": [1.0]}, {"cluster": 0}, "there is no column 'oil', which the models were trained with."),
        (
            {"heat": ["x"], "oil": ["a"]},
            {"cluster": 0},
            "column 'heat' holds words, and held numbers before.",
        ),
        ({"heat": [], "oil": []}, {"cluster": 0}, "there are no rows."),
        (3, {"cluster": 0}, "this is not a table: give a .csv or .parquet file, or a frame, not int."),
    ],
)
def test_rows_that_cannot_be_used_are_refused_in_a_sentence(found, rows, options, said):
    with pytest.raises(DataError) as raised:
        found.predict(rows, **options)
    assert said in str(raised.value) and "\n" not in str(raised.value)
