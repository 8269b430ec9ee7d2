"""A data set for federated learning keeps its parts aligned."""

import numpy as np
import pytest

from coterie.data import Federated, Shards
from coterie.data.partition import cluster_sizes, evenly
from coterie.errors import DataError, SettingError


def shards(ids):
    return Shards.from_lists([np.ones((2, 3))] * len(ids), [np.ones(2)] * len(ids), ids)


def test_only_train_is_needed():
    data = Federated(shards(["a", "b"]))
    assert data.test is data.unseen is data.truth is data.unseen_truth is data.models is None
    assert data.name == "data"


def test_aligned_parts_are_kept():
    train, test, unseen = shards(["a", "b"]), shards(["a", "b"]), shards(["c"])
    truth = np.array([1, 0])
    data = Federated(train, test, unseen, truth, np.array([1]))
    assert data.train is train and data.test is test and data.unseen is unseen and data.truth is truth


@pytest.mark.parametrize("ids", [["b", "a"], ["a", "c"], ["a"]])
def test_test_must_hold_the_same_clients_in_order(ids):
    with pytest.raises(DataError, match="test must hold the same clients as train, in the same order"):
        Federated(shards(["a", "b"]), shards(ids))


@pytest.mark.parametrize("truth", [[0], [0, 1, 1], [[0, 1]]])
def test_truth_must_have_one_label_per_client(truth):
    with pytest.raises(DataError, match=r"^truth must hold one cluster label per client"):
        Federated(shards(["a", "b"]), truth=np.array(truth))


@pytest.mark.parametrize("unseen", [None, shards(["c", "d"])])
def test_unseen_truth_must_have_one_label_per_unseen_client(unseen):
    with pytest.raises(DataError, match=r"^unseen_truth must hold one cluster label per client"):
        Federated(shards(["a", "b"]), unseen=unseen, unseen_truth=np.array([0]))


@pytest.mark.parametrize("examples, clients", [(10, 3), (7, 7), (5, 1)])
def test_an_even_split_gives_every_example_to_one_client(examples, clients):
    parts = evenly(examples, clients, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(examples))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients and max(sizes) - min(sizes) <= 1


def test_an_even_split_is_random():
    one, other = (np.concatenate(evenly(50, 5, np.random.default_rng(seed))) for seed in (0, 1))
    assert (one != np.arange(50)).any() and (one != other).any()


@pytest.mark.parametrize("clients", [0, 11])
def test_more_clients_than_examples_are_refused(clients):
    with pytest.raises(SettingError, match=f"cannot split 10 examples over {clients} clients"):
        evenly(10, clients, np.random.default_rng(0))


def test_clusters_are_as_equal_as_possible():
    assert cluster_sizes(10, 4).tolist() == [3, 3, 2, 2]
    assert cluster_sizes(4, 4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("clients, clusters", [(3, 4), (3, 0)])
def test_every_cluster_needs_a_client(clients, clusters):
    with pytest.raises(SettingError, match=f"{clients} clients cannot fill {clusters} clusters"):
        cluster_sizes(clients, clusters)


def test_all_parts_must_have_features_of_one_shape():
    narrow = Shards.from_lists([np.zeros((2, 3))], [np.zeros(2)])
    wide = Shards.from_lists([np.zeros((2, 4))], [np.zeros(2)])
    for part in ("test", "unseen"):
        with pytest.raises(DataError, match=rf"{part} has features of shape \(4,\), train of \(3,\)"):
            Federated(narrow, **{part: wide})
