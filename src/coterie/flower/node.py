"""What a node holds, as its SuperNode was told with `--node-config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.data import nodes
from coterie.data.files import client_file
from coterie.errors import ConfigError
from coterie.flower.client import Own
from coterie.run.config import Experiment, settings_of


def own_data(config: Mapping[str, Any], experiment: Experiment) -> Own:
    """A node's own data.

    Where the experiment's data is `nodes`, it is a file on the node's disk: `data="/path/to/file"` (see
    `coterie.data.client_file`), with `client-id` to say whose it is, perhaps `test-data`, a file of held-out
    examples, and `target`, the column or array of targets. Otherwise the node makes the experiment's data
    set itself and takes the client at position `partition-id`: for trying things out.
    """
    name = experiment.data["name"]
    if name == nodes.NAME:
        return _from_files(config, settings_of(experiment.data))
    if "data" in config:
        raise ConfigError(
            f"the experiment is about {name}, but this node has a file of its own: write name = "
            f'"{nodes.NAME}" under [data] in the experiment.'
        )
    if "partition-id" not in config:
        raise ConfigError(
            f"this SuperNode does not say which client of {name} it is: start it with --node-config "
            "'partition-id=0'."
        )
    data = experiment.make_data()
    position = config["partition-id"]
    if not isinstance(position, int) or not 0 <= position < len(data.train):
        raise ConfigError(
            f"partition-id={position} is not among the {len(data.train)} clients of {name}: "
            f"give a number from 0 to {len(data.train) - 1}."
        )
    own = str(config.get("client-id", data.train.ids[position]))
    test = data.test
    if test is not None:
        mine = np.flatnonzero(test.ids == data.train.ids[position])  # not everybody may hold out examples
        test = test[mine] if len(mine) else None
    return Own(own, data.train[[position]], test)


def _from_files(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Own:
    for key, what in (("data", "what data it holds"), ("client-id", "whose data it holds")):
        if key not in config:
            raise ConfigError(
                f"this SuperNode does not say {what}: "
                """start it with --node-config 'client-id="hospital-a" data="/path/to/file.csv"'."""
            )
    name, classes = str(config["client-id"]), settings.get("classes")
    target = str(config.get("target", settings.get("target", "y")))
    test = config.get("test-data")
    return Own(
        name,
        client_file(str(config["data"]), name, target, classes),
        None if test is None else client_file(str(test), name, target, classes),
    )
