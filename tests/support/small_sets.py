"""Small files in the forms of the published data sets, whose images are as simple as their labels."""

import json
import struct

import numpy as np
import pytest
from PIL import Image

from coterie.data import cifar, mnist
from coterie.data.shakespeare import CHARACTERS


def marked(labels, shape):
    """Noise with a bright row whose place is the label, so that little training tells them apart."""
    rng = np.random.default_rng(len(labels))
    images = rng.integers(0, 60, (len(labels), *shape), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label % shape[0]] = 255
    return images


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder, train=80, test=40):
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", train), ("t10k", test)):
        labels = (np.arange(size) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(marked(labels, (28, 28))))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


def write_cifar(folder):
    """100 images and 20 to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(120) % 10).astype(np.uint8)
    for name, part in zip(cifar.GRIDS, np.split(marked(labels, (32, 32, 3)), 6), strict=True):
        whole = part.reshape(4, 5, 32, 32, 3).swapaxes(1, 2).reshape(4 * 32, 5 * 32, 3)
        Image.fromarray(whole).save(folder / name, lossless=True)
    (folder / "labels.u8").write_bytes(labels.tobytes())


def write_femnist(folder, sizes=(30, 24, 28, 20, 40, 25)):
    """Writers with so many images, a fifth of them to test on."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.concatenate([np.arange(n) % 10 for n in sizes]).astype(np.uint8)
    np.savez(
        folder / "femnist.npz",
        images=marked(labels, (28, 28)),
        labels=labels,
        writer=np.repeat(np.arange(len(sizes)), sizes).astype(np.uint16),
        split=np.concatenate([np.arange(n) < n // 5 for n in sizes]).astype(np.uint8),
        writer_ids=[f"f{i:04d}_00" for i in range(len(sizes))],
    )


def write_shakespeare(folder, roles=8, each=20):
    """Roles that say any letters."""
    rng, letters = np.random.default_rng(roles), np.array(list(CHARACTERS))

    def said(length):
        return "".join(rng.choice(letters, length))

    users = {
        f"role-{i}": {"x": [said(80) for _ in range(each)], "y": [said(1) for _ in range(each)]}
        for i in range(roles)
    }
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True)
        (folder / part / "some.json").write_text(json.dumps({"users": list(users), "user_data": users}))


@pytest.fixture
def small_sets(tmp_path, monkeypatch):
    """All of them, in the folder that COTERIE_DATA names."""
    monkeypatch.setattr(mnist, "MD5", {})
    monkeypatch.setattr(cifar, "CHECKSUMS", {})
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "sets"))
    for write, name in ((write_mnist, "mnist"), (write_cifar, "cifar10"), (write_femnist, "")):
        write(tmp_path / "sets" / name)
    return tmp_path / "sets"
