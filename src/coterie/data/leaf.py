"""The JSON files that LEAF's `preprocess.sh` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import sources
from coterie.data.people import Pair, Person
from coterie.data.sources import Form
from coterie.errors import DataError

Compact = Callable[[Any, Any], Pair]
Split = Callable[[str, Pair], Person]


def forms(compact: Compact, split: Split) -> tuple[Form[dict[str, Person]], ...]:
    """Folders as LEAF leaves them: split into `train` and `test`, or not yet split.

    `compact` makes arrays of the lists of one user's `x` and `y`; `split` holds out some of the examples of a
    user of whom LEAF has not.
    """

    def parted(train: Sequence[Path], test: Sequence[Path]) -> dict[str, Person]:
        trained, tested = _users(train, compact), _users(test, compact)
        both = {name: Person(trained[name], tested[name]) for name in trained.keys() & tested.keys()}
        either = {name: split(name, pair) for name, pair in (trained | tested).items() if name not in both}
        return both | either

    def whole(files: Sequence[Path]) -> dict[str, Person]:
        return {name: split(name, pair) for name, pair in _users(files, compact).items()}

    return (
        Form("LEAF's JSON files", ("train/*.json", "test/*.json"), parted),
        Form("LEAF's JSON files before they are split", ("all_data/*.json",), whole),
    )


def _users(files: Sequence[Path], compact: Compact) -> dict[str, Pair]:
    """What every user has."""
    users: dict[str, Pair] = {}

    # lists of numbers take many times the room of arrays: only those of one user exist at a time
    def shrunk(found: dict[str, Any]) -> Any:
        return compact(found["x"], found["y"]) if found.keys() >= {"x", "y"} else found

    for path in files:
        with sources.reading(path, "JSON of LEAF"):
            found = json.loads(sources.content(path, "JSON of LEAF"), object_hook=shrunk)
            if not isinstance(found, dict) or not isinstance(found.get("user_data"), dict):
                raise DataError(f"{path} is not JSON of LEAF: it has no user_data.")
            for user, pair in found["user_data"].items():
                if not isinstance(pair, tuple):
                    raise DataError(f"{path}: user {user!r} lacks x or y.")
                if len(pair[1]):
                    both = zip(users[user], pair, strict=True) if user in users else ()
                    users[user] = tuple(map(np.concatenate, both)) or pair  # type: ignore[assignment]
    return users
