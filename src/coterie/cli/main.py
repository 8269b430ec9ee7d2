"""The `coterie` command: thin commands over the library."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import coterie
from coterie import registry
from coterie.cli import compare, flower, groups, reproduce
from coterie.cli.errors import clear_errors
from coterie.cli.options import Client, Data, Label, Seed, Set, data_settings
from coterie.cli.stop import stoppable
from coterie.errors import ConfigError, CoterieError, RunFolderError
from coterie.run import processes as several
from coterie.run.config import Experiment, Section, setting, value_of, with_options
from coterie.run.execute import execute
from coterie.run.folder import RunFolder
from coterie.run.progress import bar, lines
from coterie.run.summary import summarise
from coterie.run.tables import show_summary

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Find the groups hidden among federated clients and train one model per group.",
)
app.add_typer(flower.app, name="flower")
app.command()(reproduce.reproduce)
app.command()(groups.groups)
app.command()(compare.compare)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback()
def _coterie(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option(help="An experiment file (TOML). Options override it.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(registry.PARTS['algorithm'])}.  [default: discover; ifca where --k is given]"
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option(help="Clusters to look for, by a method that has to be told.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds.  [default: 60]")] = None,
    n_init: Annotated[int | None, typer.Option(help="Restarts side by side.  [default: 5, of ifca]")] = None,
    participation: Annotated[
        str | None,
        typer.Option(help="Clients per round: a fraction like 0.1, or a number like 20.  [default: 1.0]"),
    ] = None,
    data: Data = None,
    client: Client = None,
    label: Label = None,
    clients: Annotated[int | None, typer.Option(help="Clients in the data set.")] = None,
    seed: Seed = None,
    set_: Set = None,
    baselines: Annotated[
        str | None, typer.Option(help="Methods to compare with, or `none`.  [default: global,local]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder.  [default: runs/ALGORITHM-DATA-SEED]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the folder.")] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How often to keep the state for --resume."),
    ] = 5.0,
    json_: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where process 0 of several is; srun and mpirun tell it."),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many processes there are.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Which of them this is, from 0 up.")] = None,
) -> None:
    """Run an experiment: find groups, train one model per group, compare with one model for all and one each.

    With no options at all: `Discover`, which is not told how many groups there are, on rotated digits; with
    `--k`, IFCA. Everything is written to a run folder as it happens; a run
    that was interrupted, however it happened, continues with `--resume --out FOLDER` and ends the same.

    Started by `srun` or `mpirun`, or so many times with an address and a rank, it is one run over the devices
    of all processes.
    """
    with clear_errors():
        own = several.seat(address, processes, rank, os.environ)
    # what can be found wrong before the processes have come together, the first one says for all
    with clear_errors(silent=(CoterieError,) if own and not own.first else ()):
        if resume and overwrite:
            raise ConfigError("--resume continues a run and --overwrite replaces it: give one of them.")
        options = _options(algorithm, k, rounds, n_init, participation, clients, seed, baselines, set_ or [])
        options = [*data_settings(data, client, label), *options]
        content = _merged(config, options, resume, out)
        experiment = Experiment.read(content)
        folder = RunFolder(out or _default_out(experiment))
    if own:
        several.go_on_in_a_child(own, folder)
    speaks = own is None or own.first
    with clear_errors(*(() if speaks else (f"{own}: ", (RunFolderError,)))):
        console = Console(stderr=True)
        together = nullcontext(folder) if own is None else several.together(own, folder)
        with stoppable(partial(_how_to_go_on, folder), speaks) as stop, together as mine:
            execute(
                experiment,
                mine,
                resume=resume,
                overwrite=overwrite,
                checkpoint_every=checkpoint_every if speaks else math.inf,
                progress=partial(bar if console.is_terminal else lines, console) if speaks else None,
                observers=[stop],
            )
        if not speaks:
            return
        summary = summarise(folder.path)
        if json_:
            print(json.dumps({"folder": str(folder.path), **summary.to_json()}))
        else:
            show_summary(Console(), summary)
            print(f"\nThe run is in {folder.path}. See it in pictures: coterie report {folder.path}")


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.exists:
        return "nothing was computed yet."
    return (
        f"what was computed is kept; go on with: coterie run --resume --out {shlex.quote(str(folder.path))}"
    )


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write one self-contained HTML page about the run in a folder: losses, movements, groups, settings."""
    from coterie.run.report import write_report  # Matplotlib takes a second to import

    with clear_errors():
        path = write_report(run)
        print(f"The report is {path.resolve().as_uri()}")


def _options(
    algorithm: str | None,
    k: int | None,
    rounds: int | None,
    n_init: int | None,
    participation: str | None,
    clients: int | None,
    seed: int | None,
    baselines: str | None,
    others: list[str],
) -> list[tuple[str, Any]]:
    """The options that were given, as (key in the experiment file, value)."""
    share = None if participation is None else value_of(participation)
    names = None if baselines is None else [] if baselines == "none" else re.split(r"\s*,\s*", baselines)
    given = {
        "algorithm.name": algorithm,
        "algorithm.k": k,
        "algorithm.rounds": rounds,
        "algorithm.n_init": n_init,
        "algorithm.participation": share,
        "data.clients": clients,
        "seed": seed,
        "baselines": names,
    }
    return [(key, value) for key, value in given.items() if value is not None] + list(map(setting, others))


def _merged(config: Path | None, options: list[tuple[str, Any]], resume: bool, out: Path | None) -> Section:
    """The experiment file (else the folder's own, when resuming, or the defaults) with options on top."""
    if config is not None:
        content = Experiment.from_file(config)
    else:
        folder = RunFolder(out or _default_out(Experiment()))
        # where nothing else says what to run, a folder without a run is a mistake
        known = resume and (folder.exists if out and options else not options)
        content = folder.experiment().model_dump(exclude_none=True) if known else {}
    return with_options(content, options)


def _default_out(experiment: Experiment) -> Path:
    return Path("runs") / f"{experiment.algorithm['name']}-{experiment.called}-{experiment.seed}"


def main() -> None:
    """The entry point of the `coterie` command."""
    # as with python -m: what an experiment names by import path may be in this folder
    sys.path.append(os.getcwd())
    app()
