"""Who holds what: the examples of all clients, ragged, bucketed by size and masked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie import keys, storage
from coterie.data import allocate, checks
from coterie.data.preparation import Preparation
from coterie.errors import DataError

COPIED_BYTES = 2**25  # at once, by each thread
PADDING = 2**14  # numbers: a program for one bucket more takes longer to compile than these to compute


@dataclass(frozen=True)
class Spec:
    """The shape of one example: all that a server needs to know of the data to make a model.

    `classes` is the number of classes when `y` holds class labels and None when it holds real numbers.
    `scale` is what stored features are multiplied by before a model sees them, as float32: images may stay
    one byte a pixel. None where they are seen as they are stored.
    """

    x_shape: tuple[int, ...]
    x_dtype: str
    y_shape: tuple[int, ...]
    y_dtype: str
    classes: int | None = None
    scale: float | None = None

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Spec:
        """The inverse of `dataclasses.asdict` followed by JSON, which has no tuples."""
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
        return cls(**plain)

    @property
    def kind(self) -> Spec:
        """What examples look like to a model, however many classes there are: equal for clients of one
        federation, each of which may store them in its own way."""
        seen = str(self.example().dtype)
        return replace(self, x_dtype=seen, scale=None, classes=None if self.classes is None else 0)

    def fits(self, other: Spec) -> bool:
        """Whether such examples can be among those of `other`, of whose classes they may have only some."""
        return self.kind == other.kind and (self.classes or 0) <= (other.classes or 0)

    def example(self) -> np.ndarray:
        """A batch of one blank example as a model sees it, for creating one: shape (1, *x_shape)."""
        return np.asarray(self.seen(np.zeros((1, *self.x_shape), self.x_dtype)))

    def seen(self, x: Any) -> Any:
        """Stored features, a NumPy or JAX array, as models see them."""
        return x if self.scale is None else x.astype(np.float32) * np.float32(self.scale)


@dataclass(frozen=True)
class Bucket:
    """Clients of similar size in one dense array.

    Rows beyond a client's size repeat its own examples: they are masked wherever they are used, and real
    values keep a loss finite where zeros might not.
    """

    x: np.ndarray  # (clients, capacity, *x_shape)
    y: np.ndarray  # (clients, capacity, *y_shape)
    sizes: np.ndarray  # (clients,)
    clients: np.ndarray  # (clients,) positions in Shards.ids

    @property
    def capacity(self) -> int:
        return int(self.x.shape[1])


class Shards:
    """The shards of any number of clients.

    Made by `Shards.from_lists`, `Shards.from_flat` or `Shards.open`; the constructor itself checks nothing.
    Sizes in a bucket lie within a factor of two of each other and a bucket is as wide as its largest
    client, so less than half of the stored examples are padding however heavy the tail of sizes; but for
    `PADDING` numbers, by which a bucket may be larger if there is one less for it.
    """

    def __init__(
        self, ids: np.ndarray, spec: Spec, buckets: Sequence[Bucket], preparation: Preparation | None = None
    ) -> None:
        self.ids = ids
        self.spec = spec
        self.preparation = preparation  # what was done to a table to make them
        self.buckets = tuple(buckets)
        self.sizes = np.zeros(len(ids), np.int64)
        self._where = np.zeros((len(ids), 2), np.int64)  # client -> (bucket, row)
        for b, bucket in enumerate(self.buckets):
            self.sizes[bucket.clients] = bucket.sizes
            self._where[bucket.clients] = np.stack(
                [np.full(len(bucket.clients), b), np.arange(len(bucket.clients))], axis=1
            )

    # -- construction ------------------------------------------------------------------------------------

    @classmethod
    def from_lists(
        cls,
        x: Sequence[Any],
        y: Sequence[Any],
        ids: Sequence[Any] | None = None,
        *,
        classes: int | None = None,
        scale: float | None = None,
        folder: str | Path | None = None,
    ) -> Shards:
        """Shards from one array of features and one of targets per client.

        Parameters
        ----------
        x, y
            One array per client, `x[i]` of shape (n_i, ...) and `y[i]` of shape (n_i, ...). Integer targets
            are class labels, and so are booleans; floating ones are real numbers.
        ids
            Stable, distinct client ids; 0, 1, 2, ... when not given.
        classes
            Number of classes; taken from the largest label when not given.
        scale
            What features that are whole numbers are multiplied by before a model sees them: with 1/255,
            images stay one byte a pixel wherever they are kept.
        folder
            Where to keep the arrays memory-mapped; in memory when not given.
        """
        if len(x) == 0:
            raise DataError("there are no clients: give one array of features per client.")
        if len(x) != len(y):
            raise DataError(
                f"there are features for {len(x)} clients and targets for {len(y)}: give both for each."
            )
        names = checks.distinct_ids(ids, len(x))
        pairs = [checks.one_client(names[i], a, b) for i, (a, b) in enumerate(zip(x, y, strict=True))]
        spec = Spec(*checks.common_shape(names, pairs, classes), checks.scale(scale, pairs[0][0]))
        sizes = np.array([len(a) for a, _ in pairs], np.int64)

        def rows(members: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> None:
            stops = np.cumsum(sizes[members])
            at = _padded(stops - sizes[members], sizes[members], xs.shape[1])
            for i, out in enumerate((xs, ys)):
                np.take(np.concatenate([pairs[m][i] for m in members]), at, axis=0, out=out, mode="clip")

        return cls._fill(names, spec, sizes, rows, folder)

    @classmethod
    def from_flat(
        cls,
        x: Any,
        y: Any,
        client: Any,
        *,
        classes: int | None = None,
        scale: float | None = None,
        folder: str | Path | None = None,
    ) -> Shards:
        """Shards from flat arrays: example `e` belongs to the client named `client[e]`.

        Client ids are the distinct values of `client`, sorted; a client's examples keep their order. `x`
        may be memory-mapped: with `folder` given, only some clients at a time are in memory. `classes` and
        `scale` are those of `from_lists`.
        """
        x, y, client = np.asanyarray(x), checks.as_labels(np.asanyarray(y)), np.asarray(client)
        if not len(x) == len(y) == len(client) or client.ndim != 1:
            raise DataError(
                f"x, y and client must be equally long, client one-dimensional; "
                f"their shapes are {x.shape}, {y.shape} and {client.shape}."
            )
        if len(x) == 0:
            raise DataError("there are no examples: x is empty.")
        names, order, starts = _by_owner(client)
        sizes = np.diff(starts, append=len(client))
        spec = Spec(*checks.flat_shape(x, y, client, classes), checks.scale(scale, x))

        def rows(members: np.ndarray, xs: np.ndarray, ys: np.ndarray) -> None:
            at = _padded(starts[members], sizes[members], xs.shape[1])
            at = at if order is None else order[at]
            for source, out in ((x, xs), (y, ys)):
                if source.dtype == out.dtype:
                    np.take(source, at, axis=0, out=out, mode="clip")
                else:
                    out[:] = source[at]

        return cls._fill(checks.distinct_ids(names, len(names)), spec, sizes, rows, folder)

    @classmethod
    def _fill(
        cls,
        ids: np.ndarray,
        spec: Spec,
        sizes: np.ndarray,
        rows: Callable[[np.ndarray, np.ndarray, np.ndarray], None],
        folder: str | Path | None,
    ) -> Shards:
        """Shards of these sizes; `rows(members, x, y)` writes the padded examples of some clients."""
        new = allocate.in_memory if folder is None else allocate.in_folder(Path(folder))
        buckets = []
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for b, members in enumerate(_by_size(sizes, spec)):
                width = int(sizes[members].max())
                xs = new(f"{b}.x", (len(members), width, *spec.x_shape), np.dtype(spec.x_dtype))
                ys = new(f"{b}.y", (len(members), width, *spec.y_shape), np.dtype(spec.y_dtype))
                some = max(1, COPIED_BYTES // (xs[0].nbytes + ys[0].nbytes))
                parts = [slice(first, first + some) for first in range(0, len(members), some)]
                # to copy lets go of the interpreter's lock
                for _ in threads.map(lambda p: rows(members[p], xs[p], ys[p]), parts):  # noqa: B023
                    pass
                buckets.append(Bucket(xs, ys, sizes[members].astype(np.int32), members))
        shards = cls(ids, spec, buckets)
        if folder is not None:
            shards._write_index(Path(folder))
            return cls.open(folder)
        return shards

    # -- disk --------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write to a folder from which `Shards.open` maps the arrays into memory."""
        new = allocate.in_folder(Path(folder))
        for b, bucket in enumerate(self.buckets):
            new(f"{b}.x", bucket.x.shape, bucket.x.dtype)[:] = bucket.x
            new(f"{b}.y", bucket.y.shape, bucket.y.dtype)[:] = bucket.y
        self._write_index(Path(folder))

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """Shards whose examples stay on disk, memory-mapped, until they are used."""
        folder = Path(folder)
        try:
            index = json.loads((folder / "shards.json").read_text())
            spec = Spec.from_json(index["spec"])
            buckets = [
                Bucket(
                    np.load(folder / f"{b}.x.npy", mmap_mode="r"),
                    np.load(folder / f"{b}.y.npy", mmap_mode="r"),
                    np.array(entry["sizes"], np.int32),
                    np.array(entry["clients"], np.int64),
                )
                for b, entry in enumerate(index["buckets"])
            ]
            done = index.get("preparation")
            prepared = None if done is None else Preparation.from_json(done)
            shards = cls(np.array(index["ids"]), spec, buckets, prepared)
            if (shards.sizes < 1).any():
                raise ValueError("clients are missing")
            return shards
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{folder} is not a folder of shards ({error}); Shards.save writes one."
            ) from error

    def _write_index(self, folder: Path) -> None:
        index = {
            "ids": self.ids.tolist(),
            "spec": asdict(self.spec),
            "buckets": [{"sizes": b.sizes.tolist(), "clients": b.clients.tolist()} for b in self.buckets],
            "preparation": None if self.preparation is None else self.preparation.to_json(),
        }
        storage.write_text(folder / "shards.json", json.dumps(index))

    # -- access ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of clients."""
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self.client(i) for i in range(len(self)))

    def client(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The unpadded features and targets of the client at a position."""
        bucket, row = self._where[position]
        at = self.buckets[bucket]
        size = at.sizes[row]
        return at.x[row, :size], at.y[row, :size]

    def __getitem__(self, which: Any) -> Shards:
        """The shards of some clients: a slice, positions, or a boolean mask over clients."""
        try:
            positions = np.atleast_1d(np.arange(len(self))[which])
        except IndexError as error:
            raise DataError(f"no such clients: {error}; there are {len(self)} clients.") from error
        if positions.ndim > 1:
            raise DataError("select clients by a slice, a list of positions, or one boolean per client.")
        new = np.full(len(self), -1)
        new[positions] = np.arange(len(positions))
        if np.count_nonzero(new >= 0) < len(positions):
            raise DataError("a client was selected twice: select every client at most once.")
        if len(positions) == 0:
            raise DataError("no client was selected: select at least one.")
        buckets = []
        for bucket in self.buckets:
            rows = np.flatnonzero(new[bucket.clients] >= 0)
            if len(rows):
                width = int(bucket.sizes[rows].max())
                buckets.append(
                    Bucket(
                        bucket.x[rows, :width],
                        bucket.y[rows, :width],
                        bucket.sizes[rows],
                        new[bucket.clients[rows]],
                    )
                )
        return Shards(self.ids[positions], self.spec, buckets, self.preparation)

    def split(self, share: float = 0.2, seed: int | None = 0) -> tuple[Shards, Shards]:
        """Two parts of every client's examples: all but some, and those, to choose settings by.

        The second part has this share of them, rounded down, but one at least; not of clients who have one
        example in all, who are not in it. They are drawn at random, or, where `seed` is None, the last ones.
        The first part is as wide as these shards: what was compiled for the one serves for the other.
        """
        if not 0 < share < 1:
            raise DataError(f"share must be between 0 and 1, not {share!r}.")
        held = np.minimum(np.maximum(1, (share * self.sizes + 1e-9).astype(np.int64)), self.sizes - 1)
        if not held.any():
            raise DataError("every client has one example only: there is nothing to split.")
        first, second = [], []
        new = np.cumsum(held > 0) - 1
        for b in self.buckets:
            x, y = (b.x, b.y) if seed is None else self._shuffled(b, seed)
            out = held[b.clients]
            left = b.sizes - out
            first.append(Bucket(x, y, left.astype(np.int32), b.clients))
            rows = np.flatnonzero(out)
            if len(rows):
                at = rows[:, None], _padded(left[rows], out[rows], int(out.max()))
                second.append(Bucket(x[at], y[at], out[rows].astype(np.int32), new[b.clients[rows]]))
        done = self.preparation
        return (
            Shards(self.ids, self.spec, first, done),
            Shards(self.ids[held > 0], self.spec, second, done),
        )

    def _shuffled(self, bucket: Bucket, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples of each of its clients in an order that depends on its id alone."""
        place = np.arange(bucket.capacity)
        each = self.tokens[bucket.clients][:, None] ^ keys.lots("places", place.astype(np.uint64))
        lots = keys.lots(f"split/{seed}", each)
        lots[place >= bucket.sizes[:, None]] = np.iinfo(np.uint64).max  # padding stays behind them
        order, rows = np.argsort(lots, axis=1, kind="stable"), np.arange(len(lots))[:, None]
        return bucket.x[rows, order], bucket.y[rows, order]

    def positions(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Where the given client ids stand in `self.ids`."""
        ids = np.asarray(ids)
        found = places(ids, self.ids)
        if (found < 0).any():
            missing = str(ids[found < 0][0])
            raise DataError(f"there is no client {missing!r} among these {len(self)} clients.")
        return found

    @cached_property
    def tokens(self) -> np.ndarray:
        """The tokens of the client ids: see `coterie.keys`."""
        return keys.tokens(self.ids)

    @property
    def examples(self) -> int:
        """Number of real examples over all clients."""
        return int(self.sizes.sum())

    @property
    def stored_examples(self) -> int:
        """Number of stored examples, padding included; less than twice `examples` and `PADDING` numbers."""
        return sum(len(b.sizes) * b.capacity for b in self.buckets)

    def __repr__(self) -> str:
        return (
            f"Shards({len(self)} clients, {self.examples} examples of shape {self.spec.x_shape}, "
            f"{self.sizes.min()} to {self.sizes.max()} per client)"
        )


def places(ids: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where client ids stand among others; -1 for one that does not. As a name, 7 is "7"."""
    if np.array_equal(ids, among):
        return np.arange(len(among))
    at = dict(zip(map(str, among.tolist()), range(len(among)), strict=True))
    return np.fromiter((at.get(name, -1) for name in map(str, ids.tolist())), np.int64, len(ids))


def _by_size(sizes: np.ndarray, spec: Spec) -> Iterator[np.ndarray]:
    """The clients of each bucket: sizes 1, 2, 3-4, 5-8, ..., and several of these where that pads little."""
    example = math.prod(spec.x_shape) + math.prod(spec.y_shape)
    grade = np.ceil(np.log2(np.maximum(sizes, 1))).astype(int)
    smaller = np.array([], int)
    for g in np.unique(grade):
        members = np.flatnonzero(grade == g)
        if (sizes[members].max() - sizes[smaller]).sum() * example > PADDING:
            yield smaller
            smaller = members[:0]
        smaller = np.sort(np.concatenate([smaller, members]))
    yield smaller


def _by_owner(client: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """The clients in order, their examples one client after another, and where each one's begin.

    The order is None where examples are in it already.
    """
    try:
        ordered = bool((client[1:] >= client[:-1]).all())
        order = None if ordered else np.argsort(client, kind="stable")
    except TypeError as error:
        raise DataError(
            f"client ids of different types cannot be sorted ({error}): make them all text."
        ) from error
    owner = client if order is None else client[order]
    starts = np.concatenate([[0], np.flatnonzero(owner[1:] != owner[:-1]) + 1])
    return owner[starts], order, starts


def _padded(starts: np.ndarray, sizes: np.ndarray, width: int) -> np.ndarray:
    """Which examples fill each client's row, of those that begin at `starts`: its own, over and over."""
    at: np.ndarray = starts[:, None] + np.arange(width) % sizes[:, None]
    return at
