"""Who can be asked: simulated clients, and the protocol that any federation follows."""

from coterie.federation.protocol import Answers, Federation
from coterie.federation.simulation import Simulation

__all__ = ["Answers", "Federation", "Simulation"]
