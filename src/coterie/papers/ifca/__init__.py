"""Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning"."""

from coterie.papers.experiment import Figure
from coterie.papers.ifca import figure2, rates, table1, table2

FIGURES: tuple[Figure, ...] = (*figure2.FIGURES, table1.FIGURE, table2.FIGURE, rates.FIGURE)

__all__ = ["FIGURES"]
