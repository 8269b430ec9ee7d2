"""Shakespeare: the next character of what a role says, every role of every play a client."""

from __future__ import annotations

import io
import re
import zipfile
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import leaf, parquet, sources
from coterie.data.federated import Federated
from coterie.data.people import Pair, Person, drawn
from coterie.data.sources import Form, Remote, Source
from coterie.errors import DataError

# the order is LEAF's, whose models number characters by it
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
ROLES = 1129  # that LEAF counts
LAST_LINE = 124_195  # of the plays in the 1994 edition, not counting the first line; poems follow
Roles = dict[str, Person]


def shakespeare(
    clients: int = 50, unseen: int = 0, seed: int = 0, folder: str | Path | None = None
) -> Federated:
    """What roles of Shakespeare's plays say, to predict the next character: LEAF's Shakespeare.

    An example is 80 characters, as numbers from 0 to 79, and its label is the character after them. Test
    examples are the last tenth in time, and share one character with training examples, no more. The SR-FCA
    paper draws 50 roles, as here. `truth` is None.

    Parameters
    ----------
    clients, unseen
        Roles that take part in training, and that do not, drawn at random from those that say enough to have
        a test example.
    seed
        Who is drawn.
    folder
        Where the files are, in any form that `docs/data.md` names; downloaded into the cache when not given.
    """
    return drawn(
        SHAKESPEARE.read(folder),
        "roles with a test example",
        "Shakespeare",
        clients=clients,
        unseen=unseen,
        seed=seed,
        classes=len(CHARACTERS),
    )


# -- from the text, as LEAF's preprocess_shakespeare.py does it ----------------------------------------------

SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")  # "  HAMLET. A little more than kin ..."
MORE = re.compile(r"    (.*)")
# one play is not indented
ERRORS = "THE COMEDY OF ERRORS"
SPEECH_IN_ERRORS = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
MORE_IN_ERRORS = re.compile(r"(.*)")


def speeches(lines: Iterable[str]) -> dict[str, list[str]]:
    """The lines that each role of each play says, by "PLAY_ROLE", in order.

    What LEAF does is matched, also where a reader of the text would do otherwise, so that the roles and their
    examples are the same: the first work, the sonnets, is no play; a play begins two to seven lines after its
    title, where its author is named; whatever is indented like a speech is one; the case of a name does not
    count; in The Comedy of Errors, which is not indented, whatever looks like a name and a full stop begins a
    speech, but for acts; works of less than two roles, and roles of less than three lines, are left out.
    """
    plays: list[tuple[str, dict[str, list[str]]]] = []
    before: deque[str] = deque(maxlen=7)
    works, errors, speaking = 0, False, ""
    for line in islice(lines, 1, LAST_LINE + 2):
        if "by William Shakespeare" in line:
            works += 1
            title = next((above for above in reversed(list(before)[:-1]) if above.strip()), "").strip()
            errors, speaking = title == ERRORS, ""
            if works > 1:
                plays.append((title, defaultdict(list)))
        elif plays:
            roles = plays[-1][1]
            if match := (SPEECH_IN_ERRORS if errors else SPEECH).match(line):
                speaking = match[1].upper()
                if errors and speaking.startswith("ACT "):
                    speaking = ""
                else:
                    roles[speaking].append(match[2])
            elif speaking and (match := (MORE_IN_ERRORS if errors else MORE).match(line)):
                if errors and match[1].startswith("<"):
                    speaking = ""
                else:
                    roles[speaking].append(match[1])
        before.append(line)
    said: defaultdict[str, list[str]] = defaultdict(list)
    for title, roles in plays:
        if len(roles) > 1:
            for role, own in roles.items():
                if len(own) > 2:
                    said[re.sub(r"\W+", "_", f"{title}_{role}")] += own
    return said


def examples(said: Mapping[str, Sequence[str]]) -> dict[str, Pair]:
    """The examples of every role that says enough to have any, of the lines that it says."""
    # a line ends with a blank, and several blanks are one
    texts = {role: re.sub(" {2,}", " ", " ".join(own) + " ") for role, own in said.items()}
    return {role: _windows(_numbers(text)) for role, text in texts.items() if len(text) > WINDOW}


def _from_text(content: bytes, path: Path) -> Roles:
    with sources.reading(path, "the text of Shakespeare"):
        roles = examples(speeches(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig")))
    if len(roles) != ROLES:
        raise DataError(
            f"{path} has {len(roles):,} roles that say more than {WINDOW} characters, not {ROLES:,}: it is "
            "truncated or another edition than that of 1994; leave folder out to have that downloaded."
        )
    return {role: _in_time(role, pair) for role, pair in roles.items()}


def _numbers(text: str) -> np.ndarray:
    """The characters as LEAF numbers them."""
    codes = text.encode("ascii", "replace").translate(NUMBERS)
    if not text.isascii() or UNKNOWN in codes:
        odd = min(set(text).difference(CHARACTERS))
        raise DataError(f"{odd!r} is none of the {len(CHARACTERS)} characters of LEAF's Shakespeare.")
    return np.frombuffer(codes, np.uint8)


UNKNOWN = 255
NUMBERS = bytes(CHARACTERS.find(chr(code)) % 256 for code in range(256))


def _windows(numbers: np.ndarray) -> Pair:
    """Every window of a text, which are views of it and take no room, and the characters after them."""
    return np.lib.stride_tricks.sliding_window_view(numbers[:-1], WINDOW), numbers[WINDOW:]


def _in_time(_: str, pair: Pair) -> Person:
    """As LEAF splits them: the first nine tenths to train on, and what comes a window later to test on."""
    x, y = pair
    first = max(1, int(0.9 * len(y)))
    second = first + WINDOW - 1
    return Person((x[:first], y[:first]), (x[second:], y[second:]))


def _text(files: list[Path]) -> Roles:
    return _from_text(sources.content(files[0], "the text of Shakespeare"), files[0])


def _zipped(files: list[Path]) -> Roles:
    (path,) = files
    with sources.reading(path, "the archive of Project Gutenberg"), zipfile.ZipFile(path) as archive:
        text = next(name for name in archive.namelist() if name.lower().endswith(".txt"))
        content = archive.read(text)
    return _from_text(content, path)


# -- prepared by others --------------------------------------------------------------------------------------


def _compact(x: Any, y: Any) -> Pair:
    return _numbers("".join(x)).reshape(-1, WINDOW), _numbers("".join(y))


def _from_parquet(files: list[Path]) -> Roles:
    own: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for role, window, following in parquet.rows(files, ("character_id",), ("x",), ("y",)):
        own[role][0].append(window)
        own[role][1].append(following)
    with sources.reading(files[0], "Parquet of Shakespeare"):
        return {role: _in_time(role, _compact(*pair)) for role, pair in own.items()}


GUTENBERG = "https://www.gutenberg.org/files/100/old/"
SHAKESPEARE = Source(
    "Shakespeare",
    ("", "shakespeare", "shakespeare/data"),
    (
        Form("the text of 1994, zipped", ("1994-01-100.zip",), _zipped),
        Form("the text of 1994", ("*100.txt",), _text),
        Form("the text where LEAF puts it", ("raw_data/raw_data.txt",), _text),
        *leaf.forms(_compact, _in_time),
        Form("Parquet files", ("*.parquet",), _from_parquet),
    ),
    # no checksum of it is published; a damaged one is noticed when it is unpacked, and by its number of roles
    (Remote("1994-01-100.zip", (f"{GUTENBERG}1994-01-100.zip", f"{GUTENBERG}old/1994-01-100.zip")),),
)
