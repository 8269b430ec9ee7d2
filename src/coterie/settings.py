"""The settings of parts: checked against their types where a part is made, in Python or from a file."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from coterie.errors import SettingError

PLAIN = (bool, int, float, str, NoneType, list, tuple, dict, set)
LARGEST = 2**31 - 1  # of whole numbers: what counts rounds, clients or widths in a compiled program


class Settings:
    """A dataclass whose settings are plain values of their declared types.

    NumPy's numbers become Python's, and lists become tuples, so that settings can be compared and written
    down. What is no plain value, or declared as none, is left as it is: arrays, functions, other parts.
    """

    def __post_init__(self) -> None:
        for name, (hint, kind) in _declared(cast(Hashable, type(self))).items():
            given = getattr(self, name)
            value = _plain(given)
            if not isinstance(value, PLAIN):
                continue
            try:
                value = kind.validate_python(value, strict=True)
            except ValidationError:
                raise SettingError(f"{name} must be {' or '.join(_words(hint))}, not {given!r}.") from None
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and math.isnan(number):
                    raise SettingError(f"{name} must be {' or '.join(_words(hint))}, not {given!r}.")
                if type(number) is int and abs(number) > LARGEST:
                    raise SettingError(f"{name} must be at most {LARGEST:,}, not {given!r}.")
            if value is not given:
                object.__setattr__(self, name, value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


@cache
def _declared(part: Any) -> dict[str, tuple[Any, TypeAdapter[Any]]]:
    """The settings of a part that are plain values, what they may be, and what tells whether they are."""
    try:
        hints = get_type_hints(part)
    except (NameError, TypeError):  # a part of the user's own, with types that only a type checker sees
        return {}
    return {
        field.name: (hints[field.name], TypeAdapter(hints[field.name]))
        for field in dataclasses.fields(part)
        if field.init and _is_plain(hints[field.name])
    }


def _is_plain(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Literal, Callable):
        return True
    if origin in (Union, UnionType, tuple, Sequence):
        return all(_is_plain(part) for part in get_args(hint) if part is not ...)
    return hint in WORDS


WORDS = {
    bool: ("True or False",),
    int: ("a whole number",),
    float: ("a number",),
    str: ("text",),
    NoneType: (),
}


SEVERAL = {"a whole number": "whole numbers", "a number": "numbers", "text": "names"}


def _words(hint: Any) -> list[str]:
    """What a setting may be, in words, but for None, which says that it is not given."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [repr(value) for value in parts if value is not None]
    if origin is Callable:
        return ["a function"]
    if origin in (tuple, Sequence):
        return [f"a list of {' or '.join(SEVERAL.get(word, word) for word in _words(parts[0]))}"]
    if origin in (Union, UnionType):
        words = [word for part in parts for word in _words(part)]
        return [word for word in words if word != "a whole number" or "a number" not in words]
    return list(WORDS[hint])
