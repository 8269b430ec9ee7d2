"""Every figure and table of the papers, to be computed again: what was claimed beside what is found."""

from coterie.papers.experiment import Experiment, Figure, Finding, Point
from coterie.papers.listing import FIGURES, find
from coterie.papers.reproduce import compute, reproduce

__all__ = ["FIGURES", "Experiment", "Figure", "Finding", "Point", "compute", "find", "reproduce"]
