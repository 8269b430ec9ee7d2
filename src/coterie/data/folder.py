"""A folder with a file for each client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.data.federated import Federated
from coterie.data.files import TABLES, client_file, clients_in
from coterie.data.preparation import Task
from coterie.data.shards import Shards
from coterie.data.table import held_out, read, table
from coterie.errors import DataError

WHO = "client"  # the column that the files' names become


def folder(
    path: str | Path,
    label: str = "y",
    features: Sequence[str] | None = None,
    *,
    task: Task = "auto",
    test: float = 0.2,
    dates: bool = False,
    classes: int | None = None,
    seed: int = 0,
) -> Federated:
    """Clients from a folder with a file for each: tables (CSV, Parquet) or arrays (NPZ, safetensors).

    A client is called as its file, without the suffix. Tables are prepared together, as those of `table`;
    arrays (`x` with one row per example, and the label's) are taken as they are.

    Parameters
    ----------
    path
        The folder. Files of other kinds in it are passed over.
    label
        The column, or the array, that is to be foretold.
    features, task, test, dates, seed
        As for `table`; the first, second and fourth are for tables only.
    classes
        Of arrays: the number of classes; taken from the largest label when not given.
    """
    path = Path(path)
    own = clients_in(path)
    names, files = list(own), list(own.values())
    kinds = {file.suffix.lower() in TABLES for file in files}
    if len(kinds) > 1:
        raise DataError(f"{path} holds tables and arrays: give all clients files of one kind.")
    if kinds == {True}:
        rows = _together(files, names)
        return table(rows, WHO, label, features, task=task, test=test, dates=dates, seed=seed, name=path.name)
    if len(files) < 2:
        raise DataError(f"{path} holds one client only, {names[0]}: give two or more.")
    return _of_arrays(files, names, label, classes, test, seed, path.name)


def _together(files: Sequence[Path], names: Sequence[str]) -> pa.Table:
    """All tables as one, with a column that says whose a row is."""
    parts: list[pa.Table] = []
    for file, name in zip(files, names, strict=True):
        part, _ = read(file)
        if WHO in part.column_names:
            raise DataError(f"{file} has a column {WHO!r}, which the names of the files become: rename it.")
        if parts and set(part.column_names) != set(parts[0].column_names[:-1]):
            odd = sorted(set(part.column_names) ^ set(parts[0].column_names[:-1]))
            raise DataError(
                f"{file} and {files[0]} differ in column {odd[0]!r}: all must have the same columns."
            )
        parts.append(part.append_column(WHO, pa.array([name] * part.num_rows, pa.string())))
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise DataError(f"the columns of these files are not of the same kind: {reason}.") from error


def _of_arrays(
    files: Sequence[Path],
    names: list[str],
    label: str,
    classes: int | None,
    test: float,
    seed: int,
    name: str,
) -> Federated:
    own = [client_file(f, n, label, classes).client(0) for f, n in zip(files, names, strict=True)]
    sizes = [len(y) for _, y in own]
    owner = np.repeat(np.arange(len(own)), sizes)
    y = np.concatenate([y.reshape(len(y), -1)[:, 0] for _, y in own])
    held = np.split(held_out(owner, pa.chunked_array([y]), test, seed), np.cumsum(sizes)[:-1])
    if all(y.dtype.kind in "iu" for _, y in own):
        classes = classes or int(max(y.max() for _, y in own)) + 1

    def part(which: Any) -> Shards | None:
        rows = [(x[w], y[w], n) for (x, y), w, n in zip(own, which, names, strict=True) if w.any()]
        if not rows:
            return None
        xs, ys, ids = zip(*rows, strict=True)
        return Shards.from_lists(list(xs), list(ys), list(ids), classes=classes)

    train = part([~w for w in held])
    assert train is not None
    return Federated(train, part(held), name=name)
