"""MNIST: 60,000 handwritten digits and 10,000 to test on, 28 x 28 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.data import parquet, sources
from coterie.data.federated import Federated
from coterie.data.sources import Form, Remote, Source
from coterie.data.views import Images, inverted, rotated, seen_through
from coterie.errors import DataError

# of the files unpacked, so that it does not matter who packed them
MD5 = {
    "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
}
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PUBLISHED = {  # as torchvision has them
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}


def rotated_mnist(
    clients: int = 100,
    unseen: int = 0,
    examples: int | None = None,
    rotations: Sequence[int] = (0, 90, 180, 270),
    disjoint: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """MNIST, rotated: every cluster of clients sees the digits at its own angle.

    The IFCA paper's populations are `rotated_mnist(4800, 800)`, `rotated_mnist(2400, 400)` and
    `rotated_mnist(1200, 200)`: 50, 100 and 200 images per client, and test clients (`unseen`) who hold as
    many each and together the whole test set at every angle. The SR-FCA paper's is
    `rotated_mnist(100, disjoint=True)`: 600 images per client, and 100 to test it.

    Parameters
    ----------
    clients
        Training clients, shared equally among the rotations.
    unseen
        Further clients that take no part in training, shared equally among the rotations: each holds as many
        images as a client trains on, of the test set. What they leave of it is the training clients' `test`,
        which is None if there is not an image for each.
    examples
        Images per client; all that there are when not given.
    rotations
        One angle in degrees per cluster, multiples of 90, counter-clockwise.
    disjoint
        Whether an image is held by one client only. When not, every cluster has a rotated copy of all images.
    seed
        Who holds which.
    folder
        Where the files are, in any form that `docs/data.md` names; downloaded into the cache when not given.
    """
    images = MNIST.read(folder)
    return seen_through(
        rotated(rotations, images.x.shape[1:]),
        images,
        "rotated MNIST",
        clients=clients,
        unseen=unseen,
        examples=examples,
        disjoint=disjoint,
        seed=seed,
    )


def inverted_mnist(
    clients: int = 100,
    unseen: int = 0,
    examples: int | None = None,
    disjoint: bool = True,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """MNIST, inverted for half of the clients: white on black in one cluster, black on white in the other.

    The SR-FCA paper's population is `inverted_mnist()`: 100 clients, 600 images each that nobody else holds,
    and 100 to test it. Parameters are those of `rotated_mnist`.
    """
    return seen_through(
        inverted(white=255),
        MNIST.read(folder),
        "inverted MNIST",
        clients=clients,
        unseen=unseen,
        examples=examples,
        disjoint=disjoint,
        seed=seed,
    )


def _from_idx(*files: list[Path]) -> Images:
    x, y, tested_x, tested_y = (_idx(path) for (path,) in files)
    return Images.of((x, tested_x), (y, tested_y), "MNIST")


def _idx(path: Path) -> np.ndarray:
    """An array of bytes: 00 00 08, how many axes, their lengths as big-endian numbers, values."""
    what = "an IDX file of MNIST"
    found = sources.content(path, what, MD5.get(path.name.removesuffix(".gz")))
    with sources.reading(path, what):
        if found[:3] != b"\0\0\x08":
            raise DataError(f"{path} is not an IDX file of bytes: it does not begin with 00 00 08.")
        shape = np.frombuffer(found, ">u4", found[3], offset=4)
        return np.frombuffer(found, np.uint8, offset=4 + shape.nbytes).reshape(shape)


def _from_parquet(*files: list[Path]) -> Images:
    return parquet.images("MNIST", *files)


MNIST = Source(
    "MNIST",
    ("", "mnist", "MNIST/raw"),  # the last as torchvision has it
    (
        Form("IDX files, plain or gzipped", tuple(MD5), _from_idx),
        Form(
            "Parquet files",
            ("*train*.parquet", "*test*.parquet"),
            _from_parquet,
        ),
    ),
    tuple(Remote(name, (MIRROR + name,), md5) for name, md5 in PUBLISHED.items()),
)
