"""Experiments about what no paper has: groups without being told how many, or whether there are any."""

from coterie.papers.ours import gap, power, seen, unlabelled, without_k

FIGURES = (*without_k.FIGURES, *power.FIGURES, *unlabelled.FIGURES, *seen.FIGURES, *gap.FIGURES)

__all__ = ["FIGURES"]
