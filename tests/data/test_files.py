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
    truth = client_file(made(tmp_path / f"b.{kind}", np.array([True, False, True, True])), "a")
    assert truth.spec.classes == 2 and truth.client(0)[1].tolist() == [1, 0, 1, 1]


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
    path.mkdir()  # nor is a folder a file
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


def text(content, encoding="utf-8"):
    return lambda path: path.write_bytes(content.encode(encoding))


def single_array(path):
    with open(path, "wb") as file:
        np.save(file, X)


GAP = pd.array([0, 1, None, 2], "Int64")
CITIES = ["a", "b", "c", "d"]
WRONG = {
    **{
        f"no such column of a {kind} file": (
            kind,
            lambda path: pd.DataFrame({"a": X[:, 0], "b": REAL}).pipe(
                lambda f: f.to_csv(path, index=False) if path.suffix == ".csv" else f.to_parquet(path)
            ),
            "has no column 'y'; its columns are a, b",
        )
        for kind in ("csv", "parquet")
    },
    **{
        f"text in a {kind} file": (kind, lambda path: table(path, REAL, city=CITIES), "column 'city' holds")
        for kind in ("csv", "parquet")
    },
    **{
        f"no {missing} in a {kind} file": (
            kind,
            lambda path, there=there: arrays(path, **{there: X, "z": REAL}),
            f"has no array {missing!r}; its arrays are {there}, z",
        )
        for kind in ("npz", "safetensors")
        for missing, there in ("xy", "yx")
    },
    "a row too long": ("csv", text("a,b,y\n1,2,0.5\n1,2,3,4,0.5\n"), "line 3"),
    "another encoding": ("csv", text("größe,y\n1,0.5\n", "utf-16"), "cannot be read"),
    "targets of text": ("csv", lambda path: table(path, ["yes", "no", "no", "yes"]), "column 'y' holds"),
    "no features": ("csv", text("y\n1.5\n2.5\n"), "features are missing"),
    "no rows": ("csv", text("a,b,y\n"), "empty"),
    "dates": (
        "parquet",
        lambda path: table(path, REAL, day=pd.date_range("2024-01-01", periods=4)),
        "column 'day' holds",
    ),
    "a gap in whole numbers": ("parquet", lambda path: table(path, GAP), "targets of example 2 contain nan"),
    "a single array": ("npz", single_array, "cannot be read"),
    "too few targets": (
        "npz",
        lambda path: arrays(path, x=X, y=REAL[:3]),
        "do not have one row per example each",
    ),
    "no examples": ("npz", lambda path: arrays(path, x=X[:0], y=REAL[:0]), "client a is empty"),
    "labels below zero": (
        "npz",
        lambda path: made(path, np.array([0, -1, 2, 1])),
        "label -1 is outside the classes 0 and up",
    ),
    "labels too large": ("npz", lambda path: made(path, np.array([0, 2**32, 2, 1])), "4294967296"),
    "complex features": ("npz", lambda path: arrays(path, x=np.ones((4, 3), complex), y=REAL), "not numbers"),
    "features of text": (
        "npz",
        lambda path: arrays(path, x=np.array([["a"] * 3] * 4), y=REAL),
        "not numbers",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_a_file_is_told_in_a_sentence(case, tmp_path):
    kind, write, words = WRONG[case]
    path = tmp_path / f"a.{kind}"
    write(path)
    assert words in sentence(client_file, path, "a")


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


def test_a_pickle_is_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was loaded",))

    np.savez(tmp_path / "a.npz", x=X, y=np.array([Trap()] * 4, object))
    assert "cannot be read" in sentence(client_file, tmp_path / "a.npz", "a")
    (tmp_path / "b.npz").write_bytes(pickle.dumps({"x": X, "y": Trap()}))
    sentence(client_file, tmp_path / "b.npz", "a")
