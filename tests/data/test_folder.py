"""A folder with a file for each client."""

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

import coterie as ct
from coterie.data.folder import folder
from coterie.data.table import table
from coterie.errors import DataError


def readings(seed, rows=40, **columns):
    rng = np.random.default_rng(seed)
    content = {
        "heat": rng.normal(40, 5, rows),
        "oil": rng.choice(["a", "b"], rows),
        "y": rng.choice([0, 1], rows),
    }
    return pd.DataFrame({**content, **columns})


@pytest.fixture
def hospitals(tmp_path):
    for i, name in enumerate(("north", "south", "west")):
        readings(i).to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def test_tables_are_prepared_together(hospitals):
    readings(1).to_parquet(hospitals / "south.parquet")
    (hospitals / "south.csv").unlink()
    data = folder(hospitals)
    parts = [readings(i).assign(who=name) for i, name in enumerate(("north", "south", "west"))]
    wanted = table(pd.concat(parts), "who", "y")
    assert data.train.ids.tolist() == ["north", "south", "west"] and data.name == hospitals.name
    assert data.preparation.columns == wanted.preparation.columns
    for i in range(3):
        for mine, theirs in zip(data.train.client(i), wanted.train.client(i), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_arrays_are_taken_as_they_are(tmp_path, kind):
    rng = np.random.default_rng(0)
    own = {
        f"p{i}": (rng.normal(size=(20 + i, 4, 3)).astype(np.float32), rng.integers(0, 3, 20 + i))
        for i in range(3)
    }
    for name, (x, y) in own.items():
        save = np.savez if kind == "npz" else lambda file, **arrays: save_file(arrays, file)
        save(tmp_path / f"{name}.{kind}", x=x, y=y)
    data = folder(tmp_path, test=0.25, seed=1)
    assert data.preparation is None and data.train.spec.x_shape == (4, 3) and data.train.spec.classes == 3
    for i, (x, y) in enumerate(own.values()):
        (a, ya), (b, yb) = data.train.client(i), data.test.client(i)
        assert len(b) == pytest.approx(len(x) / 4, abs=1)
        rows = sorted(np.concatenate([a, b]).tolist())
        assert rows == sorted(x.tolist()) and sorted([*ya, *yb]) == sorted(y.tolist())


def test_an_experiment_file_names_a_folder(hospitals):
    made = ct.registry.build("data", "folder", {"path": str(hospitals), "label": "y", "seed": 2})
    assert len(made.train) == 3 and made.train.spec.classes == 2


def write(path, **frames):
    for name, frame in frames.items():
        frame.to_csv(path / f"{name}.csv", index=False)


WRONG = {
    "no folder": (lambda path: folder(path / "nowhere"), "cannot be read: there is no such folder."),
    "no files": (
        lambda path: folder(path),
        "holds no .csv, .parquet, .npz, .safetensors file: give each client",
    ),
    "one file": (
        lambda path: write(path, a=readings(0)) or folder(path),
        "one client only (client is a in every",
    ),
    "one array": (
        lambda path: np.savez(path / "a.npz", x=np.ones((3, 2)), y=np.ones(3)) or folder(path),
        "holds one client only, a: give two or more.",
    ),
    "other columns": (
        lambda path: write(path, a=readings(0), b=readings(1, cold=1)) or folder(path),
        "b.csv and ",
    ),
    "other kinds of columns": (
        lambda path: write(path, a=readings(0), b=readings(1, heat="warm")) or folder(path),
        "the columns of these files are not of the same kind: ",
    ),
    "a column called client": (
        lambda path: write(path, a=readings(0, client=1), b=readings(1, client=2)) or folder(path),
        "a.csv has a column 'client', which the names of the files become: rename it.",
    ),
    "two kinds": (
        lambda path: (
            (write(path, a=readings(0)), np.savez(path / "b.npz", x=np.ones((3, 2)), y=np.ones(3)))
            and folder(path)
        ),
        "holds tables and arrays: give all clients files of one kind.",
    ),
    "two of a name": (
        lambda path: (
            (write(path, a=readings(0)), readings(1).to_parquet(path / "a.parquet")) and folder(path)
        ),
        "has two files called a: a client has one file.",
    ),
}


@pytest.mark.parametrize("make, said", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_refused_in_a_sentence(make, said, tmp_path):
    with pytest.raises(DataError) as raised:
        make(tmp_path)
    assert said in str(raised.value) and "\n" not in str(raised.value) and str(raised.value).endswith(".")
