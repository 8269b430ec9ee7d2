"""One client's examples in a file of its own."""

import pickle

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from coterie.data import client_file
from coterie.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
REAL = np.array([0.5, -1.0, 2.0, 3.25], np.float32)
LABELS = np.array([0, 2, 1, 2])


def table(path, y, **more):
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, **more)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


def arrays(path, **content):
    np.savez(path, **content) if path.suffix == ".npz" else save_file(content, path)
    return path


def made(path, y=REAL):
    if path.suffix.lower() in (".csv", ".parquet"):
        return table(path, y)
    return arrays(path, x=X, y=y)


def sentence(call, *args, **kwargs):
    with pytest.raises(DataError) as raised:
        call(*args, **kwargs)
    message = str(raised.value)
    assert message.endswith(".") and "\n" not in message and "Error(" not in message
    return message


KINDS = ("csv", "parquet", "npz", "safetensors")


# -- files that are what they should be -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_real_targets_come_back_as_they_are_in_the_file(kind, tmp_path):
    shards = client_file(made(tmp_path / f"a.{kind}"), "hospital")
    x, y = shards.client(0)
    np.testing.assert_allclose(x, X, rtol=1e-6)
    np.testing.assert_array_equal(y, REAL)
    assert shards.ids.tolist() == ["hospital"] and len(shards) == 1
    assert shards.spec.classes is None
    assert (shards.spec.x_dtype, shards.spec.y_dtype) == ("float32", "float32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_whole_numbers_are_class_labels(kind, dtype, tmp_path):
    shards = client_file(made(tmp_path / f"a.{kind}", LABELS.astype(dtype)), "a")
    assert shards.spec.classes == 3
    # the same whatever the file's type, so that clients with other files are alike
    assert shards.spec.y_dtype == "int32"
    np.testing.assert_array_equal(shards.client(0)[1], LABELS)


def test_true_and_false_are_two_classes(tmp_path):
    shards = client_file(table(tmp_path / "a.csv", [True, False, True, True]), "a")
    assert shards.spec.classes == 2
    assert shards.client(0)[1].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_file_look_the_same_to_a_server(kind, tmp_path):
    for y in (REAL, LABELS):
        here = client_file(made(tmp_path / f"a.{kind}", y), "a").spec
        assert here == client_file(made(tmp_path / "b.csv", y), "a").spec


def test_other_columns_are_features_in_their_order(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("b,price,a\n1,10.5,2\n3,11.5,4\n")
    x, y = client_file(path, "a", target="price").client(0)
    assert x.tolist() == [[1, 2], [3, 4]] and y.tolist() == [10.5, 11.5]


def test_an_array_of_another_name_may_hold_the_targets(tmp_path):
    path = arrays(tmp_path / "a.npz", x=X, y=REAL, label=LABELS)
    assert client_file(path, "a", target="label").spec.classes == 3


def test_examples_may_be_pictures(tmp_path):
    pictures = np.zeros((4, 8, 8, 1), np.uint8)
    spec = client_file(arrays(tmp_path / "a.npz", x=pictures, y=LABELS), "a").spec
    assert spec.x_shape == (8, 8, 1) and spec.x_dtype == "uint8"


def test_the_number_of_classes_can_be_given(tmp_path):
    path = made(tmp_path / "a.csv", LABELS)
    assert client_file(path, "a", classes=10).spec.classes == 10
    assert "label 2 is outside the classes 0 to 1" in sentence(client_file, path, "a", classes=2)


def test_the_end_of_the_name_may_be_in_capitals(tmp_path):
    path = made(tmp_path / "a.csv").rename(tmp_path / "A.CSV")
    assert len(client_file(path, "a").client(0)[0]) == 4


# -- files that are not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a", "a.npy", "a.pkl", ""])
def test_another_kind_of_file_is_refused_and_the_right_ones_are_named(name, tmp_path):
    message = sentence(client_file, tmp_path / name, "a")
    assert "is not a file of examples" in message
    for kind in KINDS:
        assert f".{kind}" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(kind, tmp_path):
    path = tmp_path / f"gone.{kind}"
    message = sentence(client_file, path, "a")
    assert message.startswith(str(path)) and "o such file" in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_no_file(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    path.mkdir()
    assert str(path) in sentence(client_file, path, "a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe nonsense \x81", b"PK\x03\x04 nonsense"])
def test_a_file_of_something_else_cannot_be_read(kind, content, tmp_path):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    assert str(path) in sentence(client_file, path, "a")


@pytest.mark.parametrize("kind", ["parquet", "npz", "safetensors"])
@pytest.mark.parametrize("part", [0.5, 0.95])
def test_a_file_that_was_cut_off_cannot_be_read(kind, part, tmp_path):
    path = made(tmp_path / f"a.{kind}")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert "cannot be read" in sentence(client_file, path, "a")


def test_a_single_array_is_not_a_file_of_arrays(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, X)
    assert "a.npz" in sentence(client_file, tmp_path / "a.npz", "a")


def test_a_table_with_a_row_too_long_cannot_be_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,y\n1,2,0.5\n1,2,3,4,0.5\n")
    assert "line 3" in sentence(client_file, path, "a")


def test_a_table_in_another_encoding_cannot_be_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("größe,y\n1,0.5\n".encode("utf-16"))
    assert "cannot be read" in sentence(client_file, path, "a")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_missing_column_is_named_with_those_there_are(kind, tmp_path):
    message = sentence(client_file, made(tmp_path / f"a.{kind}"), "a", target="price")
    assert "has no column 'price'; its columns are a, b, c, y" in message


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("missing", ["x", "y"])
def test_a_missing_array_is_named_with_those_there_are(kind, missing, tmp_path):
    content = {"x": X, "y": REAL, "z": REAL}
    del content[missing]
    message = sentence(client_file, arrays(tmp_path / f"a.{kind}", **content), "a")
    assert f"has no array {missing!r}; its arrays are" in message
    assert all(name in message.rpartition("are")[2] for name in content)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_of_text_is_named(kind, tmp_path):
    message = sentence(client_file, table(tmp_path / f"a.{kind}", REAL, city=["a", "b", "c", "d"]), "a")
    assert "column 'city' holds" in message and "not numbers" in message


def test_targets_of_text_are_named(tmp_path):
    message = sentence(client_file, table(tmp_path / "a.csv", ["yes", "no", "no", "yes"]), "a")
    assert "column 'y' holds" in message and "not numbers" in message


def test_dates_are_not_numbers(tmp_path):
    path = table(tmp_path / "a.parquet", REAL, day=pd.date_range("2024-01-01", periods=4))
    assert "column 'day' holds" in sentence(client_file, path, "a")


def test_a_table_without_features_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("y\n1.5\n2.5\n")
    assert "features are missing" in sentence(client_file, tmp_path / "a.csv", "a")


def test_a_table_without_rows_is_empty(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,y\n")
    assert "empty" in sentence(client_file, tmp_path / "a.csv", "a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["features", "targets"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_a_number_is_named_with_its_example(kind, what, value, tmp_path):
    x, y = X.copy(), REAL.copy()
    (x if what == "features" else y)[2] = value
    path = tmp_path / f"a.{kind}"
    if kind in ("npz", "safetensors"):
        arrays(path, x=x, y=y)
    else:
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y)
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    message = sentence(client_file, path, "hospital")
    assert f"client hospital: {what} of example 2 contain {value}" in message


def test_a_gap_in_whole_numbers_is_not_a_number(tmp_path):
    path = tmp_path / "a.parquet"
    y = pd.array([0, 1, None, 2], "Int64")
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_parquet(path)
    sentence(client_file, path, "a")


def test_a_pickle_is_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was loaded",))

    np.savez(tmp_path / "a.npz", x=X, y=np.array([Trap()] * 4, object))
    assert "cannot be read" in sentence(client_file, tmp_path / "a.npz", "a")
    (tmp_path / "b.npz").write_bytes(pickle.dumps({"x": X, "y": Trap()}))
    sentence(client_file, tmp_path / "b.npz", "a")


def test_as_many_targets_as_examples_are_needed(tmp_path):
    message = sentence(client_file, arrays(tmp_path / "a.npz", x=X, y=REAL[:3]), "a")
    assert "do not have one row per example each" in message


def test_a_file_without_examples_is_empty(tmp_path):
    message = sentence(client_file, arrays(tmp_path / "a.npz", x=X[:0], y=REAL[:0]), "a")
    assert "client a is empty" in message


def test_labels_below_zero_are_refused(tmp_path):
    message = sentence(client_file, made(tmp_path / "a.npz", np.array([0, -1, 2, 1])), "a")
    assert "label -1 is outside the classes 0 and up" in message


def test_labels_too_large_for_a_class_are_refused_and_not_changed(tmp_path):
    message = sentence(client_file, made(tmp_path / "a.npz", np.array([0, 2**32, 2, 1])), "a")
    assert "4294967296" in message


@pytest.mark.parametrize("values", [np.ones((4, 3), complex), np.array([["a"] * 3] * 4)])
def test_features_that_are_no_numbers_are_refused(values, tmp_path):
    assert "not numbers" in sentence(client_file, arrays(tmp_path / "a.npz", x=values, y=REAL), "a")
