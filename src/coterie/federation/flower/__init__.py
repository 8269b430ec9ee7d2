"""Clients on machines of their own, asked through Flower's SuperLink and SuperNodes."""

from coterie.federation.flower.client import Client, JaxClient, Own, client_app
from coterie.federation.flower.federation import FlowerFederation

__all__ = ["Client", "FlowerFederation", "JaxClient", "Own", "client_app"]
