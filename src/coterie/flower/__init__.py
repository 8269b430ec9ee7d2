"""Experiments on a Flower federation: the apps that its server and its nodes run, and help to set one up.

pip install 'coterie[flower]'
"""

from coterie.federation.flower import Client, FlowerFederation, JaxClient, Own, client_app
from coterie.flower.app import client_for, server_for

__all__ = ["Client", "FlowerFederation", "JaxClient", "Own", "client_app", "client_for", "server_for"]
