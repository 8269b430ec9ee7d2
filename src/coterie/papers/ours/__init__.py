"""Experiments about what no paper has: groups without being told how many."""

from coterie.papers.ours.without_k import FIGURES

__all__ = ["FIGURES"]
