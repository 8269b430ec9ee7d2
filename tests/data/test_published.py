"""The data sets as they are published, from the folder that COTERIE_DATA names."""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie import data
from coterie.data.cifar import CIFAR10
from coterie.data.femnist import FEMNIST
from coterie.data.mnist import MNIST
from coterie.data.shakespeare import SHAKESPEARE, examples, speeches
from coterie.errors import SettingError

FOLDER = os.environ.get("COTERIE_DATA")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(FOLDER is None, reason="COTERIE_DATA names no folder with the data sets"),
]


def sizes(shards):
    return sorted(set(shards.sizes.tolist())) if shards else None


def test_every_pixel_of_cifar_is_the_published_one():
    images = CIFAR10.read(FOLDER)
    digests = [
        hashlib.sha256(np.ascontiguousarray(array[which])).hexdigest()[:8]
        for which in (images.kept, images.held_out)
        for array in (images.x, images.y)
    ]
    assert digests == ["47af8b02", "2b7cd2f2", "f9b1e213", "cec8a24a"]
    assert images.x.shape == (60000, 32, 32, 3)


def test_mnist_is_whole():  # its checksums are looked at whenever it is read
    images = MNIST.read(FOLDER)
    assert images.x.shape == (70000, 28, 28) and len(images.held_out) == 10000
    assert np.bincount(images.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


@pytest.mark.parametrize(
    "make, clients, train, test, unseen",
    [
        # IFCA: m n = 240,000, and 10,000 test images of every rotation
        (lambda f: data.rotated_mnist(4800, 800, folder=f), 4800, [50], None, 800),
        (lambda f: data.rotated_mnist(2400, 400, folder=f), 2400, [100], None, 400),
        (lambda f: data.rotated_mnist(1200, 200, folder=f), 1200, [200], None, 200),
        (lambda f: data.rotated_cifar10(200, 40, folder=f), 200, [500], None, 40),
        # SR-FCA
        (lambda f: data.rotated_mnist(100, disjoint=True, folder=f), 100, [600], [100], None),
        (lambda f: data.inverted_mnist(100, folder=f), 100, [600], [100], None),
        (lambda f: data.rotated_cifar10(32, folder=f), 32, [3125], [625], None),
        (lambda f: data.label_cifar10(32, folder=f), 32, [2187, 2188], [437, 438], None),
        (lambda f: data.label_cifar10(16, folder=f), 16, [4375], [875], None),
    ],
)
def test_populations_of_the_papers(make, clients, train, test, unseen):
    found = make(FOLDER)
    assert len(found.train) == clients and sizes(found.train) == train and sizes(found.test) == test
    assert found.unseen is None if unseen is None else len(found.unseen) == unseen
    if unseen:
        assert sizes(found.unseen) == train
        clusters = len(set(found.truth))
        assert found.train.examples == clusters * (60000 if clusters == 4 else 50000)
        assert found.unseen.examples == clusters * 10000
    assert all(b.x.dtype == b.y.dtype == np.uint8 for b in found.train.buckets)


def test_the_roles_and_examples_of_shakespeare_are_those_of_leaf():
    text = next(Path(FOLDER).glob("*100.txt.gz"))
    with gzip.open(text, "rt", encoding="utf-8-sig") as lines:
        found = examples(speeches(lines))
    assert len(found) == 1129
    assert sum(len(y) for _, y in found.values()) == 4_226_159
    assert len(np.unique(np.concatenate([y for _, y in found.values()]))) == 79
    roles = SHAKESPEARE.read(FOLDER)
    assert roles.keys() == found.keys()
    assert sum(len(role.test[1]) > 0 for role in roles.values()) == 660  # of 90 % and 10 % in time


def test_shakespeare_is_drawn_from_roles_with_test_examples():
    drawn = data.shakespeare(clients=50, unseen=10, folder=FOLDER)
    assert len(drawn.train) == 50 and len(drawn.unseen) == 10 and drawn.test.sizes.min() >= 1
    with pytest.raises(SettingError, match="more than the 660 roles with a test example"):
        data.shakespeare(clients=661, folder=FOLDER)


def test_femnist_has_the_writers_of_its_description():
    writers = FEMNIST.read(FOLDER)
    assert len(writers) == 300 and sum(w.examples for w in writers.values()) == 45958
    assert sum(w.examples >= 100 for w in writers.values()) == 272
    drawn = data.femnist(clients=173, at_least=100, folder=FOLDER)
    assert len(drawn.train) == 173 and (drawn.train.sizes + drawn.test.sizes).min() >= 100


def in_a_process(*lines):
    """The CPU seconds that lines of Python take, and the MB of memory at their peak; without imports."""
    code = """
import resource, sys, time
from coterie import data
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = peak(), time.process_time()
{}
print(time.process_time() - start, peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code.format("\n".join(lines))], capture_output=True, text=True, check=True
    )
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def test_rotated_mnist_for_4800_clients_loads_in_a_few_times_what_reading_takes():
    read, _ = in_a_process(
        "from coterie.data.mnist import MNIST",
        f"images = MNIST.read({FOLDER!r})",
        "[images.x.copy() for _ in '1234']",
    )
    dealt, megabytes = in_a_process(f"data.rotated_mnist(4800, 800, folder={FOLDER!r})")
    assert dealt < 5 * read
    assert megabytes < 4 * 4 * 55  # MB: the images at every angle are 4 x 55


def test_shakespeare_takes_little_more_memory_than_the_clients_asked_for():
    _, few = in_a_process(f"data.shakespeare(clients=5, folder={FOLDER!r})")
    _, many = in_a_process(f"found = data.shakespeare(clients=500, folder={FOLDER!r})")
    assert few < 100 and many < 600  # MB: their windows are 250
