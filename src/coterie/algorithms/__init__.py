"""What the server asks, in which order, and what it makes of the answers."""

from coterie.algorithms.alternating import IFCA, FedX
from coterie.algorithms.baselines import Global, Local
from coterie.algorithms.one_shot_kmeans import OneShotKMeans

__all__ = ["IFCA", "FedX", "Global", "Local", "OneShotKMeans"]
