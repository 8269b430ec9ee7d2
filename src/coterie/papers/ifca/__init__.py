"""Figures of Ghosh, Chung, Yin and Ramchandran, "An Efficient Framework for Clustered Federated Learning"."""

from coterie.papers.ifca.figure2 import FIGURES

__all__ = ["FIGURES"]
