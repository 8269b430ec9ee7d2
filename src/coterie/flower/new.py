"""A ready Flower app project around an experiment file."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from coterie.errors import ConfigError
from coterie.storage import write_text

FILES = {
    "pyproject.toml": "pyproject.toml",
    "experiment.toml": "experiment.toml",
    "README.md": "README.md",
    "app.py": "$module.py",
    "gitignore": ".gitignore",
}

TRIAL = """# For trying things out: a node with partition-id=i holds the i-th client of this data set.
[data]
name = "rotated-digits"
clients = $nodes
rotations = [0, 90]
unseen = 0
"""
OWN = """# Every node holds a file of its own, and says where in its --node-config.
[data]
name = "nodes"
target = "y" # the column of targets; whole numbers in it are class labels
# classes = 2 # the number of classes, if it is not the largest label that a node has, plus one
"""
TOLD = """name = "ifca"
k = 2
rounds = 10
n_init = 5
"""
UNTOLD = """name = "discover" # finds out how many groups there are, in some 100 exchanges with nodes
rounds = 20
"""


def new_project(folder: Path, nodes: int, own_data: bool = False) -> list[Path]:
    """Write a project that `flwr run` accepts to a new or empty folder; returns its files.

    With `own_data` its nodes hold files of their own; otherwise each is a client of a bundled data set.
    """
    title = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", title):
        raise ConfigError(
            f"{title!r} cannot name a Flower app: use up to 32 letters, digits and hyphens, a letter first."
        )
    if nodes < 2:
        raise ConfigError(f"a federation needs at least 2 nodes, not {nodes}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty: choose another folder.")
    values = {
        "name": title.lower(),
        "title": title,
        "module": title.lower().replace("-", "_") + "_app",
        "publisher": "coterie",
        "nodes": str(nodes),
    }
    values["data"] = Template(OWN if own_data else TRIAL).substitute(values)
    values["algorithm"] = UNTOLD if own_data else TOLD
    values["nodes_or_data"] = "--data FOLDER-OF-FILES" if own_data else f"--nodes {nodes}"
    written = []
    for source, target in FILES.items():
        text = resources.files("coterie.flower").joinpath("project", source).read_text()
        path = folder / Template(target).substitute(values)
        write_text(path, Template(text).safe_substitute(values))
        written.append(path)
    return written
