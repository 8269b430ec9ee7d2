"""Figures and tables of the papers, computed again: what was claimed beside what is found.

`FIGURES` lists those that there are: the IFCA paper's figure, tables and rates, the figures and theorems of
the mixed-regression paper, and the SR-FCA paper's comparison of methods, on data that needs no download and
on its own. What all of them share is here, what belongs to one paper is under its name.
"""

from coterie.papers.experiment import Experiment, Figure, Finding, Point
from coterie.papers.figures import FIGURES, find
from coterie.papers.reproduce import compute, reproduce

__all__ = ["FIGURES", "Experiment", "Figure", "Finding", "Point", "compute", "find", "reproduce"]
