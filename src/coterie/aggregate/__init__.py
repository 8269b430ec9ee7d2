"""How replies become models."""

from coterie.aggregate.mean import Mean, Normalise, Sums

__all__ = ["Mean", "Normalise", "Sums"]
