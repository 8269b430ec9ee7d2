"""`coterie compare`: several methods on one population, and what to make of it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.errors import clear_errors
from coterie.cli.options import Client, Config, Data, Label, Seed, Set, experiment_of
from coterie.cli.stop import stoppable
from coterie.evaluate.compare import compare as run
from coterie.run.tables import show_comparison


def compare(
    config: Config = None,
    data: Data = None,
    client: Client = None,
    label: Label = None,
    rounds: Annotated[int, typer.Option(help="Local updates of a client, about, with each method.")] = 30,
    seeds: Annotated[int, typer.Option(help="From how many seeds each method trains.")] = 3,
    seed: Seed = None,
    set_: Set = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to keep what is computed.  [default: runs/compare-DATA-SEED]")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="A file for the table.")] = None,
    latex: Annotated[Path | None, typer.Option(help="A file for the table, for a paper.")] = None,
    explain: Annotated[
        list[str] | None, typer.Option(metavar="CLIENT", help="Say of a client why it is where it is.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the table and the answer as JSON.")] = False,
) -> None:
    """Compare methods: are clients all alike, or are there groups, and what is gained by treating them apart?

    Runs one model for all, one for each client, and methods that find groups, with as many local updates and
    settings that are chosen alike, and says in words what to make of it. For example:

    coterie compare --data readings.csv --client machine --label fault

    Started again, with the same options, it goes on where it stopped.
    """
    with clear_errors():
        experiment = experiment_of(config, data, client, label, seed, set_)
        folder = out or Path("runs") / f"compare-{experiment.called}-{experiment.seed}"
        clients = experiment.make_data()
        learner = None
        if experiment.model is not None:
            learner = experiment.decided(clients.train.spec).make_learner()
        console = Console(stderr=True)
        how = f"what was computed is kept; the same command goes on ({shlex.quote(str(folder))})."
        with stoppable(lambda: how) as stop, console.status("reading data") as shown:

            def tell(what: str) -> None:
                stop.now()
                shown.update(what) if console.is_terminal else console.print(what, highlight=False)

            found = run(
                clients,
                learner,
                rounds=rounds,
                seeds=seeds,
                seed=experiment.seed,
                folder=folder,
                progress=tell,
            )
        if csv is not None:
            found.to_csv(csv)
        if latex is not None:
            found.to_latex(latex)
        if json_:
            print(json.dumps(found.to_json()))
            return
        show_comparison(Console(), found)
        for name in explain or []:
            print(f"\n{found.explain(name)}")
