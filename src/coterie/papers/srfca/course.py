"""What SR-FCA has after ONE_SHOT and after each REFINE, all from one run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, PyTree

from coterie.algorithms.observer import Moment, Observer
from coterie.clustering.history import FINISH, Event, History
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.evaluate import metrics


class Stage(NamedTuple):
    """The clusters after a REFINE."""

    models: PyTree  # (k, ...)
    assignment: Int[np.ndarray, " clients"]


class Stages(Observer):
    """Keeps what a run of SR-FCA has after each REFINE: what a run that ended with it would give."""

    def __init__(self) -> None:
        self.refined: list[Stage] = []

    def wants_states(self) -> bool:
        return False  # those of pauses are shown in any case

    def after(self, moment: Moment) -> None:
        for record in moment.new:
            if isinstance(record, Event) and record.name == "refine":
                assert moment.states is not None
                # the next round consumes the states
                models, assignment = jax.device_get((moment.states.models, moment.states.assignment))
                labels = np.array(assignment[0])
                for client, nearest in record.details.get("nearest", {}).items():
                    labels[int(client)] = nearest
                self.refined.append(Stage(jax.tree.map(lambda a: a[0], models), labels))

    def results(self, found: Clustering) -> list[Clustering]:
        """The result of the run, if it had ended with the first REFINE, with the second, ..."""
        return [replace(found, models=stage.models, assignment=stage.assignment) for stage in self.refined]


def course(
    found: Clustering, stages: Stages, alone: Clustering, data: Federated, measure: str
) -> dict[str, Any]:
    """Accuracy (or loss) and misclustering after each step, and the distances after ONE_SHOT.

    After ONE_SHOT a client is served by the model that it trained alone, as in the paper, whose Table 5 has
    the accuracy of Local there.
    """
    assert data.test is not None and data.truth is not None
    after = [alone, *stages.results(found)]
    shot = next(event.details for event in found.history.events if event.name == "one-shot")
    return {
        "course": np.array([getattr(step.evaluate(data.test, "train"), measure) for step in after]),
        "wrong": np.array([metrics.misclustering(a, data.truth) for a in groupings(found.history)]),
        "threshold": shot["threshold"],
        "edges": np.array(shot["histogram"]["edges"]),
        "counts": np.array(shot["histogram"]["counts"]),
    }


def groupings(history: History) -> list[np.ndarray]:
    """Every client's cluster after each time that clients were regrouped; -1 for those in none."""
    now, found = np.full(history.clients, -1), []
    for record in history.records:
        record.moved[history.restart].apply(now)
        if isinstance(record, Event) and record.name != FINISH:
            found.append(now.copy())
    return found
