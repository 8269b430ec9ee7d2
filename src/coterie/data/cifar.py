"""CIFAR-10: 50,000 photographs of ten kinds of things and 10,000 to test on, 32 x 32 pixels in colour."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import parquet, sources
from coterie.data.federated import Federated
from coterie.data.sources import Form, Remote, Source
from coterie.data.views import Images, View, rotated, seen_through
from coterie.errors import DataError, SettingError

SIDE = 32
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
GRIDS = (*(f"train_{i}.webp" for i in range(1, 6)), "test.webp")
CHECKSUMS = {
    # as torchvision has them
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    # of the compact form
    "train_1.webp": "sha256:300ffcf194c8f61c75b8c5953a174409b8330fab73d07248898f6ccada5e7cca",
    "train_2.webp": "sha256:4515f0ede7ffd142fddb4729acfdf1fb65d12870990ad8b1965ac4a373033807",
    "train_3.webp": "sha256:7aae7d19f0a73bff547175b943476119a8c8095bc79ac54aab0df64c8d71c719",
    "train_4.webp": "sha256:e1efb601e48cbadc2a04109457693df681bf3c45a20b535e0f0a94312fff80e5",
    "train_5.webp": "sha256:c8e9792848a0a5278c0b1a0061ed5a9075aba417cd48cc0fe9ba6f4d3da9cfa4",
    "test.webp": "sha256:b3c946666f1bd5f3d0836a282e2755dbb4192a4f7382116ee2a4139d456731b7",
    "labels.u8": "sha256:3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f",
}
ARCHIVE = Remote(
    "cifar-10-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
    "md5:c58f30108f718f92721af3b95e74349a",
)


def rotated_cifar10(
    clients: int = 32,
    unseen: int = 0,
    examples: int | None = None,
    rotations: Sequence[int] = (0, 180),
    disjoint: bool = False,
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """CIFAR-10, rotated: every cluster of clients sees the photographs at its own angle.

    The IFCA paper's population is `rotated_cifar10(200, 40)`: 500 images per client, all images in both
    clusters, and test clients who hold the test set at both angles. The SR-FCA paper's is
    `rotated_cifar10(32)`: 3,125 images per client and 625 to test it. That takes all images in both clusters,
    too; where no image is to be held twice there are as many for 16: `rotated_cifar10(16, disjoint=True)`.

    Parameters are those of `rotated_mnist`.
    """
    return seen_through(
        rotated(rotations, (SIDE, SIDE)),
        CIFAR10.read(folder),
        "rotated CIFAR-10",
        clients=clients,
        unseen=unseen,
        examples=examples,
        disjoint=disjoint,
        seed=seed,
    )


def label_cifar10(
    clients: int = 32,
    unseen: int = 0,
    examples: int | None = None,
    labels: Sequence[Sequence[int]] = (range(7), range(3, 10)),
    seed: int = 0,
    folder: str | Path | None = None,
) -> Federated:
    """CIFAR-10 by labels: a cluster of clients has the photographs of some labels only.

    In the SR-FCA paper these are the first seven and the last seven of the ten. Its m = 32 clients of
    n = 4,375 images would hold every image twice: 32 clients have 2,187 or 2,188 here, and 16 have 4,375.

    Parameters
    ----------
    labels
        The labels of each cluster. Clusters that share a label share its images.

    The others are those of `rotated_mnist`.
    """
    images = CIFAR10.read(folder)
    there = np.unique(images.y).tolist()
    for label in (label for own in labels for label in own):
        if label not in there:
            raise SettingError(
                f"CIFAR-10 has no images of label {label}: its labels are {there[0]} to {there[-1]}."
            )
    views = [View(labels=tuple(own)) for own in labels]
    return seen_through(
        views, images, "CIFAR-10 by labels", clients=clients, unseen=unseen, examples=examples, seed=seed
    )


# -- the published files: pickles of Python 2 ----------------------------------------------------------------


def _from_archive(files: list[Path]) -> Images:
    (path,) = files

    def members() -> Iterator[tuple[str, bytes]]:
        with sources.reading(path, "the archive of CIFAR-10"), tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                file = archive.extractfile(member) if name in BATCHES else None
                if file is not None:
                    yield name, file.read()

    return _of_batches(dict(members()), path)


def _from_batches(*files: list[Path]) -> Images:
    found = {path.name: sources.content(path, "a batch of CIFAR-10") for (path,) in files}
    return _of_batches(found, files[0][0].parent)


def _of_batches(content: dict[str, bytes], where: Path) -> Images:
    for name in BATCHES:
        if name not in content:
            raise DataError(f"{where} lacks {name}: it is truncated or something else, get it again.")
        sources.check(content[name], where / name, "a batch of CIFAR-10", CHECKSUMS.get(name))
    pairs = []
    for name in BATCHES:
        with sources.reading(where / name, "a batch of CIFAR-10"):
            pairs.append(_batch(content.pop(name)))
    x, y = zip(*pairs, strict=True)
    return Images.of(x, y, "CIFAR-10")


def _batch(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a batch, whose images are stored channel by channel."""
    batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
    _, shape, _, _, data = batch[b"data"].state
    x = np.frombuffer(data, np.uint8).reshape(shape[0], 3, SIDE, SIDE)
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)), np.array(batch[b"labels"], np.uint8)


class _Inert:
    """What stands for every class and function that a batch names: it keeps its state, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _OnlyArrays(pickle.Unpickler):
    """Reads pickles of plain values and arrays of bytes; a pickle that names anything else is refused."""

    KNOWN = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR-10 does")
        return _Inert


# -- other forms ---------------------------------------------------------------------------------------------


def _from_grids(*files: list[Path]) -> Images:
    *grids, (labels,) = files
    with ThreadPoolExecutor(2) as threads:
        x = list(threads.map(_grid, (path for (path,) in grids)))
    y = np.frombuffer(sources.content(labels, "the labels of CIFAR-10", CHECKSUMS.get(labels.name)), np.uint8)
    ends = np.cumsum([len(images) for images in x])
    return Images.of(x, np.split(y, ends[:-1]), "CIFAR-10")


def _grid(path: Path) -> np.ndarray:
    """The images of a file that shows them row by row, one beside the other."""
    from PIL import Image

    what = "a WebP file of CIFAR-10"
    found = sources.content(path, what, CHECKSUMS.get(path.name))
    with sources.reading(path, what), Image.open(io.BytesIO(found)) as image:
        whole = np.asarray(image.convert("RGB"))
        rows, columns = whole.shape[0] // SIDE, whole.shape[1] // SIDE
        return whole.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)


def _from_parquet(*files: list[Path]) -> Images:
    return parquet.images("CIFAR-10", *files)


CIFAR10 = Source(
    "CIFAR-10",
    ("", "cifar10", "cifar-10-batches-py"),
    (
        Form("the published archive", (ARCHIVE.name,), _from_archive),
        Form("its batches", BATCHES, _from_batches),
        Form("the compact form", (*GRIDS, "labels.u8"), _from_grids),
        Form(
            "Parquet files",
            ("*train*.parquet", "*test*.parquet"),
            _from_parquet,
        ),
    ),
    (ARCHIVE,),
)
