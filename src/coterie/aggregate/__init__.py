"""How replies become models."""

from coterie.aggregate.mean import Mean, SoftSumming, Summing
from coterie.aggregate.protocol import Aggregator
from coterie.aggregate.server import FedAdam, FedAvgM, ServerOptimiser
from coterie.aggregate.sums import Denominator, Sums
from coterie.aggregate.trimmed import Median, TrimmedMean

__all__ = [
    "Aggregator",
    "Denominator",
    "FedAdam",
    "FedAvgM",
    "Mean",
    "Median",
    "ServerOptimiser",
    "SoftSumming",
    "Summing",
    "Sums",
    "TrimmedMean",
]
