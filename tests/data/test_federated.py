"""A data set for federated learning keeps its parts aligned."""

import numpy as np
import pytest

from coterie.data import Federated, Shards
from coterie.data.partition import cluster_sizes, evenly
from coterie.errors import DataError, SettingError


def shards(ids):
    return Shards.from_lists([np.ones((2, 3))] * len(ids), [np.ones(2)] * len(ids), ids)


def test_only_train_is_needed_and_aligned_parts_are_kept():
    data = Federated(shards(["a", "b"]))
    assert data.test is data.unseen is data.truth is data.unseen_truth is data.models is None
    assert data.name == "data"
    # and parts that are aligned are kept
    train, test, unseen = shards(["a", "b"]), shards(["a", "b"]), shards(["c"])
    truth = np.array([1, 0])
    data = Federated(train, test, unseen, truth, np.array([1]))
    assert data.train is train and data.test is test and data.unseen is unseen and data.truth is truth
    # of a client with a single example none may be held out
    assert Federated(train, shards(["b"])).test.ids.tolist() == ["b"]


WIDE = Shards.from_lists([np.zeros((2, 4))], [np.zeros(2)])
CLIENTS = "test must hold clients of train, in the same order"
TRUTH, UNSEEN = (rf"^{name} must hold one cluster label per client" for name in ("truth", "unseen_truth"))


@pytest.mark.parametrize(
    "parts, sentence",
    [
        ({"test": shards(["b", "a"])}, CLIENTS),
        ({"test": shards(["a", "c"])}, CLIENTS),
        ({"truth": np.array([0])}, TRUTH),
        ({"truth": np.array([0, 1, 1])}, TRUTH),
        ({"truth": np.array([[0, 1]])}, TRUTH),
        ({"unseen_truth": np.array([0])}, UNSEEN),
        ({"unseen": shards(["c", "d"]), "unseen_truth": np.array([0])}, UNSEEN),
        (
            {"train": WIDE, "test": shards([0])},
            r"test has features of shape \(3,\), train of \(4,\)",
        ),
        ({"unseen": WIDE}, r"unseen has features of shape \(4,\), train of \(3,\)"),
    ],
)
def test_parts_that_are_not_aligned_are_refused(parts, sentence):
    with pytest.raises(DataError, match=sentence):
        Federated(**{"train": shards(["a", "b"])} | parts)


@pytest.mark.parametrize("examples, clients", [(10, 3), (7, 7), (5, 1)])
def test_an_even_split_gives_every_example_to_one_client(examples, clients):
    parts = evenly(examples, clients, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients and max(sizes) - min(sizes) <= 1
    # at random
    one, other = (np.concatenate(evenly(50, 5, np.random.default_rng(seed))) for seed in (0, 1))
    assert (one != np.arange(50)).any() and (one != other).any()


def test_clusters_are_as_equal_as_possible():
    assert cluster_sizes(10, 4).tolist() == [3, 3, 2, 2]
    assert cluster_sizes(4, 4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: evenly(10, 0, np.random.default_rng(0)), "cannot split 10 examples over 0 clients"),
        (lambda: evenly(10, 11, np.random.default_rng(0)), "cannot split 10 examples over 11 clients"),
        (lambda: cluster_sizes(3, 4), "3 clients cannot fill 4 clusters"),
        (lambda: cluster_sizes(3, 0), "3 clients cannot fill 0 clusters"),
    ],
)
def test_what_cannot_be_split_is_refused(call, sentence):
    with pytest.raises(SettingError, match=sentence):
        call()
