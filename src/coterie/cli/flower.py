"""`coterie flower ...`: a federation of real machines, from a first try on one to a deployment."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.errors import clear_errors
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.flower.deployment import NodeConfig

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run experiments on a Flower federation: machines that hold their own data.",
)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="A folder that is not there yet, or empty.")],
    nodes: Annotated[int, typer.Option(help="Nodes that the experiment is set up for.")] = 8,
    own_data: Annotated[
        bool,
        typer.Option("--own-data", help="Nodes hold files of their own, not parts of a bundled data set."),
    ] = False,
) -> None:
    """Write a ready Flower app project: an experiment file, the app that runs it, and how to go on."""
    with clear_errors():
        _needs_flower()
        from coterie.flower.new import new_project

        for path in new_project(folder, nodes, own_data):
            print(path)
        who = "--data FOLDER-OF-FILES" if own_data else f"--nodes {nodes}"
        print(f"\nTry it on this machine: coterie flower up {folder} {who}")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where to put them.")] = Path("keys"),
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address under which nodes reach the SuperLink. May be given again."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="The name of a node that needs a key pair. May be given again.")
    ] = None,
) -> None:
    """Make certificates for a SuperLink (`--host`) and key pairs for SuperNodes (`--node`).

    An authority and key pairs that are there already are kept, so nodes can be added later. Private keys are
    readable by their owner alone; a node makes its own and sends only the `.pub` file.
    """
    with clear_errors():
        _needs_flower()
        from coterie.flower.keys import KeyFolder, make_certificates, make_node_key

        if not host and not node:
            raise ConfigError(
                "say what to make: --host for the SuperLink's certificate, --node for a node's keys."
            )
        keys = KeyFolder(folder)
        for name in node or []:
            made = make_node_key(keys, name)
            for path in made:
                print(path)
            if not made:
                print(f"{keys.node(name)} is there already: kept.")
        if host:
            for path in make_certificates(keys, host):
                print(path)


@app.command()
def up(
    project: Annotated[Path, typer.Argument(help="The folder of a Flower app project.")] = Path(),
    nodes: Annotated[
        int | None, typer.Option(min=1, help="SuperNodes, each with one client of the experiment's data set.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of data files: one SuperNode for each, named after its file."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the SuperLink; 0 for a free one.")] = 8000,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="When all are ready, say so as one line of JSON.")
    ] = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine, for trying things out; Ctrl-C stops them.

    They use TLS and every node has a key pair, as a real deployment would. Keys, logs and Flower's own files
    go to `.flwr` in the project.
    """
    with clear_errors():
        _needs_flower()
        from coterie.flower.deployment import CONNECTION, Deployment

        if not (project / "pyproject.toml").exists():
            raise ConfigError(
                f"{project} holds no Flower app (pyproject.toml is missing): coterie flower new makes one."
            )
        configs = _configs(nodes, data)
        console = Console(stderr=True, highlight=False)
        with _interruptible(), Deployment(project, port, secure=not insecure) as deployment:
            console.print(f"Starting a SuperLink and {len(configs)} SuperNodes ...")
            deployment.start()
            deployment.start_nodes(configs)
            home, folder = shlex.quote(str(deployment.home)), shlex.quote(str(deployment.project))
            command = f"FLWR_HOME={home} flwr run {folder} {CONNECTION} --stream"
            if json_:
                ready = {
                    "superlink": deployment.address,
                    "root_certificates": None if insecure else str(deployment.keys.ca),
                    "nodes": list(configs),
                    "project": str(deployment.project),
                    "logs": str(deployment.logs),
                    "command": command,
                }
                print(json.dumps(ready), flush=True)
            else:
                security = "no TLS" if insecure else "TLS, nodes with keys"
                print(f"SuperLink   {deployment.address} ({security})")
                for name in configs:
                    print(f"SuperNode   {name}")
                print(f"Logs        {deployment.logs}")
                print(f"Run it      {command}", flush=True)
            console.print("Ready; Ctrl-C stops everything.")
            watched = {"superlink", *configs}
            while "superlink" in watched:
                time.sleep(1.0)
                for name in watched - deployment.running().keys():
                    console.print(f"{name} has ended; see {deployment.logs / name}.log", soft_wrap=True)
                    watched.remove(name)
        console.print("All stopped.")


def _configs(nodes: int | None, data: Path | None) -> dict[str, NodeConfig]:
    """The name and the configuration of every node."""
    from coterie.data.files import clients_in

    if data is None:
        return {f"node-{i}": {"partition-id": i} for i in range(nodes or 8)}
    if nodes is not None:
        raise ConfigError("--data starts a SuperNode for each file: leave out --nodes.")
    own = clients_in(data)
    return {name: {"client-id": name, "data": str(path.resolve())} for name, path in own.items()}


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, or a polite request to terminate, ends what is inside, which cleans up undisturbed."""

    def interrupt(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _needs_flower() -> None:
    import importlib.util

    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("this needs Flower: pip install 'coterie[flower]'.")
