"""The Flower app: an experiment file as a `ServerApp` and a `ClientApp`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from coterie import registry
from coterie.data.shards import Shards
from coterie.errors import ConfigError, CoterieError
from coterie.flower.client import Client, JaxClient, Own, client_app
from coterie.flower.federation import FlowerFederation
from coterie.flower.node import own_data
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.learn.task import Task
from coterie.run.config import Experiment, setting, with_options
from coterie.run.execute import execute
from coterie.run.folder import RunFolder
from coterie.run.progress import every_round
from coterie.run.summary import summarise
from coterie.run.tables import show_summary


def experiment_of(file: Path, run: Mapping[str, Any]) -> Experiment:
    """The experiment in a file, with what `set` in the run's configuration says otherwise."""
    # at blanks before KEY=, so that values may hold blanks and quotes themselves
    words = re.split(r"\s+(?=[\w.]+=)", str(run.get("set", "")).strip())
    options = map(setting, filter(None, words))
    return Experiment.read(with_options(Experiment.from_file(file), options))


def client_for(file: str | Path) -> ClientApp:
    """The client's side of an experiment file: what a SuperNode runs."""

    def make(context: Context) -> Client:
        experiment = experiment_of(Path(file), context.run_config)
        own = own_data(context.node_config, experiment)
        experiment = experiment.decided(own.train.spec)
        assert experiment.model is not None
        learner = experiment.make_learner()
        if experiment.model["name"] == "torch":
            return _torch_client(learner, own)
        return JaxClient(learner, own, others=own_tasks(experiment))

    return client_app(make)


def own_tasks(experiment: Experiment) -> list[type[Task]]:
    """The tasks of the user's own that an experiment may ask for.

    They are those in the modules of what the experiment names by import path: its algorithm, its baselines,
    and their parts.
    """
    sections = [experiment.algorithm, *({"name": name} for name in experiment.baselines)]
    parts = [part for section in sections for part in registry.of_the_users_own("algorithm", section)]
    modules = dict.fromkeys(filter(None, map(inspect.getmodule, parts)))
    return [task for module in modules for task in vars(module).values() if _is_task(task)]


def _is_task(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Task) and not inspect.isabstract(value)


def _torch_client(learner: Learner, own: Own) -> Client:
    """A client that trains the module itself, in PyTorch."""
    import torch
    from torch.utils.data import TensorDataset

    from coterie.torch import TorchClient, TorchModel

    assert isinstance(learner.model, TorchModel) and isinstance(learner.local, SGD)

    def examples(shards: Shards | None) -> TensorDataset | None:
        if shards is None:
            return None
        x, y = shards.client(0)
        return TensorDataset(torch.tensor(shards.spec.seen(x)), torch.tensor(y))

    return TorchClient(
        own.id,
        learner.model.module(),
        examples(own.train),
        test=examples(own.test),
        loss=cast(Any, learner.loss),  # a function of this experiment's is one of tensors
        local=learner.local,
        classes=own.train.spec.classes,
    )


def server_for(file: str | Path) -> ServerApp:
    """The server's side of an experiment file: what a SuperLink runs.

    The run's configuration: `out` is the run folder, on the machine of the SuperLink; `overwrite` replaces a
    run that is there, which is otherwise continued; `set` changes settings of the experiment, such as
    `"algorithm.rounds=5 local.lr=0.05"`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            run(grid, context.run_config, Path(file))
        except CoterieError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            # Flower calls a run failed if its ServerApp raises, and shows the traceback: of no use here
            sys.tracebacklimit = 0
            raise

    return app


def run(grid: Grid, config: Mapping[str, Any], file: Path) -> None:
    """Run the experiment in a file with the clients behind a grid."""
    if not config.get("out"):
        raise ConfigError("the run's configuration lacks out, the folder to write the run to.")
    experiment = experiment_of(file, config)
    folder = RunFolder(str(config["out"]))
    console = Console(width=110, highlight=False)
    execute(
        experiment,
        folder,
        federation=FlowerFederation(grid, **experiment.flower),
        resume=True,
        overwrite=bool(config.get("overwrite", False)),
        checkpoint_every=0.0,
        progress=partial(every_round, console),
    )
    show_summary(console, summarise(folder.path))
    console.print(f"The run is in {folder.path.resolve()}.", soft_wrap=True)
