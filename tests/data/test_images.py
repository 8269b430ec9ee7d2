"""MNIST and CIFAR-10 from small files: the forms they come in, and how the papers deal them out."""

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import coterie as ct
from coterie.data import cifar, inverted_mnist, label_cifar10, mnist, rotated_cifar10, rotated_mnist
from coterie.data.views import rotated
from coterie.errors import CoterieError, DataError, SettingError

RNG = np.random.default_rng(0)
# every image is another one: its number is in its first pixels, whichever way it is turned
DIGITS = RNG.integers(0, 256, (280, 28, 28), np.uint8), RNG.permutation(np.arange(280, dtype=np.uint8) % 10)
PHOTOS = RNG.integers(0, 256, (120, 32, 32, 3), np.uint8), np.arange(120, dtype=np.uint8) % 10
TRAIN, PHOTO_TRAIN = 240, 100


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Files of any content are those that are meant."""
    monkeypatch.setattr(mnist, "MD5", {})
    monkeypatch.setattr(cifar, "CHECKSUMS", {})


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_files(folder, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = DIGITS
    for name, array in (
        ("train-images-idx3-ubyte", x[:TRAIN]),
        ("train-labels-idx1-ubyte", y[:TRAIN]),
        ("t10k-images-idx3-ubyte", x[TRAIN:]),
        ("t10k-labels-idx1-ubyte", y[TRAIN:]),
    ):
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def parquet_files(folder, column, data, train):
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", slice(train)), ("test", slice(train, None))):
        x = [{"bytes": png(image), "path": None} for image in data[0][part]]
        pq.write_table(
            pa.table({column: x, "label": data[1][part].tolist()}), folder / f"{name}-00000.parquet"
        )


def batch_of_python_2(x, y, array=b"cnumpy.core.multiarray\n_reconstruct\n"):
    """A pickle as the published batches are, opcode by opcode: Python 3 cannot write them."""

    def text(value):
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value):
        return b"K" + bytes([value])

    data = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
    dtype += b"J\xff\xff\xff\xffK\x00tb"
    shape = b"(" + number(len(data)) + b"M" + struct.pack("<H", data.shape[1]) + b"t"
    pixels = array + b"(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR(K\x01" + shape + dtype + b"\x89"
    pixels += text(data.tobytes()) + b"tb"
    labels = b"](" + b"".join(map(number, y.tolist())) + b"e"
    return b"\x80\x02}(" + text(b"data") + pixels + text(b"labels") + labels + b"u."


def batches():
    """The name and the content of each of the six."""
    parts = np.split(np.arange(120), [20, 40, 60, 80, 100])
    return [
        (name, batch_of_python_2(PHOTOS[0][part], PHOTOS[1][part]))
        for name, part in zip(cifar.BATCHES, parts, strict=True)
    ]


def cifar_batches(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in batches():
        (folder / name).write_bytes(content)


def cifar_archive(folder):
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in [("readme.html", b"<html>"), *batches()]:
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def cifar_grids(folder):
    folder.mkdir(parents=True)
    for name, part in zip(cifar.GRIDS, np.split(PHOTOS[0], 6), strict=True):
        whole = part.reshape(4, 5, 32, 32, 3).swapaxes(1, 2).reshape(4 * 32, 5 * 32, 3)
        Image.fromarray(whole).save(folder / name, lossless=True)
    (folder / "labels.u8").write_bytes(PHOTOS[1].tobytes())


@pytest.mark.parametrize(
    "source, data, write",
    [
        (mnist.MNIST, DIGITS, mnist_files),
        (mnist.MNIST, DIGITS, lambda folder: mnist_files(folder / "MNIST" / "raw", packed=True)),
        (mnist.MNIST, DIGITS, lambda folder: parquet_files(folder / "mnist", "image", DIGITS, TRAIN)),
        (cifar.CIFAR10, PHOTOS, cifar_archive),
        (cifar.CIFAR10, PHOTOS, lambda folder: cifar_batches(folder / "cifar-10-batches-py")),
        (cifar.CIFAR10, PHOTOS, lambda folder: cifar_grids(folder / "cifar10")),
        (cifar.CIFAR10, PHOTOS, lambda folder: parquet_files(folder, "img", PHOTOS, PHOTO_TRAIN)),
    ],
)
def test_every_form_gives_the_same_images(tmp_path, source, data, write):
    write(tmp_path)
    images = source.read(tmp_path)
    np.testing.assert_array_equal(images.x, data[0])
    np.testing.assert_array_equal(images.y, data[1])
    assert images.x.dtype == images.y.dtype == np.uint8
    assert len(images.kept) == (TRAIN if source is mnist.MNIST else PHOTO_TRAIN)
    assert np.concatenate([images.kept, images.held_out]).tolist() == list(range(len(data[0])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    mnist_files(folder / "mnist")
    cifar_grids(folder / "cifar10")
    return folder


TURNED = [lambda x, k=k: np.rot90(x, -k, axes=(1, 2)) for k in range(4)]
UPSIDE_DOWN = [TURNED[0], TURNED[2]]
AS_IT_IS = [TURNED[0], TURNED[0]]
INVERTED = [TURNED[0], lambda x: 255 - x]


def numbers(shards, truth, undo, data):
    """Which images each client holds, once its view is undone; labels must go with them."""
    known = {image.tobytes(): i for i, image in enumerate(data[0])}
    found = []
    for (x, y), cluster in zip(shards or (), [] if truth is None else truth, strict=True):
        found.append([known[image.tobytes()] for image in np.ascontiguousarray(undo[cluster](x))])
        np.testing.assert_array_equal(y, data[1][found[-1]])
    return found


@pytest.mark.parametrize(
    "make, undo, data, train, test, unseen",
    [
        # IFCA: every cluster has all images, and its unseen clients the whole test set; as m n = 240 k
        (lambda f: rotated_mnist(48, 8, folder=f), TURNED, DIGITS, 20, None, 20),
        (lambda f: rotated_mnist(24, 4, folder=f), TURNED, DIGITS, 40, None, 40),
        (lambda f: rotated_cifar10(20, 4, folder=f), UPSIDE_DOWN, PHOTOS, 10, None, 10),
        # SR-FCA
        (lambda f: rotated_mnist(20, disjoint=True, folder=f), TURNED, DIGITS, 12, 2, None),
        (lambda f: inverted_mnist(20, folder=f), INVERTED, DIGITS, 12, 2, None),
        (lambda f: rotated_cifar10(10, folder=f), UPSIDE_DOWN, PHOTOS, 20, 4, None),
        (lambda f: label_cifar10(10, folder=f), AS_IT_IS, PHOTOS, 14, (2, 3), None),
        # fewer images than there are; what unseen clients leave of the test set is the training clients'
        (lambda f: rotated_mnist(8, 4, examples=20, folder=f), TURNED, DIGITS, 20, 10, 20),
    ],
)
def test_images_are_dealt_out_as_in_the_papers(folder, make, undo, data, train, test, unseen):
    found = make(folder)
    trained = numbers(found.train, found.truth, undo, data)
    tested = numbers(found.test, found.truth, undo, data) if found.test else []
    others = numbers(found.unseen, found.unseen_truth, undo, data)
    limit = TRAIN if data is DIGITS else PHOTO_TRAIN
    for held, size in ((trained, train), (tested, test), (others, unseen)):
        assert {len(h) for h in held} <= set(np.atleast_1d(size if size is not None else []).tolist())
    assert all(n < limit for own in trained for n in own)
    assert all(n >= limit for own in tested + others for n in own)
    for cluster in range(len(undo)):  # within a cluster no image is held twice
        for held, truth in ((trained, found.truth), (tested, found.truth), (others, found.unseen_truth)):
            own = [n for h, c in zip(held, truth if held else (), strict=True) if c == cluster for n in h]
            assert len(set(own)) == len(own)
    assert found.train.spec.scale == 1 / 255 and found.train.spec.classes == 10
    assert {b.x.dtype for b in found.train.buckets} == {np.dtype(np.uint8)}


def test_disjoint_images_are_held_once_and_others_once_in_every_cluster(folder):
    def times(data):
        held = numbers(data.train, data.truth, TURNED, DIGITS)
        return np.unique([n for own in held for n in own], return_counts=True)

    once, counts = times(rotated_mnist(20, disjoint=True, folder=folder))
    assert once.tolist() == list(range(TRAIN)) and set(counts) == {1}
    all_of_them, counts = times(rotated_mnist(48, 8, folder=folder))
    assert all_of_them.tolist() == list(range(TRAIN)) and set(counts) == {4}


def test_clusters_by_label_hold_their_labels_only(folder):
    data = label_cifar10(4, 2, examples=3, labels=((0, 1, 2), (2, 9)), folder=folder)
    own = {0, 1, 2}, {2, 9}
    for shards, truth in ((data.train, data.truth), (data.unseen, data.unseen_truth)):
        assert all(set(y.tolist()) <= own[c] for (_, y), c in zip(shards, truth, strict=True))


def test_the_seed_decides_who_holds_what(folder):
    first, again, other = (rotated_mnist(8, seed=s, folder=folder).train.client(0)[0] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
def test_a_model_sees_numbers_from_0_to_1(folder):
    train = rotated_mnist(8, folder=folder).train
    learner = ct.Learner(ct.models.MLP(hidden=(8,)), "cross_entropy", ct.SGD(lr=0.1, steps=1))
    found = ct.IFCA(k=2, rounds=2, n_init=1).fit(train, learner)
    seen = train.spec.seen(train.client(0)[0])
    assert seen.dtype == np.float32 and seen.max() <= 1 and np.isfinite(found.history[-1].loss)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda f: rotated_mnist(1000, folder=f), "cannot split 240 examples over 250 clients"),
        (lambda f: rotated_mnist(3, folder=f), "3 clients cannot fill 4 clusters"),
        (lambda f: rotated_mnist(8, rotations=(0, 30), folder=f), "rotation 30 is not a multiple of 90"),
        (
            lambda f: rotated_mnist(8, 0, 121, folder=f),
            "2 clients cannot hold 121 images each, a cluster has 240",
        ),
        (lambda f: rotated_mnist(8, 0, 0, folder=f), "choose 1 to 120 examples"),
        (lambda f: rotated_mnist(8, 8, folder=f), "2 unseen clients cannot hold 120 images each, .* 40 test"),
        (
            lambda f: label_cifar10(4, labels=((0,), (10,)), folder=f),
            "CIFAR-10 has no images of label 10: its",
        ),
    ],
)
def test_impossible_settings_are_refused(folder, make, sentence):
    with pytest.raises(SettingError, match=sentence):
        make(folder)


def test_rotations_of_images_that_are_not_square():
    assert len(rotated((0, 180), (20, 30))) == 2
    with pytest.raises(SettingError, match="rotation 270 needs square images, and these are 20 x 30"):
        rotated((0, 270), (20, 30))


def spoiled(write, name, content):
    """A folder as `write` makes it, but for one file."""

    def make(folder):
        write(folder)
        path = folder / name
        path.write_bytes(content(path.read_bytes()))

    return make


@pytest.mark.parametrize(
    "source, write, sentence",
    [
        (
            mnist.MNIST,
            spoiled(mnist_files, "t10k-images-idx3-ubyte", lambda c: c[:-1]),
            "cannot reshape array",
        ),
        (
            mnist.MNIST,
            spoiled(mnist_files, "t10k-images-idx3-ubyte", lambda c: b"\x89PNG"),
            "is not an IDX file",
        ),
        (
            mnist.MNIST,
            spoiled(mnist_files, "train-labels-idx1-ubyte", lambda c: idx(DIGITS[1][:5])),
            "MNIST: there are 240 images and 5 labels for them",
        ),
        (
            mnist.MNIST,
            spoiled(mnist_files, "train-images-idx3-ubyte", lambda c: b""),
            "train-images-idx3-ubyte",
        ),
        (
            cifar.CIFAR10,
            spoiled(cifar_batches, "data_batch_2", lambda c: c[:-9]),
            "data_batch_2 cannot be read",
        ),
        (
            cifar.CIFAR10,
            spoiled(cifar_batches, "test_batch", lambda c: pickle.dumps(print)),
            "it asks for .*print, which no batch of CIFAR-10 does",
        ),
        (
            cifar.CIFAR10,
            spoiled(cifar_archive, "cifar-10-python.tar.gz", lambda c: c[: len(c) // 2]),
            "cifar-10-python.tar.gz cannot be read as the archive of CIFAR-10",
        ),
        (
            cifar.CIFAR10,
            spoiled(lambda f: cifar_grids(f / "cifar10"), "cifar10/train_3.webp", lambda c: c[:99]),
            "train_3.webp cannot be read as a WebP file of CIFAR-10",
        ),
        (
            cifar.CIFAR10,
            spoiled(lambda f: cifar_grids(f / "cifar10"), "cifar10/labels.u8", lambda c: c[1:]),
            "there are 20 images and 19 labels",
        ),
        (
            cifar.CIFAR10,
            lambda f: parquet_files(f, "photo", PHOTOS, 100),
            "has no column 'image' or 'img'; its columns are photo, label",
        ),
        (
            mnist.MNIST,
            lambda f: parquet_files(f, "image", ([*DIGITS[0][:9], PHOTOS[0][0]], DIGITS[1][:10]), 9),
            r"MNIST: images differ in shape, \(28, 28\) and \(32, 32, 3\)",
        ),
    ],
)
def test_damaged_files_are_named_in_one_sentence(tmp_path, source, write, sentence):
    write(tmp_path)
    with pytest.raises(DataError, match=sentence) as caught:
        source.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_other_files_than_the_published_ones_are_refused(tmp_path, monkeypatch):
    monkeypatch.undo()
    mnist_files(tmp_path)
    cifar_batches(tmp_path)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is not .*MNIST: the MD5 of its content is"):
        rotated_mnist(8, folder=tmp_path)
    with pytest.raises(DataError, match="data_batch_1 is not a batch of CIFAR-10: the MD5 of its content is"):
        rotated_cifar10(8, folder=tmp_path)


def test_where_files_are_missing_it_is_said_how_to_get_them(tmp_path):
    for make in (rotated_mnist, inverted_mnist, rotated_cifar10, label_cifar10):
        with pytest.raises(CoterieError, match=r"in a known form: .* leave folder out to have it downloaded"):
            make(folder=tmp_path)
