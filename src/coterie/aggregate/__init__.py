"""How replies become models."""

from coterie.aggregate.mean import Mean, Normalise, SoftMean, Sums

__all__ = ["Mean", "Normalise", "SoftMean", "Sums"]
