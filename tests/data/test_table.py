"""Tables of the user's own: what becomes of rows and columns, and what is refused."""

import datetime
import json
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import coterie as ct
from coterie.data.preparation import Preparation
from coterie.data.table import table
from coterie.errors import DataError

ROWS, CLIENTS = 240, 6


def readings(**columns):
    """A small table: who, two numbers, words, and whether something broke."""
    rng = np.random.default_rng(0)
    content = {
        "machine": [f"m{i % CLIENTS}" for i in range(ROWS)],
        "heat": rng.normal(40, 5, ROWS),
        "oil": rng.choice(["thick", "thin", "none"], ROWS),
        "fault": rng.choice(["no", "yes"], ROWS, p=[0.75, 0.25]),
    }
    return pd.DataFrame({**content, **columns})


def made(frame, label="fault", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return table(frame, client="machine", label=label, **options)


def column_of(data, title):
    """A feature of all training examples, one client after another."""
    at = data.preparation.features.index(title)
    return np.concatenate([x[:, at] for x, _ in data.train])


def test_every_row_is_an_example_of_its_client():
    frame = readings()
    data = made(frame)
    assert data.train.ids.tolist() == data.test.ids.tolist() == [f"m{i}" for i in range(CLIENTS)]
    assert data.train.spec.classes == 2 and data.preparation.label.classes == ("no", "yes")
    assert (data.train.sizes + data.test.sizes == ROWS // CLIENTS).all()
    mean, deviation = (getattr(data.preparation.columns[0], name) for name in ("mean", "deviation"))
    for i, name in enumerate(data.train.ids):
        mine = frame[frame.machine == name]
        (x, y), (tx, ty) = data.train.client(i), data.test.client(i)
        heat = np.concatenate([x[:, 0], tx[:, 0]]) * deviation + mean
        np.testing.assert_allclose(np.sort(heat), np.sort(mine.heat), rtol=1e-5)
        assert np.concatenate([y, ty]).sum() == (mine.fault == "yes").sum()


def test_numbers_are_scaled_by_training_rows_alone():
    frame = readings()
    data = made(frame)
    heat = column_of(data, "heat")
    assert abs(heat.mean()) < 1e-5 and abs(heat.std() - 1) < 1e-5
    held_out = np.concatenate([x[:, 0] for x, _ in data.test])
    assert abs(held_out.mean()) > 1e-3, "or the scale would be that of all rows"


def test_words_are_features_one_for_each_or_how_often_they_are_there():
    rng = np.random.default_rng(1)
    many = rng.choice([f"part {i}" for i in range(40)], ROWS, p=np.arange(1, 41) / 820)
    data = made(readings(part=many))
    assert data.preparation.features == ["heat", "oil = none", "oil = thick", "oil = thin", "part"]
    oil = np.stack([column_of(data, f"oil = {word}") for word in ("none", "thick", "thin")])
    assert set(oil.ravel()) == {0.0, 1.0} and (oil.sum(0) == 1).all()
    part = column_of(data, "part")
    assert 4 < len(np.unique(part)) < 40 and abs(part.std() - 1) < 1e-4


def test_what_is_missing_is_told_by_a_feature_and_in_words():
    frame = readings()
    frame.loc[frame.index % 8 == 3, "heat"] = np.nan
    frame.loc[:9, "oil"] = None
    data = made(frame)
    assert data.preparation.features[:2] == ["heat", "heat is missing"]
    heat, missing = column_of(data, "heat"), column_of(data, "heat is missing")
    assert (heat[missing == 1] == 0).all() and 0 < missing.sum() < 30
    assert "'heat' lacks 30 values of 240, most of them client m3's (10): a feature tells where." in (
        data.preparation.notes
    )
    oil = np.stack([column_of(data, f"oil = {word}") for word in ("none", "thick", "thin")])
    assert (oil.sum(0) == 1 - column_of(data, "oil is missing")).all()


def test_dates_become_days_when_asked_to():
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i % 100) for i in range(ROWS)]
    data = made(readings(day=days), dates=True)
    column = data.preparation.columns[-1]
    assert column.kind == "date"
    found = column_of(data, "day") * column.deviation + column.mean
    since = {(day - datetime.date(1970, 1, 1)).days for day in days}
    assert set(np.round(found).astype(int).tolist()) <= since and np.abs(found - np.round(found)).max() < 0.01


@pytest.mark.parametrize(
    "values, task, classes",
    [
        (["b", "a"] * 120, "auto", ("a", "b")),
        ([True, False] * 120, "auto", ("False", "True")),
        ([10, 9, 2] * 80, "auto", ("2", "9", "10")),
        (list(range(240)), "auto", ()),  # whole numbers are no labels by themselves
        ([i % 30 for i in range(240)], "auto", ()),
        ([0.0, 1.0] * 120, "auto", ()),
        ([0.0, 1.0] * 120, "classification", ("0.0", "1.0")),
        ([0, 1] * 120, "regression", ()),
        ([True, False] * 120, "regression", ()),
    ],
)
def test_labels_and_numbers_are_told_apart_by_a_rule_that_can_be_overruled(values, task, classes):
    data = made(readings(result=values), label="result", task=task)
    label = data.preparation.label
    assert label.classes == classes and data.train.spec.classes == (len(classes) or None)
    y = np.concatenate([y for _, y in data.train])
    if classes:
        outputs = np.eye(len(classes))[y]
        assert set(label.read(outputs)) == set(classes)
        assert set(map(str, values)) == set(classes)
    else:
        assert abs(y.mean()) < 1e-5 and abs(y.std() - 1) < 1e-5
        read = label.read(np.concatenate([y, *(y for _, y in data.test)]))
        np.testing.assert_allclose(np.sort(read), np.sort(values), rtol=1e-4, atol=1e-4)


def test_held_out_rows_are_of_each_class_alike_and_every_client_keeps_some():
    sizes = [1, 2, 3, 4, 7, 50, 100]
    machine = np.repeat([f"m{i}" for i in range(len(sizes))], sizes)
    rng = np.random.default_rng(0)
    fault = rng.choice(["no", "yes"], len(machine), p=[0.8, 0.2])
    frame = pd.DataFrame({"machine": machine, "heat": rng.random(len(machine)), "fault": fault})
    data = made(frame, test=0.3)
    assert data.train.ids.tolist() == [f"m{i}" for i in range(7)]
    assert data.test.ids.tolist() == [f"m{i}" for i in range(1, 7)]
    assert data.train.sizes.tolist()[:3] == [1, 1, 2] and (data.train.sizes > 0).all()
    for name in ("m5", "m6"):
        counts = [
            np.bincount(s.client(s.ids.tolist().index(name))[1], minlength=2) for s in (data.train, data.test)
        ]
        share = counts[1] / sum(counts)
        assert (abs(share - 0.3) * sum(counts) <= 1.01).all()
    said = " ".join(data.preparation.notes)
    assert (
        "4 clients with fewer than 5 rows: m0, m1, m2, m3." in said and "1 client with a single row" in said
    )
    again, other = made(frame, test=0.3), made(frame, test=0.3, seed=1)
    np.testing.assert_array_equal(again.test.client(4)[0], data.test.client(4)[0])
    assert not np.array_equal(other.test.client(5)[0], data.test.client(5)[0])
    assert made(frame, test=0).test is None


def test_a_result_can_be_trained_and_tested_where_some_clients_have_no_test():
    sizes = [1, 40, 40, 40]
    rng = np.random.default_rng(0)
    machine = np.repeat(list("abcd"), sizes)
    heat = rng.normal(size=len(machine))
    frame = pd.DataFrame(
        {"machine": machine, "heat": heat, "fault": heat + rng.normal(size=len(machine)) > 0}
    )
    data = made(frame)
    learner = ct.Learner(ct.models.Linear(bias=True), local=ct.SGD(0.5, steps=5))
    found = ct.Global(rounds=5).fit(data.train, learner)
    assert found.evaluate(data.test).accuracy > 0.6


def test_the_order_of_rows_changes_nothing_that_is_learned_of_columns():
    frame = readings()
    a, b = made(frame, test=0).preparation, made(frame.sample(frac=1, random_state=3), test=0).preparation
    assert a.features == b.features and a.label == b.label
    assert a.columns[0].mean == pytest.approx(b.columns[0].mean)


def test_files_and_frames_are_the_same(tmp_path):
    frame = readings()
    frame.to_csv(tmp_path / "a.csv", index=False)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "a.parquet")
    wanted = made(frame)
    for source in (tmp_path / "a.csv", str(tmp_path / "a.parquet"), pa.Table.from_pandas(frame)):
        data = made(source, folder=None)
        assert data.preparation.features == wanted.preparation.features
        for i in range(CLIENTS):
            np.testing.assert_allclose(data.train.client(i)[0], wanted.train.client(i)[0], rtol=1e-6)
    kept = made(frame, folder=tmp_path / "kept")
    assert isinstance(kept.train.buckets[0].x, np.memmap)
    np.testing.assert_array_equal(kept.train.client(2)[0], wanted.train.client(2)[0])


def test_a_preparation_is_kept_as_plain_values():
    data = made(readings(part=[f"p{i % 19}" for i in range(ROWS)]))
    again = Preparation.from_json(json.loads(json.dumps(data.preparation.to_json())))
    assert again == data.preparation
    later = pa.Table.from_pandas(readings(part=["new"] * ROWS, oil=["thin"] * (ROWS - 1) + [None]))
    x = again.x(later)
    assert x.shape == (ROWS, len(again.features)) and np.isfinite(x).all()
    with pytest.raises(DataError, match="there is no column 'part', which the models were trained with"):
        again.x(later.drop_columns("part"))
    assert "label: fault, 2 classes" in str(again) and "clients: machine" in str(again)


def test_a_column_that_repeats_the_client_is_warned_of():
    region = ["north" if i % CLIENTS < 3 else "south" for i in range(ROWS)]
    with pytest.warns(
        UserWarning, match="region = north, region = south are the same in all rows of a client"
    ):
        table(readings(region=region), client="machine", label="fault")


def test_columns_of_no_use_are_left_out_and_said_to_be():
    data = made(readings(plant="x", level=3, empty=[None] * ROWS))
    assert data.preparation.features[0] == "heat" and len(data.preparation.columns) == 2
    said = " ".join(data.preparation.notes)
    for name in ("plant", "level"):
        assert f"'{name}' is the same in all training rows and is left out." in said
    assert "'empty' holds nothing and is left out." in said


WRONG = {
    "no such client column": (
        lambda: table(readings(), "unit", "fault"),
        "has no column 'unit'; its columns are",
    ),
    "no such label": (lambda: table(readings(), "machine", "broken"), "has no column 'broken'"),
    "no such feature": (lambda: made(readings(), features=["cold"]), "has no column 'cold'"),
    "no features": (lambda: made(readings()[["machine", "fault"]]), "features are missing"),
    "empty": (lambda: made(readings()[:0]), "is empty: there are no examples"),
    "one client": (lambda: made(readings(machine="a")), "one client only (machine is a in every row)"),
    "a client for each row": (
        lambda: made(readings(machine=list(range(ROWS)))),
        "every row of the table has a client of its own: is 'machine' the column",
    ),
    "a client that is missing": (
        lambda: made(readings(machine=[None, *["a", "b"] * 119, "a"])),
        "column 'machine' names no client in row 1",
    ),
    "fractions for clients": (
        lambda: made(readings(machine=[i % 4 + 0.5 for i in range(ROWS)])),
        "has the id 0.5: give whole numbers or text",
    ),
    "a constant label": (
        lambda: made(readings(fault="no")),
        "column 'fault' is 'no' in every row: there is nothing to foretell.",
    ),
    "a label that is missing": (
        lambda: made(readings(fault=[None, *["no", "yes"] * 119, "no"])),
        "column 'fault', which is to be foretold, lacks 1 value.",
    ),
    "words for a regression": (
        lambda: made(readings(), task="regression"),
        "holds words: that is a classific",
    ),
    "text": (
        lambda: made(readings(note=[f"note {i}" for i in range(ROWS)])),
        "column 'note' holds text: 192 different values in 192 rows. Leave it out with features=[...].",
    ),
    "dates": (
        lambda: made(readings(day=[datetime.date(2024, 1, 1)] * ROWS)),
        "column 'day' holds dates: give dates=True",
    ),
    "lists": (
        lambda: made(readings(extra=[[1, 2]] * ROWS)),
        "which is neither numbers nor words: leave it out",
    ),
    "infinite": (
        lambda: made(readings(heat=[1.0] * 7 + [np.inf] + [2.0] * (ROWS - 8))),
        "column 'heat' holds inf in row 8, of client m1: remove or fill such values first.",
    ),
    "too large": (
        lambda: made(readings(heat=[1e200, -1e200] * 120)),
        "column 'heat' holds numbers up to 1e+200, which are too large.",
    ),
    "nothing of use": (
        lambda: made(readings(heat=1.0, oil="x")),
        "no column is left for features: 'heat' is the same in all training rows and is left out.",
    ),
    "a share of 2": (lambda: made(readings(), test=2), "test must be a share from 0 up to below 1, not 2."),
    "no table": (
        lambda: made([1, 2]),
        "this is not a table: give a .csv or .parquet file, or a frame, not list.",
    ),
    "no file": (lambda: made("nowhere.csv"), "nowhere.csv cannot be read: there is no such file."),
}


@pytest.mark.parametrize("make, said", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_refused_in_a_sentence(make, said):
    with pytest.raises(DataError) as raised:
        make()
    assert (
        said in str(raised.value) and "\n" not in str(raised.value) and str(raised.value).endswith((".", "?"))
    )


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "cannot be read: Empty CSV file."),
        (b"machine,heat,heat,fault\na,1,2,x\nb,2,3,y\nb,2,3,y\n", "has two columns called 'heat'"),
        (b"machine,heat,fault\na,1\n", "cannot be read: CSV parse error: Expected 3 columns, got 2: a,1."),
        (
            b"machine,heat,oil,fault\na,1,\xff\xfe,x\nb,2,c,y\na,3,c,x\nb,3,d,x\n",
            ": column 'oil' is not UTF-8: save",
        ),
    ],
)
def test_a_damaged_csv_file_is_named(tmp_path, content, said):
    file = tmp_path / "readings.csv"
    file.write_bytes(content)
    with pytest.raises(DataError) as raised:
        made(file)
    assert str(raised.value).startswith((str(file), "readings.csv ")) and said in str(raised.value)


def test_another_kind_of_file_is_named(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    (tmp_path / "a.parquet").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"a\.xlsx is not a table: give a \.csv or \.parquet file"):
        made(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: "):
        made(tmp_path / "a.parquet")


def test_an_experiment_file_names_a_table(tmp_path):
    readings().to_csv(tmp_path / "readings.csv", index=False)
    settings = {"source": str(tmp_path / "readings.csv"), "client": "machine", "label": "fault"}
    made_from_file = ct.registry.build("data", "table", settings)
    assert made_from_file.preparation == made(readings()).preparation
