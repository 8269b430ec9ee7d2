"""How replies become models."""

from coterie.aggregate.mean import Mean, SoftSumming, Summing
from coterie.aggregate.protocol import Aggregator
from coterie.aggregate.sums import Normalise, Sums
from coterie.aggregate.trimmed import Median, TrimmedMean

__all__ = ["Aggregator", "Mean", "Median", "Normalise", "SoftSumming", "Summing", "Sums", "TrimmedMean"]
