"""The result of an algorithm."""

from coterie.clustering.confidence import Confidence
from coterie.clustering.history import History, Round
from coterie.clustering.result import Clustering, Evaluation, load

__all__ = ["Clustering", "Confidence", "Evaluation", "History", "Round", "load"]
