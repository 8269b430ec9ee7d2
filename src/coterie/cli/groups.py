"""`coterie groups`: are there any, and is it worth it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from coterie.cli.errors import clear_errors
from coterie.cli.options import Client, Config, Data, Label, Seed, Set, experiment_of
from coterie.evaluate.groups import groups as test


def groups(
    config: Config = None,
    data: Data = None,
    client: Client = None,
    label: Label = None,
    rounds: Annotated[int, typer.Option(help="Of the training of the models that are compared.")] = 20,
    seed: Seed = None,
    set_: Set = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Test whether clients fall into groups: the answer is a sentence, with what a client gains by them.

    Groups are found on one half of every client's examples, whatever algorithm the file names, and judged by
    the other half.
    """
    with clear_errors():
        experiment = experiment_of(config, data, client, label, seed, set_)
        train = experiment.make_data().train
        learner = experiment.decided(train.spec).make_learner()
        found = test(train, learner, rounds=rounds, seed=experiment.seed)
        print(json.dumps(found.to_json()) if json_ else found)
