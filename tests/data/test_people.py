"""FEMNIST and Shakespeare from small files: the forms they come in, and who is drawn."""

import io
import json
import re
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.data import femnist, shakespeare
from coterie.data.femnist import FEMNIST
from coterie.data.shakespeare import CHARACTERS, SHAKESPEARE, speeches
from coterie.errors import CoterieError, DataError

RNG = np.random.default_rng(0)
WRITERS = {
    f"f{i:04d}_00": (RNG.integers(0, 256, (n, 28, 28), np.uint8), RNG.integers(0, 62, n, np.uint8))
    for i, n in enumerate([30, 12, 9, 20, 40, 15])
}


def leaf(users):
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
        }
    )


def written(part):
    """The writers' examples as LEAF writes them: pixels from 0 to 1."""
    return {
        name: ((x[part].reshape(-1, 784) / 255).round(8).tolist(), y[part].tolist())
        for name, (x, y) in WRITERS.items()
    }


def femnist_split(folder):
    for which, part in (("train", slice(4, None)), ("test", slice(4))):
        (folder / which).mkdir(parents=True)
        users = written(part)
        for i, names in enumerate((list(users)[:2], list(users)[2:])):
            content = leaf({name: users[name] for name in names})
            (folder / which / f"all_data_{i}_niid_1_keep_0_{which}_9.json").write_text(content)


def femnist_whole(folder):
    (folder / "femnist" / "data" / "all_data").mkdir(parents=True)
    (folder / "femnist" / "data" / "all_data" / "all_data_0.json").write_text(leaf(written(slice(None))))


def femnist_npz(folder):
    sizes = [len(y) for _, y in WRITERS.values()]
    np.savez(
        folder / "femnist.npz",
        images=np.concatenate([x for x, _ in WRITERS.values()]),
        labels=np.concatenate([y for _, y in WRITERS.values()]),
        writer=np.repeat(np.arange(len(sizes)), sizes).astype(np.uint16),
        split=np.concatenate([np.arange(n) < 4 for n in sizes]).astype(np.uint8),
        writer_ids=list(WRITERS),
    )


def femnist_parquet(folder):
    rows = []
    for name, (x, y) in WRITERS.items():
        for image, label in zip(x, y, strict=True):
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            rows.append({"image": {"bytes": file.getvalue()}, "writer_id": name, "character": int(label)})
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")


@pytest.mark.parametrize("write", [femnist_split, femnist_whole, femnist_npz, femnist_parquet])
def test_every_form_of_femnist_gives_the_same_writers(tmp_path, write):
    write(tmp_path)
    found = FEMNIST.read(tmp_path)
    assert sorted(found) == sorted(WRITERS)
    for name, (x, y) in WRITERS.items():
        held = {
            (image.tobytes(), int(label)) for part in found[name] for image, label in zip(*part, strict=True)
        }
        assert held == {(image.tobytes(), int(label)) for image, label in zip(x, y, strict=True)}
        if write in (femnist_split, femnist_npz):
            np.testing.assert_array_equal(found[name].test[0], x[:4])
        else:  # nine tenths, rounded down
            assert len(found[name].train[1]) == int(0.9 * len(y))
        assert found[name].train[0].dtype == found[name].train[1].dtype == np.uint8


def test_writers_are_drawn_at_random_and_unseen_ones_hold_all_they_have(tmp_path):
    femnist_npz(tmp_path)
    data = femnist(clients=3, unseen=2, at_least=12, folder=tmp_path)
    assert len(set(data.train.ids) | set(data.unseen.ids)) == 5 and "f0002_00" not in data.train.ids
    assert data.train.spec.classes == 62 and data.train.spec.scale == 1 / 255 and data.truth is None
    assert data.test.sizes.tolist() == [4, 4, 4]
    for name, size in zip(data.unseen.ids, data.unseen.sizes, strict=True):
        assert size == len(WRITERS[name][1])
    draws = {tuple(femnist(3, seed=s, folder=tmp_path).train.ids.tolist()) for s in (0, 0, 1, 2, 3)}
    assert 1 < len(draws) < 5


# -- Shakespeare ---------------------------------------------------------------------------------------------

LONG = "if music be the food of love play on give me excess of it that surfeiting the appetite may sicken"
TEXT = f"""The Project Gutenberg Etext
  NOBODY. Before any work.

1609

THE SONNETS

by William Shakespeare

  NOBODY. A sonnet is no play.

1603

ALL'S WELL

by William Shakespeare

  LORD. First line
    goes on   here
Dropped: not indented.
    and is dropped no more.
  Lord. The same role.
  COUNTESS. One
    Two
  CLOWN. {LONG}
    {LONG}
    {LONG}

1595


THE COMEDY OF ERRORS


by William Shakespeare


ACT I. SCENE 1
Not said by anybody, as no role has begun
DUKE. {LONG}
{LONG}
<<THIS ETEXT IS COPYRIGHT>>
Nor this
ACT II. SCENE 2
Nor that
DUKE. {LONG}
MERCHANT. Too few
<<THIS ETEXT IS COPYRIGHT>>

1600

A LOVER'S COMPLAINT

by William Shakespeare

    From off a hill
"""


SAID = {
    "ALL_S_WELL_LORD": "First line goes on here and is dropped no more. The same role. ",
    "ALL_S_WELL_CLOWN": f"{LONG} {LONG} {LONG} ",
    "THE_COMEDY_OF_ERRORS_DUKE": f"{LONG} {LONG} {LONG} ",
}
LONG_ENOUGH = [role for role, text in SAID.items() if len(text) > 80]


def test_roles_say_what_leaf_says_they_do():
    said = speeches(io.StringIO(TEXT))
    texts = {role: re.sub(" {2,}", " ", " ".join(own) + " ") for role, own in said.items()}
    assert texts == SAID


def samples(text):
    """LEAF's examples of a text, one by one."""
    return [(text[i : i + 80], text[i + 80]) for i in range(len(text) - 80)]


def as_text(pair):
    return [("".join(CHARACTERS[c] for c in x), CHARACTERS[label]) for x, label in zip(*pair, strict=True)]


def play_text(folder):
    (folder / "pg100.txt").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())


def play_zip(folder):
    with zipfile.ZipFile(folder / "1994-01-100.zip", "w") as archive:
        archive.writestr("100.txt", TEXT)


def play_leaf(folder):
    (folder / "all_data").mkdir()
    users = {role: tuple(zip(*samples(SAID[role]), strict=True)) for role in LONG_ENOUGH}
    (folder / "all_data" / "all_data.json").write_text(leaf(users))


def play_parquet(folder):
    rows = [{"character_id": role, "x": x, "y": y} for role in LONG_ENOUGH for x, y in samples(SAID[role])]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000.parquet")


@pytest.fixture
def two_roles(monkeypatch):
    monkeypatch.setattr(sys.modules["coterie.data.shakespeare"], "ROLES", len(LONG_ENOUGH))


@pytest.mark.parametrize("write", [play_text, play_zip, play_leaf, play_parquet])
def test_every_form_of_shakespeare_gives_the_same_examples(tmp_path, two_roles, write):
    write(tmp_path)
    found = SHAKESPEARE.read(tmp_path)
    assert sorted(found) == sorted(LONG_ENOUGH)
    for role, (train, test) in found.items():
        wanted = samples(SAID[role])
        first = int(0.9 * len(wanted))
        assert as_text(train) == wanted[:first]
        assert as_text(test) == wanted[first + 79 :]  # that begin after the last training label
        assert train[0].dtype == train[1].dtype == np.uint8


def test_shakespeare_in_a_simulation(tmp_path, two_roles, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TEXT", TEXT.replace(LONG, LONG * 4))
    play_text(tmp_path)
    data = shakespeare(clients=1, unseen=1, folder=tmp_path)
    assert sorted([*data.train.ids, *data.unseen.ids]) == sorted(LONG_ENOUGH)
    assert data.train.spec.x_shape == (80,) and data.train.spec.classes == 80 and data.truth is None
    assert data.train.examples + data.test.examples + 79 == data.unseen.examples + 79


def of_writers(folder, **changes):
    """femnist.npz with other arrays."""
    femnist_npz(folder)
    with np.load(folder / "femnist.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(folder / "femnist.npz", **{k: v for k, v in (arrays | changes).items() if v is not None})


def put(name, content):
    def write(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return write


@pytest.mark.parametrize(
    "make, write, sentence",
    [
        (femnist, lambda f: None, r"does not hold FEMNIST in a known form: .*; LEAF makes it of NIST's"),
        (femnist, put("femnist.npz", b"PK"), "femnist.npz cannot be read as femnist.npz: "),
        (femnist, lambda f: of_writers(f, split=None), "split is not a file in the archive"),
        (femnist, put("all_data/a.json", b"[1"), "a.json cannot be read as JSON of LEAF: Expecting"),
        (femnist, put("all_data/a.json", b"[1]"), "a.json is not JSON of LEAF: it has no user_data"),
        (femnist, put("all_data/a.json", b'{"user_data": {"a": {"x": []}}}'), "user 'a' lacks x or y"),
        (
            femnist,
            put("all_data/a.json", leaf({"a": ([[7] * 784], [1])}).encode()),
            "pixels are not from",
        ),
        (femnist, put("all_data/a.json", leaf({"a": ([[0] * 783], [1])}).encode()), "cannot reshape"),
        (femnist, femnist_npz, "50 clients and 0 unseen ones are more than the 5 writers of 10 examples or"),
        (
            lambda folder: femnist(2, at_least=1, folder=folder),
            femnist_npz,
            "at_least must be a whole",
        ),
        (lambda folder: femnist(0, folder=folder), femnist_npz, "clients must be a whole number from 1 up"),
        (
            shakespeare,
            play_text,
            "has 2 roles that say more than 80 characters, not 1,129: it is",
        ),
        (shakespeare, put("pg100.txt.gz", b"\x1f\x8b\x08"), "pg100.txt.gz cannot be read as the text"),
        (
            shakespeare,
            put("pg100.txt", b"\xff\xfe"),
            "pg100.txt cannot be read as the text of Shakespeare",
        ),
        (shakespeare, put("1994-01-100.zip", b"PK"), "cannot be read as the archive of Project Gutenberg"),
        (shakespeare, put("all_data/a.json", leaf({"a": (["x" * 79], ["y"])}).encode()), "cannot reshape"),
        (
            shakespeare,
            put("all_data/a.json", leaf({"a": (["é" * 80], ["y"])}).encode()),
            "'é' is none of",
        ),
        (
            shakespeare,
            put("all_data/a.json", leaf({"a": (["#" * 80], ["y"])}).encode()),
            "'#' is none of",
        ),
        (shakespeare, lambda f: None, "leave folder out to have it downloaded"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path, make, write, sentence):
    write(tmp_path)
    with pytest.raises(CoterieError, match=sentence) as caught:
        make(folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_femnist_without_a_folder():
    with pytest.raises(DataError, match=r"FEMNIST needs folder.*clone github.com/TalwalkarLab/leaf, run"):
        femnist()
