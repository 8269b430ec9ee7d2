"""How the k models start."""

from coterie.initialise.farthest import FarthestLoss
from coterie.initialise.given import Given
from coterie.initialise.moment_descent import MomentDescent
from coterie.initialise.one_shot import OneShot
from coterie.initialise.random import Random

__all__ = ["FarthestLoss", "Given", "MomentDescent", "OneShot", "Random"]
