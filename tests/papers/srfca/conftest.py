"""A folder with the paper's data sets, in small."""

import struct

import numpy as np
import pytest
from PIL import Image
from support.small_sets import write_shakespeare

from coterie.data import cifar, mnist

MNIST = {"train": 240, "t10k": 80}
WRITERS, EXAMPLES = 8, 20


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, rng):
    folder.mkdir()
    for name, count in MNIST.items():
        y = np.arange(count, dtype=np.uint8) % 10
        x = rng.integers(0, 256, (count, 28, 28), np.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(x))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(y))


def write_cifar(folder, rng):
    folder.mkdir()
    for name in cifar.GRIDS:
        grid = rng.integers(0, 256, (5 * cifar.SIDE, 8 * cifar.SIDE, 3), np.uint8)
        Image.fromarray(grid).save(folder / name, lossless=True)
    (folder / "labels.u8").write_bytes(bytes(i % 10 for i in range(40 * len(cifar.GRIDS))))


def write_femnist(folder, rng):
    np.savez(
        folder / "femnist.npz",
        images=rng.integers(0, 256, (WRITERS * EXAMPLES, 28, 28), np.uint8),
        labels=rng.integers(0, 62, WRITERS * EXAMPLES, np.uint8),
        writer=np.repeat(np.arange(WRITERS), EXAMPLES).astype(np.uint16),
        split=np.tile(np.arange(EXAMPLES) < 4, WRITERS).astype(np.uint8),
        writer_ids=[f"writer-{i}" for i in range(WRITERS)],
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """COTERIE_DATA with small files of any content."""
    folder, rng = tmp_path / "files", np.random.default_rng(0)
    folder.mkdir()
    write_mnist(folder / "mnist", rng)
    write_cifar(folder / "cifar10", rng)
    write_femnist(folder, rng)
    write_shakespeare(folder / "shakespeare" / "data")
    monkeypatch.setattr(mnist, "MD5", {})
    monkeypatch.setattr(cifar, "CHECKSUMS", {})
    monkeypatch.setenv("COTERIE_DATA", str(folder))
    return folder
