"""What the server asks, in which order, and what it makes of the answers."""

from coterie.algorithms.algorithm import Algorithm
from coterie.algorithms.cfl import CFL
from coterie.algorithms.discover import Discover
from coterie.algorithms.federated_averaging import Global, Oracle
from coterie.algorithms.fedsoft import FedSoft
from coterie.algorithms.fedx import FedX
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.algorithms.one_shot_kmeans import OneShotKMeans
from coterie.algorithms.srfca import SRFCA

__all__ = [
    "CFL",
    "IFCA",
    "SRFCA",
    "Algorithm",
    "Discover",
    "FedSoft",
    "FedX",
    "Global",
    "Local",
    "OneShotKMeans",
    "Oracle",
]
