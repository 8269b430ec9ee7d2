"""What several commands are told in the same words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie import registry
from coterie.data.files import TABLES
from coterie.errors import ConfigError
from coterie.run.config import Experiment, setting, with_options

Data = Annotated[
    str | None,
    typer.Option(
        help="A CSV or Parquet file, a folder with a file for each client, or "
        f"{', '.join(name for name in registry.PARTS['data'] if name not in ('table', 'folder', 'nodes'))}.  "
        "[default: rotated-digits]"
    ),
]
Client = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Of a file: the column that says whose row it is.")
]
Label = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Of files: the column that is to be foretold.")
]

Config = Annotated[
    Path | None, typer.Option(help="An experiment file (TOML), of which data, model and local update count.")
]
Seed = Annotated[int | None, typer.Option(help="Everything random.  [default: 0]")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting by its key in the file, e.g. local.lr=0.05."
    ),
]


def experiment_of(
    config: Path | None,
    data: str | None,
    client: str | None,
    label: str | None,
    seed: int | None,
    others: list[str] | None,
) -> Experiment:
    """The experiment of a file, or the defaults, with what options say on top."""
    content = {} if config is None else Experiment.from_file(config)
    given = data_settings(data, client, label) + ([] if seed is None else [("seed", seed)])
    return Experiment.read(with_options(content, [*given, *map(setting, others or [])]))


def data_settings(data: str | None, client: str | None, label: str | None) -> list[tuple[str, Any]]:
    """What `--data`, `--client` and `--label` say, as (key in the experiment file, value)."""
    given: list[tuple[str, Any]] = []
    columns = {"data.client": client, "data.label": label}
    if data is not None and _is_file(data):
        if client is None or label is None:
            raise ConfigError(
                f"--data {data}: say which column names the clients and which one is to be foretold, with "
                "--client COLUMN and --label COLUMN."
            )
        given = [("data.name", "table"), ("data.source", data)]
    elif data is not None and data not in registry.PARTS["data"] and os.path.isdir(data):
        if client is not None:
            raise ConfigError(f"--client is for one file with all clients; {data} has a file for each.")
        given = [("data.name", "folder"), ("data.path", data)]
    elif data is not None:
        given = [("data.name", data)]
    return given + [(key, column) for key, column in columns.items() if column is not None]


def _is_file(data: str) -> bool:
    return Path(data).suffix.lower() in TABLES
