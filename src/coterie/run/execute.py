"""Running an experiment into a run folder, from the beginning or from where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from coterie import storage
from coterie.algorithms.observer import Observer
from coterie.clustering import Clustering, Evaluation, load
from coterie.clustering.result import ChosenBy
from coterie.data import nodes
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.errors import FederationError, SettingError
from coterie.evaluate import metrics
from coterie.federation import Federation, tuning
from coterie.federation.simulation import Simulation
from coterie.models import stacked
from coterie.run.config import Experiment
from coterie.run.folder import BATCH, EVALUATION, Recorder, RunFolder

Progress = Callable[[str, int], AbstractContextManager[Observer]]


def execute(
    experiment: Experiment,
    folder: RunFolder,
    *,
    federation: Federation | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 5.0,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> Clustering:
    """Run an experiment and its baselines.

    The clients are those of `federation`; when there is none, those of the experiment's data set, simulated.
    What a folder already holds of this experiment is not computed again with `resume`. The state is kept
    every `checkpoint_every` seconds, which changes no result. `progress(name, rounds)` gives a context in
    which rounds are shown; `observers` watch every method.
    """
    if federation is not None and resume and not overwrite:
        # whoever took part counts, connected at this moment or not
        began_with = folder.began_with()
        if began_with is not None:
            folder.check(experiment.decided(began_with[1]))
            federation.recall(*began_with)
    clients = _Simulated(experiment) if federation is None else _Real(experiment, federation)
    spec = clients.federation.spec
    experiment = experiment.decided(spec)
    baselines = [
        (folder.baseline(name), experiment.baseline(name))
        for name in experiment.baselines
        if name != experiment.algorithm["name"]
    ]
    # an impossible setting should be heard of before the folder is touched
    learner = experiment.make_learner().for_data(spec)
    _algorithm(experiment, clients).check(clients.federation.clients, learner)
    for _, baseline in baselines:
        try:
            _algorithm(baseline, clients).check(clients.federation.clients, learner)
        except SettingError as error:
            raise SettingError(f"baselines: {baseline.algorithm['name']}: {error}") from error
    with folder.claimed(experiment, resume, overwrite):
        found = _one(experiment, clients, folder, checkpoint_every, progress, observers)
        for part, baseline in baselines:
            part.claim(baseline, resume=True, overwrite=False)
            _one(baseline, clients, part, checkpoint_every, progress, observers)
    return found


class _Simulated:
    """The clients of a data set, of which everything is known."""

    def __init__(self, experiment: Experiment) -> None:
        self._data = experiment.make_data()
        self.federation: Federation = Simulation(self._data.train, **experiment.simulation_settings())
        self.truth = self._data.truth

    def evaluation(self, found: Clustering) -> dict[str, Any]:
        return evaluation(found, self._data)

    def worth_another_try(self, before: dict[str, Any]) -> bool:
        return False


class _Real:
    """Clients of whom only what they say is known."""

    truth = None

    def __init__(self, experiment: Experiment, federation: Federation) -> None:
        self.federation = federation
        name = experiment.data["name"]
        self._data = "the nodes' own data" if name == nodes.NAME else str(name).replace("-", " ")

    def evaluation(self, found: Clustering) -> dict[str, Any]:
        held_out = getattr(self.federation, "test", None)
        test = None
        if held_out is not None:
            with suppress(FederationError):  # too few of them hold out examples
                known = set(found.ids.tolist()).issuperset(held_out.ids.tolist())
                test = _served(found, held_out, "train" if known else "shard")
        return _contents(name=self._data, test=test)

    def worth_another_try(self, before: dict[str, Any]) -> bool:
        return before.get("test") is None  # clients may have been away, not without held-out examples


def _algorithm(experiment: Experiment, clients: _Simulated | _Real) -> Any:
    """The algorithm of an experiment; one that lacks the truth, as an oracle does, is told if it is known."""
    algorithm = experiment.make_algorithm()
    lacks_truth = hasattr(algorithm, "truth") and algorithm.truth is None
    return replace(algorithm, truth=clients.truth) if lacks_truth else algorithm


def _one(
    experiment: Experiment,
    clients: _Simulated | _Real,
    folder: RunFolder,
    checkpoint_every: float,
    progress: Progress | None,
    observers: Sequence[Observer],
) -> Clustering:
    algorithm = _algorithm(experiment, clients)
    with tuning.remembered_in(folder.path / BATCH):
        if folder.finished:
            found = load(folder.path)
        else:
            shown = (
                nullcontext()
                if progress is None
                else progress(experiment.algorithm["name"], algorithm.expected_rounds)
            )
            with shown as show:
                watching = [Recorder(folder, checkpoint_every), *([] if show is None else [show]), *observers]
                found = algorithm.fit(
                    clients.federation, experiment.make_learner(), seed=experiment.seed, observers=watching
                )
            found.save(folder.path)
        path = folder.path / EVALUATION
        if not path.exists() or clients.worth_another_try(storage.read_json(path)):
            storage.write_json(path, clients.evaluation(found))
    return found


def evaluation(found: Clustering, data: Federated) -> dict[str, Any]:
    """How good a clustering is, as plain values: on held-out examples, unseen clients, against the truth."""
    k = stacked.count(found.models)
    clusters = k < len(data.train)  # one model per client is not a grouping to compare with the truth
    truth = data.truth if clusters else None
    comparable = data.models is not None and k == len(data.models)
    distance = metrics.parameter_distance(found.models, data.models) if comparable else None
    chosen_by: ChosenBy = "train" if (found.assignment >= 0).any() else "shard"
    return _contents(
        name=data.name,
        truth=None if data.truth is None else data.truth.tolist(),
        misclustering=None if truth is None else metrics.misclustering(found.assignment, truth),
        adjusted_rand=None if truth is None else metrics.adjusted_rand(found.assignment, truth),
        parameter_distance=_number(distance),
        test=None if data.test is None else _served(found, data.test, chosen_by),
        unseen=None if data.unseen is None else _plain(found.evaluate(data.unseen)),
        unseen_misclustering=(
            metrics.misclustering(found.assign(data.unseen), data.unseen_truth)
            if clusters and data.unseen is not None and data.unseen_truth is not None
            else None
        ),
    )


def _contents(name: str, **known: Any) -> dict[str, Any]:
    """The content of an evaluation: what is not known of these clients is null."""
    keys = (
        "truth",
        "misclustering",
        "adjusted_rand",
        "parameter_distance",
        "test",
        "unseen",
        "unseen_misclustering",
    )
    return {"data": name, **dict.fromkeys(keys), **known}


def _served(found: Clustering, clients: Shards | Federation, chosen_by: ChosenBy) -> dict[str, Any]:
    """How well clients are served by what the method ends with for each: its own model, if it has one."""
    own = found.personal is not None and chosen_by == "train"
    result = found.evaluate(clients, chosen_by, personal=own)
    return {**_plain(result), "served_by": "own model" if own else "cluster"}


def _plain(result: Evaluation) -> dict[str, Any]:
    columns = {
        name: [_number(value) for value in np.asarray(column).tolist()]
        for name, column in result.per_client.items()
    }
    return {
        "accuracy": _number(float(result.accuracy)),
        "loss": _number(float(result.loss)),
        "chosen_by": result.chosen_by,
        "per_client": columns,
    }


def _number(value: Any) -> Any:
    """JSON knows no NaN: what is not a number is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
