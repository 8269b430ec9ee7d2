"""Handwritten digits: every cluster sees the same images through its own view."""

from itertools import chain

import numpy as np
import pytest
from sklearn.datasets import load_digits

from coterie.data import inverted_digits, rotated_digits
from coterie.errors import SettingError

IMAGES, LABELS = load_digits().images.astype(np.float32) / 16, load_digits().target
INDEX = {image.tobytes(): i for i, image in enumerate(IMAGES)}

ANGLES = (0, 90, 180, 270)
UNTURN = {angle: (lambda x, t=angle // 90: np.rot90(x, -t, axes=(1, 2))) for angle in ANGLES}


def numbers_of(shards, position, undo):
    """Which of scikit-learn's images a client holds, once the view is undone; labels must go with them."""
    x, y = shards.client(position)
    numbers = [INDEX[image.tobytes()] for image in np.ascontiguousarray(undo(x), np.float32)]
    np.testing.assert_array_equal(y, LABELS[numbers])
    return numbers


def numbers_of_cluster(shards, truth, cluster, undo):
    return [n for i in np.flatnonzero(truth == cluster) for n in numbers_of(shards, i, undo)]


def assert_same_images_through_every_view(data, undos):
    trained = []
    for cluster, undo in enumerate(undos):
        train = numbers_of_cluster(data.train, data.truth, cluster, undo)
        test = numbers_of_cluster(data.test, data.truth, cluster, undo)
        unseen = numbers_of_cluster(data.unseen, data.unseen_truth, cluster, undo)
        assert len(set(train)) == len(train) == 1438  # every training image exactly once
        assert len(set(test)) == len(test) and len(set(unseen)) == len(unseen)
        assert not set(train) & set(test) and not set(train) & set(unseen) and not set(test) & set(unseen)
        assert len(train) + len(test) + len(unseen) == len(INDEX) == len(IMAGES)  # all are different
        trained.append(set(train))
    assert all(images == trained[0] for images in trained)


def test_each_cluster_sees_every_training_image_once_at_its_angle():
    assert_same_images_through_every_view(rotated_digits(), [UNTURN[angle] for angle in ANGLES])


def test_half_of_the_clients_see_inverted_images():
    data = inverted_digits(clients=6, unseen=2)
    assert data.truth.tolist() == [0, 0, 0, 1, 1, 1] and data.unseen_truth.tolist() == [0, 1]
    assert_same_images_through_every_view(data, [lambda x: x, lambda x: 1 - x])


def test_clients_that_do_not_divide_evenly_fill_the_first_clusters():
    data = rotated_digits(clients=10, unseen=5)
    assert data.truth.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert data.unseen_truth.tolist() == [0, 0, 1, 2, 3]
    assert_same_images_through_every_view(data, [UNTURN[angle] for angle in ANGLES])
    per_cluster = [data.train.sizes[data.truth == j] for j in range(4)]
    assert all(sizes.sum() == 1438 and np.ptp(sizes) <= 1 for sizes in per_cluster)


@pytest.mark.parametrize("rotations", [(180, 90), (-90, 450), (270,)])
def test_clusters_follow_the_rotations_given(rotations):
    data = rotated_digits(clients=4, rotations=rotations, unseen=len(rotations))
    assert_same_images_through_every_view(data, [UNTURN[angle % 360] for angle in rotations])


def test_a_quarter_turn_is_counter_clockwise():
    data = rotated_digits(clients=2, rotations=(0, 90), unseen=0)
    upright, turned = (
        {n: i for i, n in enumerate(numbers_of(data.train, c, UNTURN[90 * c]))} for c in (0, 1)
    )
    a, b = data.train.client(0)[0][upright[0]], data.train.client(1)[0][turned[0]]
    for row in range(8):
        for column in range(8):
            assert b[7 - column, row] == a[row, column]


def test_shape_ids_and_classes():
    data = rotated_digits(clients=12)
    assert data.train.spec == data.test.spec == data.unseen.spec
    assert data.train.spec.x_shape == (8, 8) and data.train.spec.classes == 10
    assert data.train.ids[[0, 11]].tolist() == ["client-00", "client-11"]
    assert data.test.ids.tolist() == data.train.ids.tolist()
    assert data.unseen.ids[0] == "unseen-0"
    assert all(x.min() >= 0 and x.max() <= 1 for x, _ in data.train)
    assert data.name == "rotated digits" and data.models is None
    alone = inverted_digits(clients=4, unseen=0)
    assert alone.unseen is None and alone.unseen_truth is None
    assert alone.test.sizes.sum() == 2 * 359


def test_the_seed_decides_who_holds_what():
    def first(seed):
        return rotated_digits(clients=4, seed=seed).train.client(0)[0]

    np.testing.assert_array_equal(first(3), first(3))
    assert not np.array_equal(first(3), first(4))


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"rotations": (0, 45)}, "rotation 45 is not a multiple of 90 degrees"),
        ({"clients": 3}, "3 clients cannot fill 4 clusters"),
        ({"unseen": 3}, "3 clients cannot fill 4 clusters"),
        ({"rotations": ()}, "cannot fill 0 clusters"),
        ({"clients": 4 * 1500}, "cannot split 1438 examples over 1500 clients"),
    ],
)
def test_impossible_settings_are_refused(options, sentence):
    with pytest.raises(SettingError, match=sentence):
        rotated_digits(**options)


def held(data, undos):
    """The images of every training client, of its test, and of every unseen client."""
    train, test = (
        [numbers_of(shards, i, undos[data.truth[i]]) for i in range(len(data.truth))]
        for shards in (data.train, data.test)
    )
    unseen = [numbers_of(data.unseen, i, undos[j]) for i, j in enumerate(data.unseen_truth)]
    return train, test, unseen


@pytest.mark.parametrize(
    "data, undos",
    [
        (rotated_digits(clients=10, unseen=5, disjoint=True), [UNTURN[angle] for angle in ANGLES]),
        (inverted_digits(clients=6, unseen=2, disjoint=True), [lambda x: x, lambda x: 1 - x]),
    ],
)
def test_disjoint_images_are_held_by_one_client_only(data, undos):
    train, test, unseen = held(data, undos)
    everything = list(chain(*train, *test, *unseen))
    assert sorted(everything) == list(range(len(IMAGES)))  # each image once, of all clusters together
    assert sum(map(len, train)) == 1438
    assert np.ptp([len(images) for images in train]) <= 1  # whatever the cluster


def test_draws_of_one_test_seed_share_their_test_images_and_never_train_on_them():
    undos = [UNTURN[angle] for angle in ANGLES]
    draws = [rotated_digits(clients=8, unseen=4, seed=s, disjoint=True, test_seed=0) for s in (0, 1, 2)]
    trained, tested = [], []
    for data in draws:
        train, test, unseen = held(data, undos)
        trained.append(set(chain(*train)))
        tested.append(set(chain(*test, *unseen)))
    assert tested[0] == tested[1] == tested[2] and len(tested[0]) == 359
    assert not trained[0] & tested[1] and trained[0] == trained[1]
    first = [data.train.client(0)[0] for data in draws]
    assert not np.array_equal(first[0], first[1])  # but who holds which differs
    other = held(rotated_digits(clients=8, unseen=4, seed=1), undos)[1]
    assert set(chain(*other)) & trained[0]  # as it is when every draw holds out its own
