"""Parquet files as the Hugging Face Hub has them: images are PNG or JPEG files in a column."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import sources
from coterie.data.views import Images
from coterie.errors import DataError

IMAGE = ("image", "img")
LABEL = ("label", "character")


def images(name: str, *parts: Sequence[Path]) -> Images:
    """A set of images in parts, the last of which is to test on."""
    pairs = []
    for paths in parts:
        with sources.reading(paths[0], f"Parquet of {name}"):
            stored, labels = zip(*rows(paths, IMAGE, LABEL), strict=True)
            pairs.append((np.stack(list(map(pixels, stored))), np.array(labels, np.uint8)))
    x, y = zip(*pairs, strict=True)
    return Images.of(x, y, name)


def pixels(stored: Any) -> np.ndarray:
    """An image of a column, one byte a pixel."""
    from PIL import Image

    with Image.open(io.BytesIO(stored["bytes"])) as image:
        return np.asarray(image)


def rows(paths: Sequence[Path], *columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of some columns, each of which may have any of several names."""
    import pyarrow.parquet as pq  # slow to import

    for path in paths:
        with sources.reading(path, "a Parquet file"), pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            chosen = [next((n for n in column if n in names), None) for column in columns]
            for column, found in zip(columns, chosen, strict=True):
                if found is None:
                    raise DataError(
                        f"{path} has no column {' or '.join(map(repr, column))}; its columns are "
                        f"{', '.join(names)}."
                    )
            for batch in file.iter_batches(columns=chosen):
                yield from zip(*(batch.column(name).to_pylist() for name in chosen), strict=True)
