"""What SR-FCA has after ONE_SHOT and after each REFINE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.algorithms import SRFCA, Local
from coterie.clustering.history import FINISH, Event, History
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.evaluate import metrics


def course(
    found: Clustering, algorithm: SRFCA, fit: Callable[[Any], Clustering], data: Federated, measure: str
) -> dict[str, Any]:
    """Accuracy (or loss) and misclustering after each step, and the distances after ONE_SHOT.

    After ONE_SHOT a client is served by the model that it trained alone, as in the paper, whose Table 5 has
    the accuracy of Local there. What there is after a REFINE is the result of a run that ends with it.
    """
    assert data.test is not None and data.truth is not None
    earlier = [fit(replace(algorithm, refines=r)) for r in range(1, algorithm.refines)]
    after = [fit(Local(rounds=algorithm.rounds)), *earlier, found]
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
