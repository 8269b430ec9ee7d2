"""FEMNIST: digits and letters, 28 x 28 pixels, by who wrote them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import leaf, parquet, sources
from coterie.data.federated import Federated
from coterie.data.people import Pair, Person, drawn
from coterie.data.sources import Form, Source
from coterie.errors import DataError, whole_number

CLASSES = 62  # 0-9, A-Z, a-z
SIDE = 28
Writers = dict[str, Person]


def femnist(
    clients: int = 50,
    unseen: int = 0,
    at_least: int = 10,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """Handwritten characters, every client a writer: LEAF's FEMNIST. Ink is dark on white, unlike MNIST's.

    The SR-FCA paper draws 50 writers, as here; the IFCA paper has about as many as
    `femnist(173, at_least=100)`. Which groups of writers there are, nobody knows: `truth` is None.

    Parameters
    ----------
    clients, unseen
        Writers who take part in training, and who do not, drawn at random.
    at_least
        Fewest examples of a writer who may be drawn.
    seed
        Who is drawn. A tenth of a writer's examples is held out, the same for every seed.
    folder
        Where the files are, in any form that `docs/data.md` names. There is nothing to download: LEAF's
        scripts make them of NIST's.
    """
    whole_number("at_least", at_least, 2)
    writers = {name: writer for name, writer in FEMNIST.read(folder).items() if writer.examples >= at_least}
    return drawn(
        writers,
        f"writers of {at_least} examples or more",
        "FEMNIST",
        clients=clients,
        unseen=unseen,
        seed=seed,
        classes=CLASSES,
        scale=1 / 255,
    )


def _a_tenth(name: str, pair: Pair) -> Person:
    """As LEAF splits by sample: nine tenths of the examples, rounded down, at random."""
    # the writer's own randomness, so that what is held out depends on nobody else, as in files that are split
    order = np.random.default_rng(list(name.encode())).permutation(len(pair[1]))
    kept, held_out = np.split(order, [max(1, int(0.9 * len(order)))])
    return Person((pair[0][kept], pair[1][kept]), (pair[0][held_out], pair[1][held_out]))


def _compact(x: Any, y: Any) -> Pair:
    """LEAF's numbers from 0 to 1, which are bytes over 255, as the bytes they were."""
    pixels = np.asarray(x, np.float32).reshape(-1, SIDE, SIDE)
    if len(pixels) and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError("pixels are not from 0 to 1: this is not LEAF's FEMNIST.")
    return np.round(pixels * 255).astype(np.uint8), np.asarray(y, np.uint8)


def _from_npz(files: list[Path]) -> Writers:
    (path,) = files
    with sources.reading(path, "femnist.npz"):
        with np.load(path, allow_pickle=False) as file:
            x, y, writer, split, ids = (
                file[name] for name in ("images", "labels", "writer", "split", "writer_ids")
            )
        writers: Writers = {}
        for i, name in enumerate(ids):
            train, test = (np.flatnonzero((writer == i) & (split == part)) for part in (0, 1))
            writers[str(name)] = Person((x[train], y[train]), (x[test], y[test]))
        return writers


def _from_parquet(files: list[Path]) -> Writers:
    own: defaultdict[str, list[tuple[np.ndarray, int]]] = defaultdict(list)
    with sources.reading(files[0], "Parquet of FEMNIST"):
        for image, label, writer in parquet.rows(files, parquet.IMAGE, parquet.LABEL, ("writer_id",)):
            own[str(writer)].append((parquet.pixels(image), label))
        return {
            name: _a_tenth(name, (np.stack([x for x, _ in rows]), np.array([y for _, y in rows], np.uint8)))
            for name, rows in own.items()
        }


FEMNIST = Source(
    "FEMNIST",
    ("", "femnist", "femnist/data"),
    (
        *leaf.forms(_compact, _a_tenth),
        Form("the compact form", ("femnist.npz",), _from_npz),
        Form("Parquet files", ("*.parquet",), _from_parquet),
    ),
    otherwise=(
        "LEAF makes it of NIST's by_class and by_write archives: clone github.com/TalwalkarLab/leaf, run "
        "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in its data/femnist, and give that folder's data as "
        "folder"
    ),
)
