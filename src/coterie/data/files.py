"""One client's examples in a file of its own: what a real node holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from coterie.data.shards import Shards
from coterie.errors import DataError

TABLES = (".csv", ".parquet")
ARRAYS = (".npz", ".safetensors")


def client_file(path: str | Path, client: str, target: str = "y", classes: int | None = None) -> Shards:
    """The examples of one client from a file on its own disk.

    Parameters
    ----------
    path
        A `.csv` or `.parquet` table with one row per example, or a `.npz` or `.safetensors` file that holds
        an array `x` with one row per example and an array of that many targets.
    client
        The client's id.
    target
        The table's column, or the file's array, that holds the targets. Whole numbers are class labels. All
        other columns of a table are features, in their order.
    classes
        Number of classes; taken from the largest label when not given.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (*TABLES, *ARRAYS):
        raise DataError(
            f"{path} is not a file of examples: give a {', '.join(TABLES)}, {' or '.join(ARRAYS)} file."
        )
    if not path.is_file():
        raise DataError(f"{path} cannot be read: no such file on this machine.")
    try:
        x, y = _table(path, target) if kind in TABLES else _arrays(path, target)
    except DataError:
        raise
    except Exception as error:  # whatever a reader makes of a file that is damaged, or something else
        raise DataError(f"{path} cannot be read: {_first_line(error)}.") from error
    labels = y.dtype.kind in "iub"
    return Shards.from_lists([x], [y.astype(np.int64) if labels else y], [client], classes=classes)


def clients_in(folder: Path) -> dict[str, Path]:
    """The files of a folder with one for each client, who is called as it; those of other kinds are not."""
    if not folder.is_dir():
        raise DataError(f"{folder} cannot be read: there is no such folder.")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in (*TABLES, *ARRAYS))
    if not files:
        raise DataError(f"{folder} holds no {', '.join((*TABLES, *ARRAYS))} file: give each client one.")
    names = [file.stem for file in files]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{folder} has two files called {twice[0]}: a client has one file.")
    return dict(zip(names, files, strict=True))


def _first_line(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return reason.strip().splitlines()[0].rstrip(".")


def _table(path: Path, target: str) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd  # slow to import, and not every node has a table

    table = pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    if target not in table:
        raise DataError(f"{path} has no column {target!r}; its columns are {', '.join(map(str, table))}.")
    if len(table) == 0:
        raise DataError(f"{path} is empty: a client needs at least one example.")
    features = table.drop(columns=target)
    for column in table:
        kind = table[column].dtype.kind
        if kind not in "fiub":
            raise DataError(f"{path}: column {column!r} holds {table[column].dtype}, not numbers.")
    if features.shape[1] == 0:
        raise DataError(f"{path} has no column beside {target!r}: features are missing.")
    return features.to_numpy(np.float32), table[target].to_numpy()


def _arrays(path: Path, target: str) -> tuple[np.ndarray, np.ndarray]:
    content: dict[str, Any] = {}
    if path.suffix.lower() == ".npz":
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{path} holds a single array: save both with np.savez(path, x=x, y=y).")
            content = {name: file[name] for name in file.files}
    else:
        content = dict(load_file(path))
    for name in ("x", target):
        if name not in content:
            raise DataError(f"{path} has no array {name!r}; its arrays are {', '.join(content)}.")
    return content["x"], content[target]
