"""Ragged shards: bucketed, masked, in memory or on disk."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.buckets import many_buckets

from coterie.data import Shards, Spec
from coterie.data.shards import PADDING
from coterie.errors import DataError, StorageError

SIZES = [3, 1, 8, 5, 2, 4, 1, 17]


def lists(sizes=SIZES, shape=(2,), seed=0):
    """Features and labels of some clients; no two examples are alike."""
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((n, *shape)).astype(np.float32) for n in sizes]
    ys = [rng.integers(0, 10, n).astype(np.int32) for n in sizes]
    return xs, ys


@many_buckets
def some(sizes=SIZES, **options):
    return Shards.from_lists(*lists(sizes), [f"c{i}" for i in range(len(sizes))], **options)


def tiny(sizes):
    """One number per example: cheap even for large clients."""
    return Shards.from_lists([np.arange(n) for n in sizes], [np.zeros(n, np.float32) for n in sizes])


def assert_holds(shards, xs, ys):
    assert len(shards) == len(xs)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        np.testing.assert_array_equal(shards.client(i)[0], x)
        np.testing.assert_array_equal(shards.client(i)[1], y)
    assert shards.sizes.tolist() == [len(x) for x in xs]


def assert_same(a, b):
    assert a.spec == b.spec and a.ids.tolist() == b.ids.tolist()
    assert_holds(a, *zip(*b, strict=True))
    for one, other in zip(a.buckets, b.buckets, strict=True):
        for name in ("x", "y", "sizes", "clients"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def refuses(sentence, call, *arguments, **options):
    """The call fails with that sentence, and one sentence it is."""
    with pytest.raises(DataError) as raised:
        call(*arguments, **options)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")


# -- round trips ---------------------------------------------------------------------------------------------


def test_lists_come_back_in_order_with_their_ids():
    xs, ys = lists()
    ids = ["z", "a", "m", "b", "y", "c", "x", "d"]
    shards = Shards.from_lists(xs, ys, ids)
    assert_holds(shards, xs, ys)
    assert shards.ids.tolist() == ids
    assert shards.examples == sum(SIZES)
    for (x, y), a, b in zip(shards, xs, ys, strict=True):  # and unpadded
        np.testing.assert_array_equal(x, a)
        np.testing.assert_array_equal(y, b)
    assert Shards.from_lists(*lists([1, 2])).ids.tolist() == [0, 1]
    assert Shards.from_lists(*lists([1, 2]), [7.0, 3.0]).ids.tolist() == [7, 3]


def test_flat_arrays_come_back_per_client_in_their_order_and_names_are_sorted():
    shards = Shards.from_flat(np.arange(5.0), np.arange(5), ["b", "a", "c", "a", "b"])
    assert shards.ids.tolist() == ["a", "b", "c"]
    for part in zip(*shards, strict=True):
        assert [own.tolist() for own in part] == [[1, 3], [0, 4], [2]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_any_sizes_survive_both_constructors(sizes, seed):
    xs, ys = lists(sizes, seed=seed)
    by_list = Shards.from_lists(xs, ys, classes=10)
    assert_holds(by_list, xs, ys)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    by_flat = Shards.from_flat(np.concatenate(xs), np.concatenate(ys), owner, classes=10)
    assert_same(by_flat, by_list)


@pytest.mark.parametrize(
    "given_, kept",
    [
        ("float64", "float32"),
        ("float32", "float32"),
        ("float16", "float32"),
        ("int64", "int32"),
        ("uint64", "int32"),
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("int16", "int16"),
    ],
)
def test_numbers_are_narrowed_to_32_bits_and_small_ones_kept(given_, kept):
    values = np.array([[0, 1], [1, 0]], given_)
    shards = Shards.from_lists([values], [values[:, 0]])
    assert shards.spec.x_dtype == shards.spec.y_dtype == kept
    assert shards.buckets[0].x.dtype == shards.buckets[0].y.dtype == kept
    np.testing.assert_array_equal(shards.client(0)[0], values)


@pytest.mark.parametrize("flat", [False, True])
def test_yes_and_no_are_the_classes_1_and_0(flat):
    x, y = np.array([[True], [False]]), np.array([True, False])
    shards = Shards.from_flat(x, y, [3, 3]) if flat else Shards.from_lists([x], [y])
    assert shards.spec == Spec((1,), "bool", (), "int32", classes=2)
    assert shards.client(0)[1].tolist() == [1, 0]


@pytest.mark.parametrize("ids", [[1.0, np.nan], [1.5, 2.5], ["a", None], [np.inf, 1.0], ["a", np.nan]])
def test_ids_that_are_missing_or_fractions_are_refused(ids):
    with pytest.raises(DataError, match=r"client number \d has the id .*: give whole numbers or text, none"):
        Shards.from_lists(*lists([1, 2]), np.array(ids, object) if "a" in ids else ids)


@pytest.mark.parametrize("shape", [(3, 0), (3, 2, 0)])
def test_features_without_a_number_are_refused(shape):
    with pytest.raises(DataError, match=r"features of shape .*0\] hold no number"):
        Shards.from_lists([np.zeros(shape)], [np.zeros(3)])
    with pytest.raises(DataError, match=r"features of shape .*0\] hold no number"):
        Shards.from_flat(np.zeros(shape), np.zeros(3), np.zeros(3, int))


def test_the_spec_describes_one_example():
    shards = Shards.from_lists([np.zeros((3, 4, 5))], [np.array([0, 6, 2])])
    assert shards.spec == Spec((4, 5), "float32", (), "int32", classes=7)
    assert shards.spec.example().shape == (1, 4, 5) and shards.spec.example().dtype == np.float32
    assert Shards.from_lists([np.zeros(3)], [np.zeros((3, 2))]).spec == Spec(
        (), "float32", (2,), "float32", None
    )
    assert Shards.from_lists(*lists(), classes=26).spec.classes == 26  # more than are seen


def test_images_stay_one_byte_a_pixel_and_are_seen_scaled(tmp_path):
    pixels, labels = np.array([[0, 255], [51, 102]], np.uint8), np.array([0, 1])
    given = Shards.from_flat(pixels, labels, [0, 0], scale=1 / 255, folder=tmp_path)
    for shards in (given, Shards.open(tmp_path), given[[0]]):
        assert shards.client(0)[0].dtype == np.uint8 and shards.spec.scale == 1 / 255
        np.testing.assert_allclose(shards.spec.seen(shards.client(0)[0]), [[0, 1], [0.2, 0.4]], rtol=1e-6)
    assert given.spec.example().dtype == np.float32
    # how a client stores them is its own matter
    floats = Shards.from_lists([pixels / 255], [labels])
    assert floats.spec.fits(given.spec) and floats.spec.kind == given.spec.kind
    assert not Shards.from_lists([pixels], [labels]).spec.fits(given.spec)
    refuses("scale must be a positive number, not 0", Shards.from_lists, [pixels], [labels], scale=0)
    refuses("these are float32: leave it out", Shards.from_lists, [pixels / 255], [labels], scale=1 / 255)


# -- buckets -------------------------------------------------------------------------------------------------


def assert_bucketed(shards):
    for bucket in shards.buckets:
        assert bucket.sizes.max() < 2 * bucket.sizes.min()
        assert bucket.x.shape[:2] == bucket.y.shape[:2] == (len(bucket.sizes), bucket.sizes.max())
        assert bucket.capacity == bucket.sizes.max()
    members = np.concatenate([bucket.clients for bucket in shards.buckets])
    assert sorted(members.tolist()) == list(range(len(shards)))
    assert shards.stored_examples == sum(b.x.shape[0] * b.x.shape[1] for b in shards.buckets)
    assert shards.examples <= shards.stored_examples < 2 * shards.examples


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_less_than_half_of_what_is_stored_is_padding(sizes):
    with many_buckets:
        shards = tiny(sizes)
    assert_bucketed(shards)
    assert len(shards.buckets) <= 13


def test_a_heavy_tail_wastes_little_more():
    sizes = np.clip(np.random.default_rng(0).zipf(1.5, 2000) + 1, 2, 2000)
    assert sizes.min() == 2 and sizes.max() == 2000
    with many_buckets:
        assert_bucketed(tiny(sizes))
    numbers_per_example = 2
    shards = tiny(sizes)
    assert 1 < len(shards.buckets) < 10
    assert (shards.stored_examples - 2 * shards.examples) * numbers_per_example < PADDING


def test_buckets_are_one_where_that_pads_little():
    few = PADDING // 2 // 10  # clients with one example each, of two numbers
    assert len(tiny([1] * few + [11]).buckets) == 1
    assert len(tiny([1] * (few + 1) + [11]).buckets) == 2
    (bucket,) = tiny([3, 1, 11, 2]).buckets
    assert bucket.clients.tolist() == [0, 1, 2, 3] and bucket.sizes.tolist() == [3, 1, 11, 2]


@pytest.mark.parametrize("grade", range(1, 8))
@many_buckets
def test_sizes_share_a_bucket_up_to_a_power_of_two(grade):
    low, high = 2 ** (grade - 1) + 1, 2**grade
    assert len(tiny([low, high]).buckets) == 1
    assert len(tiny([high, high + 1]).buckets) == 2


def test_padding_repeats_the_clients_own_examples():
    shards = some([5, 8])
    (bucket,) = shards.buckets
    x, y = shards.client(0)
    np.testing.assert_array_equal(bucket.x[0], x[[0, 1, 2, 3, 4, 0, 1, 2]])
    np.testing.assert_array_equal(bucket.y[0], y[[0, 1, 2, 3, 4, 0, 1, 2]])


# -- selection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which, positions",
    [
        (slice(2, 5), [2, 3, 4]),
        (slice(None, None, -1), [7, 6, 5, 4, 3, 2, 1, 0]),
        (slice(6, 100), [6, 7]),
        ([5, 0, 7], [5, 0, 7]),
        (np.array([-1, 2]), [7, 2]),
        (3, [3]),
        (np.array(SIZES) > 4, [2, 3, 7]),
    ],
)
def test_selected_clients_come_in_the_order_asked_for(which, positions):
    shards = some()
    chosen = shards[which]
    assert_holds(chosen, *zip(*[shards.client(i) for i in positions], strict=True))
    assert chosen.ids.tolist() == [f"c{i}" for i in positions]
    assert chosen.spec == shards.spec


@given(st.lists(st.integers(1, 30), min_size=1, max_size=15), st.data())
@settings(max_examples=60, deadline=None)
def test_a_selection_is_bucketed_as_tightly_as_before(sizes, data):
    shards = some(sizes, classes=10)
    positions = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    chosen = shards[positions]
    assert_bucketed(chosen)
    assert_holds(chosen, *zip(*[shards.client(i) for i in positions], strict=True))
    assert_same(chosen[np.argsort(positions)], shards[sorted(positions)])


@pytest.mark.parametrize("seed", [None, 0, 5])
def test_a_split_holds_some_examples_of_each_client_out(seed):
    first, second = (shards := some()).split(0.3, seed)
    assert first.ids.tolist() == shards.ids.tolist()
    assert second.ids.tolist() == [f"c{i}" for i, n in enumerate(SIZES) if n > 1]
    assert [b.x.shape for b in first.buckets] == [b.x.shape for b in shards.buckets]
    for i, n in enumerate(SIZES):
        out = min(max(1, int(0.3 * n)), n - 1)
        assert first.sizes[i] == n - out
        x, y = first.client(i)
        if out:
            other = second.client(int(second.positions([f"c{i}"])[0]))
            x, y = np.concatenate([x, other[0]]), np.concatenate([y, other[1]])
        own = shards.client(i)
        order = np.lexsort(own[0].T), np.lexsort(x.T)
        if seed is None:
            np.testing.assert_array_equal(x, own[0])
        for a, b in zip(own, (x, y), strict=True):
            np.testing.assert_array_equal(a[order[0]], b[order[1]])


def test_a_split_is_the_same_whoever_else_is_there_and_another_for_another_seed():
    shards = some()
    for one, other in zip(shards.split(), shards[[7, 3, 2]].split(), strict=True):
        where = one.positions(["c7", "c3", "c2"])
        for i, at in enumerate(where):
            np.testing.assert_array_equal(one.client(at)[0], other.client(i)[0])
    drawn = {shards.split(seed=seed)[1].client(-1)[0].tobytes() for seed in range(4)}
    assert len(drawn) == 4
    each = [tiny([10] * 400).split(seed=seed)[1] for seed in range(2)]
    counts = np.bincount(np.concatenate([x for part in each for x, _ in part]), minlength=10)
    assert counts.sum() == 1600 and (abs(counts - 160) < 60).all()  # 5 deviations


def test_a_split_needs_two_examples_and_a_share():
    refuses("every client has one example only", tiny([1, 1]).split)
    for share in (0, 1, float("nan")):
        refuses("share must be between 0 and 1", tiny([3, 1]).split, share)


def test_positions_finds_ids_of_either_type():
    assert some().positions(["c3", "c0"]).tolist() == [3, 0]
    assert Shards.from_lists(*lists([1, 2])).positions(["1", 0]).tolist() == [1, 0]


@pytest.mark.parametrize(
    "which, sentence",
    [
        ([1, 2, 1], "a client was selected twice"),
        ([1, -7], "a client was selected twice"),
        ([], "no client was selected"),
        (slice(3, 3), "no client was selected"),
        (np.zeros(8, bool), "no client was selected"),
        ([8], "there are 8 clients"),
        (-9, "there are 8 clients"),
        (np.ones(7, bool), "there are 8 clients"),
        ("c3", "there are 8 clients"),
        ([[0, 1], [2, 3]], "a slice, a list of positions, or one boolean per client"),
        (None, "a slice, a list of positions, or one boolean per client"),
    ],
)
def test_impossible_selections_are_refused(which, sentence):
    refuses(sentence, some().__getitem__, which)
    refuses("there is no client 'stranger' among these 8 clients", some().positions, ["c1", "stranger"])


# -- disk ----------------------------------------------------------------------------------------------------


def assert_mapped(shards):
    assert all(isinstance(a, np.memmap) for b in shards.buckets for a in (b.x, b.y))


def test_saved_shards_are_mapped_when_opened(tmp_path):
    shards = some()
    shards.save(tmp_path / "a" / "b")
    opened = Shards.open(tmp_path / "a" / "b")
    assert_mapped(opened)
    assert_same(opened, shards)
    assert_same(opened[[4, 1]], shards[[4, 1]])


def test_constructors_can_keep_the_arrays_in_a_folder(tmp_path):
    xs, ys = lists()
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (len(owner), 2))
    x[:] = np.concatenate(xs)
    for name, shards in [
        ("lists", Shards.from_lists(xs, ys, folder=tmp_path / "lists")),
        ("flat", Shards.from_flat(x, np.concatenate(ys), owner, folder=str(tmp_path / "flat"))),
    ]:
        assert_mapped(shards)
        assert_same(shards, Shards.from_lists(xs, ys))
        assert_same(Shards.open(tmp_path / name), shards)


def test_a_folder_can_be_written_again(tmp_path):
    some([1, 2, 4, 8]).save(tmp_path)
    some([3, 3]).save(tmp_path)
    assert_same(Shards.open(tmp_path), some([3, 3]))


def test_mapped_shards_survive_being_saved_where_they_are(tmp_path):
    some().save(tmp_path)
    opened = Shards.open(tmp_path)
    opened.save(tmp_path)
    assert_same(opened, some())
    assert_same(Shards.open(tmp_path), some())


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*taken"):
        some().save(tmp_path / "taken")
    (tmp_path / "folder" / "0.x.npy").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot write .*0\.x\.npy"):
        some().save(tmp_path / "folder")


def remove(path, name):
    (path / name).unlink()


def cut(path, name):
    (path / name).write_bytes((path / name).read_bytes()[:-4])


def empty(path, name):
    (path / name).write_bytes(b"")


@pytest.mark.parametrize("damage", [remove, cut, empty])
@pytest.mark.parametrize("name", ["shards.json", "0.x.npy", "1.y.npy"])
def test_a_broken_folder_is_named(tmp_path, damage, name):
    some().save(tmp_path)
    damage(tmp_path, name)
    refuses(f"{tmp_path} is not a folder of shards", Shards.open, tmp_path)


@pytest.mark.parametrize("key", ["ids", "spec", "buckets"])
def test_a_broken_index_is_refused(tmp_path, key):
    some().save(tmp_path)
    index = json.loads((tmp_path / "shards.json").read_text())
    without = {name: value for name, value in index.items() if name != key}
    for broken in (*({**index, key: value} for value in (None, 3, {})), without):
        (tmp_path / "shards.json").write_text(json.dumps(broken))
        refuses("is not a folder of shards", Shards.open, tmp_path)


# -- bad input -----------------------------------------------------------------------------------------------

GOOD = np.ones((3, 2)), np.array([0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    "x, y, sentence",
    [
        (np.ones((0, 2)), np.ones(0), "client bob is empty"),
        ([[1, np.nan], [1, 1]], [1.0, 2.0], "client bob: features of example 0 contain nan"),
        ([[1, 1], [np.inf, 1]], [1.0, 2.0], "client bob: features of example 1 contain inf"),
        ([[1, 1], [1, -np.inf]], [1.0, 2.0], "client bob: features of example 1 contain -inf"),
        (np.ones((2, 2)), [1.0, np.nan], "client bob: targets of example 1 contain nan"),
        (
            np.ones((2, 3)),
            np.ones(2),
            "client bob: features of one example are float32[3] "
            "but those of client ann are float32[2]; they must agree",
        ),
        (np.ones(2), np.ones(2), "client bob: features of one example are float32[]"),
        (np.ones((2, 2)), np.ones((2, 1)), "client bob: targets of one example are float32[1]"),
        (np.ones((2, 2), int), np.ones(2), "client bob: features of one example are int32[2]"),
        (np.ones((2, 2)), np.ones(2, int), "client bob: targets of one example are int32[]"),
        ([["a", "b"]], [1.0], "client bob: features are <U1, not numbers"),
        (np.ones((1, 2)), [None], "client bob: targets are object, not numbers"),
        (np.ones((1, 2)), [1j], "client bob: targets are complex128, not numbers"),
        ([[1.0, 2.0], [3.0]], [1.0, 2.0], "client bob: features of its examples differ in shape"),
        (np.ones((3, 2)), np.ones(2), "client bob: features of shape (3, 2) and targets of shape (2,)"),
        (1.0, 1.0, "client bob: features of shape () and targets of shape ()"),
        (np.nan, np.ones(1), "client bob: features contain nan"),
        ([[2**31, 0]], [1.0], "client bob: features contain 2147483648, which does not fit in 32 bits"),
    ],
)
def test_bad_examples_name_the_client(x, y, sentence):
    refuses(sentence, Shards.from_lists, [GOOD[0], x], [GOOD[1], y], ["ann", "bob"])


def test_flat_values_are_checked_and_name_the_client():
    x = np.ones((4, 2))
    x[2, 1] = np.nan
    refuses("client b: features of example 1 contain nan", Shards.from_flat, x, np.ones(4), list("abba"))


@pytest.mark.parametrize(
    "labels, classes, sentence",
    [
        ([0, 3, 1], 3, "client bob: label 3 is outside the classes 0 to 2"),
        ([0, -2, 1], None, "client bob: label -2 is outside the classes 0 and up"),
        ([0, -1, 9], 3, "client bob: label -1 is outside the classes 0 to 2"),
        ([0, 1, 2**32], None, "client bob: targets contain 4294967296, which does not fit in 32 bits"),
    ],
)
def test_labels_out_of_range_name_the_client(labels, classes, sentence):
    x = np.ones((3, 2))
    refuses(sentence, Shards.from_lists, [x, x], [[0, 1, 2], labels], ["ann", "bob"], classes=classes)
    flat = np.concatenate([[0, 1, 2], labels])
    refuses(sentence, Shards.from_flat, np.ones((6, 2)), flat, ["ann"] * 3 + ["bob"] * 3, classes=classes)


@pytest.mark.parametrize(
    "x, y, ids, sentence",
    [
        ([], [], None, "there are no clients"),
        ([GOOD[0]], [], None, "there are features for 1 clients and targets for 0"),
        ([GOOD[0]], [GOOD[1]], ["a", "b"], "there are 1 clients and 2 ids"),
        ([GOOD[0]] * 2, [GOOD[1]] * 2, ["a"], "there are 2 clients and 1 ids"),
        ([GOOD[0]] * 3, [GOOD[1]] * 3, ["a", "b", "a"], "client id 'a' is given twice"),
        ([GOOD[0]] * 2, [GOOD[1]] * 2, np.array([7, "7"], object), "client id '7' is given twice"),
    ],
)
def test_clients_and_ids_must_match(x, y, ids, sentence):
    refuses(sentence, Shards.from_lists, x, y, ids)


def test_classes_make_sense_for_labels_only():
    refuses(
        "classes=3 is given but the targets are float32", Shards.from_lists, [GOOD[0]], [GOOD[1]], classes=3
    )


@pytest.mark.parametrize(
    "x, y, client, sentence",
    [
        (np.ones((3, 2)), np.ones(2), [0, 1, 1], "their shapes are (3, 2), (2,) and (3,)"),
        (np.ones((3, 2)), np.ones(3), [0, 1], "x, y and client must be equally long"),
        (np.ones((3, 2)), np.ones(3), [[0], [1], [1]], "client one-dimensional"),
        (np.ones((0, 2)), np.ones(0), [], "there are no examples"),
        (np.ones((2, 2)), np.ones(2), np.array([1, "a"], object), "make them all text"),
    ],
)
def test_flat_arrays_must_match(x, y, client, sentence):
    refuses(sentence, Shards.from_flat, x, y, client)
