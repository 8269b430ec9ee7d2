"""A table whose rows are examples, and one of whose columns says whose they are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int

from coterie.data.checks import as_ids
from coterie.data.federated import Federated
from coterie.data.preparation import Preparation, Task, check_label, fitted
from coterie.data.shards import Shards
from coterie.errors import DataError
from coterie.words import count

FEW = 5  # rows, below which a client's held-out examples say little
NAMED = 5  # clients or columns that a note names


def table(
    source: Any,
    client: str,
    label: str,
    features: Sequence[str] | None = None,
    *,
    task: Task = "auto",
    test: float = 0.2,
    dates: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
    name: str | None = None,
) -> Federated:
    """Clients from a table with a column that names them.

    Numbers are scaled per column, words become categories, and missing values are told by a feature of their
    own: `data.preparation` says how, and is found out on training rows only.

    Parameters
    ----------
    source
        A CSV or Parquet file, or a frame (pandas, polars, Arrow).
    client
        The column that says whose example a row is.
    label
        The column that is to be foretold.
    features
        The columns that models see; all others when not given.
    task
        `"classification"`, `"regression"`, or `"auto"`: words and booleans are classes, and so are up to 20
        different whole numbers that are each there 10 times or more on average; all else is a regression,
        whose targets are scaled, too.
    test
        The share of each client's rows that is held out, of each class alike.
    dates
        Whether columns of dates become numbers (days); without it they are refused.
    seed
        Which rows are held out.
    folder
        Where to keep the prepared arrays memory-mapped; in memory when not given.
    name
        What the data is called in messages and reports; the file's name when not given.
    """
    rows, called = read(source)
    name = name or called
    for column in (client, label, *(features or ())):
        if column not in rows.column_names:
            raise DataError(f"{name} has no column {column!r}; its columns are {_listed(rows.column_names)}.")
    if client == label:
        raise DataError(f"column {client!r} cannot both name the clients and be foretold.")
    if not 0 <= test < 1:
        raise DataError(f"test must be a share from 0 up to below 1, not {test!r}.")
    chosen = [c for c in features or rows.column_names if c not in (client, label)]
    if not chosen:
        raise DataError(f"{name} has no column beside {client!r} and {label!r}: features are missing.")
    if rows.num_rows == 0:
        raise DataError(f"{name} is empty: there are no examples.")
    check_label(label, rows[label])
    _check_finite(rows, [*chosen, label], client)
    ids, owner = owners(rows[client], client)
    if len(ids) < 2:
        raise DataError(f"{name} has one client only ({client} is {ids[0]} in every row): give two or more.")
    if len(ids) == len(owner):
        raise DataError(
            f"every row of {name} has a client of its own: is {client!r} the column that names the clients?"
        )
    held = held_out(owner, rows[label], test, seed)
    prepared = fitted(rows, ~held, client, label, chosen, task, dates)
    notes = [*prepared.notes, *_missing(rows, chosen, client), *_small(owner, held, ids)]
    prepared = Preparation(client, prepared.columns, prepared.label, tuple(notes))
    x, y = prepared.x(rows), prepared.label.targets(rows[label])
    _warn_of_repeated(x[~held], owner[~held], prepared.features)
    parts = []
    for part, which in (("train", ~held), ("test", held)):
        own = None if folder is None else Path(folder) / part
        parts.append(_shards(x[which], y[which], owner[which], ids, prepared, own) if which.any() else None)
    train, tested = parts
    assert train is not None
    return Federated(train, tested, name=name)


def read(source: Any) -> tuple[pa.Table, str]:
    """A table, and what it is called in messages."""
    if isinstance(source, str | Path):
        path = Path(source)
        found, name = _file(path), path.name
    else:
        found, name = _frame(source), "the table"
    try:
        names = found.column_names
    except UnicodeDecodeError:
        raise DataError(f"{name}: the names of its columns are not UTF-8: save the file as UTF-8.") from None
    twice = [column for column in names if names.count(column) > 1]
    if twice:
        raise DataError(f"{name} has two columns called {twice[0]!r}: names must be distinct.")
    return found, name


def _file(path: Path) -> pa.Table:
    if not path.is_file():
        raise DataError(f"{path} cannot be read: there is no such file.")
    try:
        if path.suffix.lower() == ".csv":
            from pyarrow import csv

            # what is empty between commas is missing, also among words
            found = csv.read_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True))
            for field in found.schema:
                if pa.types.is_binary(field.type):
                    raise DataError(f"{path}: column {field.name!r} is not UTF-8: save the file as UTF-8.")
            return found
        if path.suffix.lower() in (".parquet", ".pq"):
            from pyarrow import parquet

            return parquet.read_table(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise DataError(f"{path} cannot be read: {reason}.") from error
    raise DataError(f"{path} is not a table: give a .csv or .parquet file, or a frame.")


def _frame(source: Any) -> pa.Table:
    if isinstance(source, pa.Table):
        return source
    if hasattr(source, "to_arrow"):  # polars
        return source.to_arrow()
    try:
        return pa.Table.from_pandas(source, preserve_index=False)
    except (AttributeError, TypeError, pa.ArrowException) as error:
        raise DataError(
            f"this is not a table: give a .csv or .parquet file, or a frame, not {type(source).__name__}."
        ) from error


def _check_finite(rows: pa.Table, columns: Sequence[str], client: str) -> None:
    for name in columns:
        column = rows[name]
        if pa.types.is_floating(column.type):
            endless = pc.is_inf(column).fill_null(False)
            if pc.any(endless).as_py():
                first = pc.index(endless, True).as_py()
                who = rows[client][first].as_py()
                raise DataError(
                    f"column {name!r} holds {column[first].as_py()} in row {first + 1:,}, of client {who}: "
                    "remove or fill such values first."
                )


def owners(column: pa.ChunkedArray, client: str) -> tuple[np.ndarray, Int[np.ndarray, " rows"]]:
    """The ids of the clients, in order, and whose each row is."""
    if column.null_count:
        first = pc.index(column.is_null(), True).as_py()
        raise DataError(f"column {client!r} names no client in row {first + 1:,}: every row must have one.")
    kind = column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind):
        raise DataError(f"column {client!r} holds {kind}, which cannot name clients.")
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = encoded.dictionary.to_numpy(zero_copy_only=False)
    ids = as_ids(np.asarray(values.tolist() if values.dtype == object else values))
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids))
    return ids[order], rank[encoded.indices.to_numpy()]


def held_out(
    owner: Int[np.ndarray, " rows"], label: pa.ChunkedArray, share: float, seed: int
) -> Bool[np.ndarray, " rows"]:
    """The rows for testing: of each client every so many, in an order in which classes follow one another.

    So each class has its share, as nearly as that goes, and a client of more than one row keeps one for
    training.
    """
    rng = np.random.default_rng(seed)
    kinds = label.combine_chunks()
    kinds = kinds if pa.types.is_dictionary(kinds.type) else kinds.dictionary_encode()
    which = kinds.indices.fill_null(-1).to_numpy()
    if len(kinds.dictionary) > len(which) / 2:  # real numbers are no classes
        which = np.zeros(len(which), int)
    order = np.lexsort((rng.random(len(owner)), which, owner))
    sizes = np.bincount(owner)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(owner)) - starts[owner[order]]
    offset = rng.random(len(sizes))[owner[order]]
    chosen = np.floor((place + 1) * share + offset) > np.floor(place * share + offset)
    # somebody with a few rows may have none or all chosen: at least one for each purpose, where there are two
    held = np.zeros(len(owner), bool)
    held[order] = chosen
    if share:
        counts = np.bincount(owner, weights=held).astype(int)
        first, last = order[starts], order[starts + sizes - 1]
        held[first[(counts == 0) & (sizes > 1)]] = True
        held[last[counts == sizes]] = False
    return held


def _shards(
    x: np.ndarray,
    y: np.ndarray,
    owner: np.ndarray,
    ids: np.ndarray,
    prepared: Preparation,
    folder: Path | None,
) -> Shards:
    classes = len(prepared.label.classes) or None
    made = Shards.from_flat(x, y, owner, classes=classes, folder=folder)
    return Shards(ids[made.ids], made.spec, made.buckets, prepared)


def _missing(rows: pa.Table, columns: Sequence[str], client: str) -> list[str]:
    """What is missing: by column, and who lacks most."""
    said = []
    for name in columns:
        column = rows[name]
        lacks = column.is_null()
        if pa.types.is_floating(column.type):
            lacks = pc.or_(lacks, pc.is_nan(column).fill_null(True))
        number = pc.sum(lacks).as_py()
        if number:
            who = pc.value_counts(rows[client].filter(lacks))
            most = max(who.to_pylist(), key=lambda one: one["counts"])
            said.append(
                f"{name!r} lacks {count(number, 'value')} of {len(column):,}, most of them client "
                f"{most['values']}'s ({most['counts']:,}): a feature tells where."
            )
    return said


def _small(owner: np.ndarray, held_out: np.ndarray, ids: np.ndarray) -> list[str]:
    sizes = np.bincount(owner)
    said, few, untested = [], np.flatnonzero(sizes < FEW), np.bincount(owner, weights=held_out) == 0
    if len(few):
        said.append(f"{count(len(few), 'client')} with fewer than {FEW} rows: {_listed(ids[few].tolist())}.")
    if held_out.any() and untested.any():
        said.append(
            f"{count(int(untested.sum()), 'client')} with a single row, for training: not among those tested."
        )
    return said


def _warn_of_repeated(x: np.ndarray, owner: np.ndarray, titles: list[str]) -> None:
    """Features that tell clients apart by themselves make groups of clients that have the same ones."""
    order = np.argsort(owner, kind="stable")
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    x = x[order]
    alike = (np.maximum.reduceat(x, starts) == np.minimum.reduceat(x, starts)).all(axis=0)
    if alike.any() and len(order) > len(starts):
        names = [title for title, same in zip(titles, alike, strict=True) if same]
        warnings.warn(
            f"{_listed(names)} {'is' if len(names) == 1 else 'are'} the same in all rows of a client: groups "
            "may only repeat what is known from there. Leave such columns out with features=[...].",
            stacklevel=3,
        )


def _listed(names: Sequence[Any]) -> str:
    shown = ", ".join(map(str, names[:NAMED]))
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"
