"""Weight sharing: arrays of a model that all clusters have in common (IFCA paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from coterie.errors import SettingError
from coterie.models import stacked

ALL_BUT_LAST = "all but last"
Share = str | tuple[str, ...] | Callable[[str], bool]


def shared_names(share: Share | None, model: PyTree) -> frozenset[str]:
    """The names of the arrays that are shared, such as `layers.0.weight`."""
    if share is None:
        return frozenset()
    names = list(stacked.named(model))
    chosen = {name for name in names if _predicate(share, names)(name)}
    if not chosen or len(chosen) == len(names):
        raise SettingError(
            f"share must leave some arrays to be shared and some to be clustered, but {share!r} takes "
            f"{'none' if not chosen else 'all'} of {', '.join(names)}."
        )
    return frozenset(chosen)


def check(share: Any) -> None:
    """Refuse what does not say which arrays are shared."""
    names = isinstance(share, tuple) and share and all(isinstance(name, str) for name in share)
    if not (share is None or share == ALL_BUT_LAST or names or callable(share)):
        raise SettingError(
            f"share must be {ALL_BUT_LAST!r}, names of layers such as ['layers.0'], or a function of an "
            f"array's name, not {share!r}."
        )


def _predicate(share: Share, names: list[str]) -> Callable[[str], bool]:
    if callable(share):
        return share
    if share == ALL_BUT_LAST:
        last = _layer(names[-1])
        return lambda name: _layer(name) != last
    return lambda name: any(name == given or name.startswith(f"{given}.") for given in share)


def _layer(name: str) -> str:
    """`layers.1` of `layers.1.weight`."""
    return name.rpartition(".")[0] or name
