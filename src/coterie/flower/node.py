"""What a node holds, as its SuperNode was told with `--node-config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.data.files import client_file
from coterie.errors import ConfigError
from coterie.federation.flower.client import Own
from coterie.run.config import Experiment

KEYS = ("client-id", "data", "test-data", "target", "partition-id")


def own_data(config: Mapping[str, Any], experiment: Experiment) -> Own:
    """A node's own data.

    With `data="/path/to/file"` it is a file on the node's disk (see `coterie.data.client_file`), and
    `client-id` says whose it is; `test-data` is a file of held-out examples, and `target` the column or array
    that holds the targets. With `partition-id=3` it is the client at that position of the experiment's data
    set, which the node makes itself: for trying things out.
    """
    if "data" in config:
        if "client-id" not in config:
            raise ConfigError(
                'a node with data of its own needs a name that stays: add client-id="..." to --node-config.'
            )
        name, target = str(config["client-id"]), str(config.get("target", "y"))
        test = config.get("test-data")
        return Own(
            name,
            client_file(str(config["data"]), name, target),
            None if test is None else client_file(str(test), name, target),
        )
    if "partition-id" not in config:
        raise ConfigError(
            "this SuperNode does not say what data it holds: start it with --node-config "
            """'client-id="hospital-a" data="/path/to/file.csv"', or with 'partition-id=0'."""
        )
    data = experiment.make_data()
    position = config["partition-id"]
    if not isinstance(position, int) or not 0 <= position < len(data.train):
        raise ConfigError(
            f"partition-id={position} is not among the {len(data.train)} clients of {data.name}: "
            f"give a number from 0 to {len(data.train) - 1}."
        )
    own = str(config.get("client-id", data.train.ids[position]))
    return Own(own, data.train[[position]], None if data.test is None else data.test[[position]])
