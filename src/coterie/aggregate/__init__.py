"""How replies become models."""

from coterie.aggregate.mean import Mean, Sums

__all__ = ["Mean", "Sums"]
