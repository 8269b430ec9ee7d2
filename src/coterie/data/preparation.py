"""What becomes of the columns of a table: numbers that a model can use, and how to read its answers.

It is found out on training rows only, kept with the data, and applied as it is to rows that come later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int

from coterie.errors import DataError
from coterie.words import count

Task = Literal["auto", "classification", "regression"]
ONE_HOT = 16  # values that a category may have to become a number for each; with more it becomes one number
TEXT = 0.5  # different values, as a share of the rows, from which words are text and not a category
LABELS = 20  # different whole numbers that may be labels, if each is there so many times on average:
OFTEN = 10


@dataclass(frozen=True)
class Column:
    """One column of a table as features.

    Attributes
    ----------
    kind
        `"number"`, `"date"` (days since 1970), `"category"` (a feature for each value, 1 where it is there)
        or `"often"` (how often the value was there in training, as a logarithm).
    missing
        Whether a feature tells where the value is missing; there, another stands for the mean.
    mean, deviation
        Of the training rows: what is left is (value - mean) / deviation.
    values, often
        Of a category: its values in training, and how many rows had each.
    """

    name: str
    kind: Literal["number", "date", "category", "often"]
    missing: bool = False
    mean: float = 0.0
    deviation: float = 1.0
    values: tuple[str, ...] = ()
    often: tuple[int, ...] = ()

    @property
    def titles(self) -> list[str]:
        """What its features are called."""
        own = [f"{self.name} = {value}" for value in self.values] if self.kind == "category" else [self.name]
        return [*own, f"{self.name} is missing"] if self.missing else own

    def features(self, column: pa.ChunkedArray) -> Float[np.ndarray, "rows titles"]:
        """The features of some rows."""
        if self.kind in ("number", "date"):
            values = _numbers(self.name, column, self.kind)
            there = ~np.isnan(values)
            own = (np.where(there, values, self.mean)[:, None] - self.mean) / self.deviation
        else:
            which = _places(column, self.values)
            there = ~column.is_null().to_numpy()
            if self.kind == "category":
                own = (which[:, None] == np.arange(len(self.values))).astype(np.float32)
            else:
                known = np.log1p(np.array([*self.often, 0], float))[which]  # the last: a value that is new
                own = (np.where(there, known, self.mean)[:, None] - self.mean) / self.deviation
        parts = [own, ~there[:, None]] if self.missing else [own]
        with np.errstate(over="ignore"):  # what is too large is refused where shards are made
            return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


@dataclass(frozen=True)
class Label:
    """The column that is to be foretold.

    Attributes
    ----------
    classes
        The names of the classes, in the order of their numbers; none for a regression.
    mean, deviation
        Of a regression: a model's answers are (value - mean) / deviation.
    """

    name: str
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    def targets(self, column: pa.ChunkedArray) -> np.ndarray:
        """The targets of some rows as a model has them; -1 for a class that it does not know."""
        if self.classes:
            found = _places(column, self.classes)
            return np.where(found < len(self.classes), found, -1).astype(np.int32)
        values = _numbers(self.name, column, "number")
        return ((values - self.mean) / self.deviation).astype(np.float32)

    def read(self, outputs: np.ndarray) -> np.ndarray:
        """What a model's outputs say: names of classes, or values."""
        if self.classes:
            named: np.ndarray = np.array(self.classes)[outputs.argmax(-1)]
            return named
        values: np.ndarray = outputs * self.deviation + self.mean
        return values


@dataclass(frozen=True)
class Preparation:
    """What was done to a table, and how to do it to further rows.

    Attributes
    ----------
    client
        The column that names the clients.
    columns
        Those that became features.
    label
        The column that is to be foretold.
    notes
        What somebody who reads results should know: what was left out, and what is missing where.
    """

    client: str
    columns: tuple[Column, ...]
    label: Label
    notes: tuple[str, ...] = ()

    @property
    def features(self) -> list[str]:
        """What the features are called, in their order."""
        return [title for column in self.columns for title in column.titles]

    def x(self, table: pa.Table) -> Float[np.ndarray, "rows features"]:
        """The features of the rows of a table."""
        absent = [column.name for column in self.columns if column.name not in table.column_names]
        if absent:
            raise DataError(f"there is no column {absent[0]!r}, which the models were trained with.")
        parts = [column.features(table[column.name]) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""

        def made(kind: Any, values: Mapping[str, Any]) -> Any:
            return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

        columns = tuple(made(Column, column) for column in content["columns"])
        return cls(content["client"], columns, made(Label, content["label"]), tuple(content["notes"]))

    def __str__(self) -> str:
        label, said = self.label, [f"clients: {self.client}"]
        if label.classes:
            said.append(f"label: {label.name}, {len(label.classes)} classes")
        else:
            said.append(f"target: {label.name}, a number; losses are in units of its variance")
        said.append(f"{count(len(self.features), 'feature')} of {count(len(self.columns), 'column')}")
        return "\n".join([*said, *self.notes])


def fitted(
    table: pa.Table,
    train: np.ndarray,
    client: str,
    label: str,
    features: Sequence[str],
    task: Task,
    dates: bool,
) -> Preparation:
    """How to prepare a table, by those of its rows that are for training."""
    own, columns, notes = table.filter(pa.array(train)), [], []
    for name in features:
        column = _column(name, table[name], own[name], dates)
        if isinstance(column, str):
            notes.append(column)
        else:
            columns.append(column)
    if not columns:
        raise DataError(f"no column is left for features: {' '.join(notes) or 'there is none.'}")
    return Preparation(client, tuple(columns), _label(label, table[label], own[label], task), tuple(notes))


def _column(name: str, whole: pa.ChunkedArray, own: pa.ChunkedArray, dates: bool) -> Column | str:
    """A column by its training rows; a sentence where it is of no use."""
    kind, missing = whole.type, whole.null_count > 0
    if pa.types.is_null(kind):
        return f"{name!r} holds nothing and is left out."
    if pa.types.is_temporal(kind):
        if not dates:
            raise DataError(
                f"column {name!r} holds dates: give dates=True to make them numbers (days), or leave it out "
                "with features=[...]."
            )
        return _scaled(Column(name, "date", missing), own)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _scaled(Column(name, "number"), own, whole)
    if pa.types.is_decimal(kind):
        return _scaled(Column(name, "number"), own, whole)
    if not _is_text(kind):
        raise DataError(f"column {name!r} holds {kind}, which is neither numbers nor words: leave it out.")
    counts = pc.value_counts(pc.drop_null(_decoded(own)))
    words = {str(one["values"]): int(one["counts"]) for one in counts.to_pylist()}
    if len(words) > max(ONE_HOT, TEXT * len(own)):
        raise DataError(
            f"column {name!r} holds text: {count(len(words), 'different value')} in {len(own):,} rows. "
            "Leave it out with features=[...]."
        )
    if len(words) + missing < 2:
        return f"{name!r} is the same in all training rows and is left out."
    values = tuple(sorted(words))
    often = tuple(words[value] for value in values)
    if len(values) <= ONE_HOT:
        return Column(name, "category", missing, values=values, often=often)
    known = np.repeat(np.log1p(often), often)
    return Column(name, "often", missing, float(known.mean()), float(known.std()) or 1.0, values, often)


def _scaled(column: Column, own: pa.ChunkedArray, whole: pa.ChunkedArray | None = None) -> Column | str:
    values = _numbers(column.name, own, column.kind)
    there = values[~np.isnan(values)]
    every = values if whole is None else _numbers(column.name, whole, column.kind)
    missing = bool(np.isnan(every).any())
    if not len(there) or (there.min() == there.max() and not missing):
        return f"{column.name!r} is the same in all training rows and is left out."
    mean, deviation = _scale(column.name, there)
    return replace(column, missing=missing, mean=mean, deviation=deviation)


def _scale(name: str, values: np.ndarray) -> tuple[float, float]:
    """Mean and deviation."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    if not np.isfinite(deviation):
        raise DataError(f"column {name!r} holds numbers up to {np.abs(values).max():g}, which are too large.")
    return mean, deviation or 1.0


def check_label(name: str, column: pa.ChunkedArray) -> None:
    """Refuse a column of which nothing can be foretold."""
    kind = column.type
    if column.null_count:
        lacks = count(column.null_count, "value")
        raise DataError(f"column {name!r}, which is to be foretold, lacks {lacks}.")
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (number or pa.types.is_boolean(kind) or _is_text(kind)):
        raise DataError(f"column {name!r} holds {kind}, which cannot be foretold.")
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        raise DataError(f"column {name!r}, which is to be foretold, holds nan.")
    different = pc.unique(_decoded(column))
    if len(different) < 2:
        one = different[0].as_py()
        raise DataError(f"column {name!r} is {one!r} in every row: there is nothing to foretell.")


def _label(name: str, whole: pa.ChunkedArray, own: pa.ChunkedArray, task: Task) -> Label:
    """Words and booleans are classes; so are whole numbers that are few and each there often."""
    kind = whole.type
    if task == "regression" and _is_text(kind):
        raise DataError(f"column {name!r} holds words: that is a classification.")
    different = pc.unique(_decoded(whole))
    words = _is_text(kind) or pa.types.is_boolean(kind)
    few = pa.types.is_integer(kind) and len(different) <= min(LABELS, len(whole) / OFTEN)
    if task == "classification" or (task == "auto" and (words or few)):
        return Label(name, tuple(str(value) for value in sorted(different.to_pylist())))
    return Label(name, (), *_scale(name, _numbers(name, own, "number")))


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner)
    )


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _places(column: pa.ChunkedArray, among: Sequence[str]) -> Int[np.ndarray, " rows"]:
    """Which of some values each row has; their number where it has another, or none."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    number, none = {name: i for i, name in enumerate(among)}, len(among)
    # a loop over the different values, of which there are few, and not over rows
    of = np.array([*(number.get(str(value), none) for value in encoded.dictionary.to_pylist()), none])
    return np.asarray(of[encoded.indices.fill_null(len(of) - 1).to_numpy()], np.int64)


def _numbers(name: str, column: pa.ChunkedArray, kind: str) -> Float[np.ndarray, " rows"]:
    """A column as numbers, with NaN where there is none."""
    if kind == "date":
        if not pa.types.is_temporal(column.type):
            raise DataError(f"column {name!r} holds {column.type}, and held dates before.")
        column = column.cast(pa.timestamp("us")).cast(pa.int64())
    try:
        values = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), float)
    except pa.ArrowInvalid as error:
        holds = "words" if _is_text(column.type) else column.type
        raise DataError(f"column {name!r} holds {holds}, and held numbers before.") from error
    return values / 86_400e6 if kind == "date" else values
