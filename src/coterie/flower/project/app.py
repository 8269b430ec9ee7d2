"""What the server and the nodes run: the experiment file beside this one."""

from pathlib import Path

from coterie.flower import client_for, server_for

EXPERIMENT = Path(__file__).with_name("experiment.toml")

server = server_for(EXPERIMENT)
client = client_for(EXPERIMENT)
