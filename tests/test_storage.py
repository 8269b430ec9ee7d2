"""Files that are either whole or not there."""

import errno
import os
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from coterie import storage
from coterie.errors import RunFolderError, StorageError


def disk_is_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_write_replaces_the_whole_file_and_makes_its_folder(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    storage.write_bytes(path, b"a long first content")
    storage.write_bytes(path, b"short")
    assert path.read_bytes() == b"short"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "checkpoint"
    storage.write_bytes(path, b"old")
    monkeypatch.setattr(os, call, disk_is_full)
    with pytest.raises(StorageError) as raised:
        storage.write_bytes(path, b"new")
    message = str(raised.value)
    assert "No space left on device" in message and str(path) in message
    assert "\n" not in message
    assert isinstance(raised.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    storage.write_bytes(path, b"old")
    seen, replace = [], os.replace

    def look_then_replace(source, target):
        with open(source, "rb") as file:
            seen.append((path.read_bytes(), file.read()))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look_then_replace)
    storage.write_bytes(path, b"new")
    assert seen == [(b"old", b"new")]


def test_a_write_is_on_the_disk_before_it_replaces_the_old_file(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("replace"), replace(*a)))
    storage.write_text(tmp_path / "file", "content")
    assert calls == ["fsync", "replace"]


def test_what_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*taken/file: "):
        storage.write_text(tmp_path / "taken" / "file", "")
    with pytest.raises(ValueError, match="mine"), storage.writing(tmp_path):
        raise ValueError("mine")  # but what is not the disk's is passed on
    with pytest.raises(StorageError, match="something odd"), storage.writing(tmp_path):
        raise OSError("something odd")


def test_json_round_trip(tmp_path):
    content = {"a": [1, 2.5, None], "b": {"c": "é"}}
    storage.write_json(tmp_path / "x.json", content)
    assert storage.read_json(tmp_path / "x.json") == content


def test_arrays_round_trip_with_shape_and_dtype(tmp_path):
    arrays = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "ints": np.array([-1, 2**31 - 1], np.int32),
        "words": np.array([2**32 - 1], np.uint32),
        "mask": np.array([True, False]),
        "scalar": np.float32(1.5),
        "empty": np.zeros((0, 4), np.int64),
    }
    storage.write_arrays(tmp_path / "a.safetensors", arrays, {"note": "hello"})
    back = storage.read_arrays(tmp_path / "a.safetensors")
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", None])
def test_json_that_cannot_be_read_names_the_file(tmp_path, content):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFolderError, match=re.escape(f"{path} cannot be read: ")):
        storage.read_json(path)


@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b[:4], lambda b: b"", lambda b: b"\xff" * 64])
def test_damaged_arrays_name_the_file(tmp_path, damage):
    path = tmp_path / "models.safetensors"
    storage.write_arrays(path, {"a": np.ones(5)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunFolderError, match="nowhere"):
        storage.read_arrays(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=re.escape(f"{path} cannot be read: ")):
        storage.read_arrays(path)


def test_arrays_that_are_not_what_was_written_are_refused(tmp_path):
    path = tmp_path / "arrays"
    storage.write_arrays(path, {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros(0, np.int32)}, {"of": "me"})
    whole = path.read_bytes()
    np.testing.assert_array_equal(storage.read_arrays(path)["a"], np.arange(6.0).reshape(2, 3))
    for place in (whole.index(b'"me"') + 1, len(whole) - 1):  # a word, and a number
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunFolderError, match=r"arrays is damaged: it does not hold what was written"):
            storage.read_arrays(path)


def test_arrays_of_others_have_no_digest(tmp_path):
    save_file({"a": np.ones(2)}, tmp_path / "arrays")
    np.testing.assert_array_equal(storage.read_arrays(tmp_path / "arrays")["a"], np.ones(2))
