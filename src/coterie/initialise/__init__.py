"""How the k models start."""

from coterie.initialise.components import Components
from coterie.initialise.farthest import FarthestLoss
from coterie.initialise.given import Given
from coterie.initialise.moment_descent import MomentDescent
from coterie.initialise.one_shot import OneShot
from coterie.initialise.protocol import Initialiser
from coterie.initialise.random import Random

__all__ = ["Components", "FarthestLoss", "Given", "Initialiser", "MomentDescent", "OneShot", "Random"]
