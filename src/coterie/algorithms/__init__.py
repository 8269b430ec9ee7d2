"""What the server asks, in which order, and what it makes of the answers."""

from coterie.algorithms.alternating import IFCA
from coterie.algorithms.baselines import Global, Local

__all__ = ["IFCA", "Global", "Local"]
