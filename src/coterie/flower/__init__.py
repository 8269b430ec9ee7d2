"""Clients on machines of their own, asked through Flower, and experiments as Flower apps.

pip install 'coterie[flower]'
"""

from coterie.flower.app import client_for, server_for
from coterie.flower.client import Client, JaxClient, Own, client_app
from coterie.flower.federation import FlowerFederation

__all__ = ["Client", "FlowerFederation", "JaxClient", "Own", "client_app", "client_for", "server_for"]
