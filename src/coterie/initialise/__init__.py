"""How the k models start."""

from coterie.initialise.random import Random

__all__ = ["Random"]
