"""Whether what clients are said to hold can be used: ids, arrays, and a shape that all of them share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from coterie.errors import DataError

BLOCK = 2**22  # numbers that are looked at together


def distinct_ids(ids: Any, count: int) -> np.ndarray:
    """One id per client, whole numbers or text; 0, 1, 2, ... where none are given."""
    names = np.arange(count) if ids is None else np.asarray(ids)
    if names.shape != (count,):
        raise DataError(f"there are {count} clients and {names.size} ids: give one id per client.")
    if names.dtype.kind not in "iuU":
        names = as_ids(names)
    ordered = np.sort(names)
    twice = ordered[1:] == ordered[:-1]
    if twice.any():
        raise DataError(f"client id {str(ordered[1:][twice][0])!r} is given twice: ids must be distinct.")
    return names


def as_ids(values: np.ndarray) -> np.ndarray:
    """What was meant as ids: whole numbers, as a column has them that was read as real ones, or text."""
    if values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.floor(values)).all():
        return values.astype(np.int64)
    # a NaN, which stands for what is missing, is not equal to itself
    for place, value in enumerate(values.tolist()):
        if value is None or value != value or isinstance(value, float):
            raise DataError(
                f"client number {place} has the id {value}: give whole numbers or text, none missing."
            )
    return values.astype(str)


def one_client(name: Any, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """A client's features and targets as arrays: one row each per example, and at least one."""
    x, y = _array(name, "features", x), as_labels(_array(name, "targets", y))
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"client {name}: features of shape {x.shape} and targets of shape {y.shape} "
            "do not have one row per example each."
        )
    if len(x) == 0:
        raise DataError(f"client {name} is empty: leave it out or give it at least one example.")
    return x, y


def _array(name: Any, what: str, values: Any) -> np.ndarray:
    """Finite numbers of at most 32 bits: models compute in 32, and wider ones would be cut silently."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"client {name}: {what} of its examples differ in shape.") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"client {name}: {what} are {array.dtype}, not numbers.")
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            row = tuple(np.argwhere(~np.isfinite(array))[0])
            where = f" of example {row[0]}" if row else ""
            raise DataError(
                f"client {name}: {what}{where} contain {array[row]}; remove or fill such values first."
            )
    elif array.dtype.kind in "iu" and array.dtype.itemsize > 4:
        wide, array = array, array.astype(np.int32)
        if (array != wide).any():
            worst = wide[array != wide][0]
            raise DataError(f"client {name}: {what} contain {worst}, which does not fit in 32 bits.")
    return array


def as_labels(y: np.ndarray) -> np.ndarray:
    """Targets with yes and no as the classes 1 and 0."""
    return y.astype(np.int32) if y.dtype.kind == "b" else y


def common_shape(
    names: Sequence[Any] | np.ndarray,
    pairs: Iterable[tuple[np.ndarray, np.ndarray]],
    classes: int | None,
) -> tuple[tuple[int, ...], str, tuple[int, ...], str, int | None]:
    """Shape and dtype of one example's features and targets, and the number of classes: a `Spec`'s fields."""
    first: tuple[np.ndarray, np.ndarray] | None = None
    lowest, highest = 0, -1
    for name, (x, y) in zip(names, pairs, strict=True):
        if first is None:
            first = x, y
        for what, mine, theirs in (("features", x, first[0]), ("targets", y, first[1])):
            if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
                raise DataError(
                    f"client {name}: {what} of one example are {mine.dtype}{list(mine.shape[1:])} but those "
                    f"of client {names[0]} are {theirs.dtype}{list(theirs.shape[1:])}; they must agree."
                )
        if y.dtype.kind in "iu":
            lowest, highest = min(lowest, int(y.min())), max(highest, int(y.max()))
            if lowest < 0 or (classes is not None and highest >= classes):
                wrong = lowest if lowest < 0 else highest
                allowed = f"0 to {classes - 1}" if classes is not None else "0 and up"
                raise DataError(f"client {name}: label {wrong} is outside the classes {allowed}.")
    assert first is not None
    x, y = first
    if x[0].size == 0:
        raise DataError(
            f"features of shape {list(x.shape[1:])} hold no number: give each example at least one."
        )
    labels = y.dtype.kind in "iu"
    if classes is not None and not labels:
        raise DataError(f"classes={classes} is given but the targets are {y.dtype}, not integer labels.")
    return (
        x.shape[1:],
        x.dtype.name,
        y.shape[1:],
        y.dtype.name,
        (classes or highest + 1) if labels else None,
    )


def scale(given: float | None, x: np.ndarray) -> float | None:
    """What features are multiplied by, if they are such that it is of use."""
    if given is None:
        return None
    if not np.isfinite(given) or given <= 0:
        raise DataError(f"scale must be a positive number, not {given}.")
    if x.dtype.kind not in "iub":
        raise DataError(f"scale is for features that are whole numbers; these are {x.dtype}: leave it out.")
    return float(given)


def flat_shape(
    x: np.ndarray, y: np.ndarray, client: np.ndarray, classes: int | None
) -> tuple[tuple[int, ...], str, tuple[int, ...], str, int | None]:
    """The same of flat arrays, in which example e is of client `client[e]`."""
    one = [client[0]], [one_client(client[0], x[:1], y[:1])]
    shape = common_shape(*one, classes)
    labels = shape[4] is not None

    def wrong(block: slice) -> int | None:
        """The first example of a block that cannot be used."""
        usable = _usable(x[block]) & _usable(y[block])
        if labels:
            usable &= _per_example((y[block] >= 0) & (y[block] < (classes or np.inf)))
        return None if usable.all() else block.start + int(usable.argmin())

    some = max(1, BLOCK // max(1, x[0].size + y[0].size))
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        blocks = [slice(first, first + some) for first in range(0, len(x), some)]
        for example in threads.map(wrong, blocks):
            if example is not None:
                mine = client == client[example]
                name = client[example]
                common_shape([name], [one_client(name, x[mine], y[mine])], classes)  # says what is wrong
    return *shape[:4], (classes or int(y.max()) + 1) if labels else None


def _usable(array: np.ndarray) -> np.ndarray:
    """Which examples hold numbers that can be used."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum(dtype=np.float32)):  # then all of them are, and that is far quicker
                return np.ones(len(array), bool)
            return _per_example(np.isfinite(array.astype(np.float32)))
    if array.dtype.kind in "iu" and array.dtype.itemsize > 4:
        return _per_example(array.astype(np.int32) == array)
    return np.ones(len(array), bool)


def _per_example(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.reshape(len(values), -1).all(axis=1))
