"""What an experiment is: points to compute one by one, and what to make of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:  # Matplotlib takes a second to import, and only pictures need it
    from matplotlib.figure import Figure as Picture

Scale = Literal["smoke", "small", "full", "paper"]
SCALES: dict[str, str] = {
    "smoke": "seconds: does it run",
    "small": "minutes on two cores: a smaller problem of the same shape",
    "paper": "the paper's own numbers: for a GPU",
}
PRESETS: dict[str, str] = {
    "text": "as the paper's text says",
    "authors": "as the authors' released code does",
    "fair": "equal budgets, every method tuned alike on validation data",
}

Arrays = dict[str, np.ndarray]
Row = dict[str, Any]  # a row of the table: numbers and words by column


@dataclass(frozen=True)
class Point:
    """A part of an experiment that is computed in one go, and kept as soon as it is there."""

    name: str  # also of the file that keeps it
    values: Mapping[str, Any]  # what this point is, by name: the settings that differ between points


@dataclass(frozen=True)
class Finding:
    """A sentence of the paper beside what was found."""

    paper: str
    found: str
    agrees: bool | None  # None: the results do not decide it


class Experiment(ABC):
    """A figure or table at one scale and in one reading; a dataclass whose fields decide all results."""

    in_parts = False  # whether some of the points make a result, too

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """What is to be computed, in order."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """In how many steps, all about equally long, a point proceeds."""

    @abstractmethod
    def compute(
        self, point: Point, seed: int, done: Callable[[int], None], known: Mapping[str, Arrays]
    ) -> Arrays:
        """The result of a point; `done` is told how many steps are behind us.

        `known` are the results of the points before it, by name.
        """

    @abstractmethod
    def headline(self, point: Point, result: Arrays) -> str:
        """A point's result in a few words."""

    @abstractmethod
    def table(self, results: Mapping[str, Arrays]) -> list[Row]:
        """All results, by the names of the points, as the rows of a table."""

    @abstractmethod
    def overview(self, results: Mapping[str, Arrays]) -> list[Row]:
        """The main numbers, in so few rows and columns that a terminal shows them."""

    @abstractmethod
    def findings(self, results: Mapping[str, Arrays]) -> list[Finding]:
        """What the paper says of these results, and what they say."""

    @abstractmethod
    def draw(self, results: Mapping[str, Arrays]) -> Picture:
        """The figure."""

    def precision(self, point: Point) -> str:
        """Of matrix products: theory is about exact ones."""
        return "float32"

    def notes(self) -> list[str]:
        """What a reader has to know about this scale and reading."""
        return []

    def settings(self) -> dict[str, Any]:
        """Everything but the seed that decides the results."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, at any scale and in any reading.

    Several of them may show the same points: those that name one folder keep them there together, each point
    once, and what each of them makes of the points in a folder of its own within that.
    """

    name: str  # such as ifca/fig2a
    title: str  # one line
    make: Callable[[Scale, str], Experiment]  # given the scale and the preset
    presets: tuple[str, ...] = ("text", "authors")
    scales: tuple[str, ...] = tuple(SCALES)
    shared: str | None = None  # the name of the folder, where other figures keep their points there, too
