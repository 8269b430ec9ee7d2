"""`coterie groups`: are there any, and is it worth it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.errors import clear_errors
from coterie.cli.options import Client, Data, Label, data_settings
from coterie.evaluate.groups import groups as test
from coterie.run.config import Experiment, setting, with_options


def groups(
    config: Annotated[
        Path | None,
        typer.Option(help="An experiment file (TOML), of which data, model and local update count."),
    ] = None,
    data: Data = None,
    client: Client = None,
    label: Label = None,
    rounds: Annotated[int, typer.Option(help="Of the training of the models that are compared.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Everything random.  [default: 0]")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting by its key in the file."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Test whether clients fall into groups: the answer is a sentence, with what a client gains by them.

    Groups are found on one half of every client's examples, whatever algorithm the file names, and judged by
    the other half.
    """
    with clear_errors():
        content = {} if config is None else Experiment.from_file(config)
        given = data_settings(data, client, label) + ([] if seed is None else [("seed", seed)])
        experiment = Experiment.read(with_options(content, [*given, *map(setting, set_ or [])]))
        train = experiment.make_data().train
        learner = experiment.decided(train.spec).make_learner()
        found = test(train, learner, rounds=rounds, seed=experiment.seed)
        print(json.dumps(found.to_json()) if json_ else found)
