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


def new_project(folder: Path, nodes: int) -> list[Path]:
    """Write a project that `flwr run` accepts to a new or empty folder; returns its files."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise ConfigError(f"{folder.resolve().name!r} cannot name a project: begin with a letter.")
    if len(name) > 32:
        raise ConfigError(f"{name!r} is too long for Flower: choose a name of at most 32 characters.")
    if nodes < 2:
        raise ConfigError(f"a federation needs at least 2 nodes, not {nodes}.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty: choose another folder.")
    values = {
        "name": name,
        "title": folder.resolve().name,
        "module": name.replace("-", "_") + "_app",
        "publisher": "coterie",
        "nodes": str(nodes),
    }
    written = []
    for source, target in FILES.items():
        text = resources.files("coterie.flower").joinpath("project", source).read_text()
        path = folder / Template(target).substitute(values)
        write_text(path, Template(text).safe_substitute(values))
        written.append(path)
    return written
