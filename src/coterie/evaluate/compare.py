"""Several methods on one population, tuned alike.

Settings are chosen on validation examples: a fifth of each client's training examples, on which nothing is
trained meanwhile. Then every method trains on all training examples, from several seeds, and held-out
examples, which chose nothing, judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from coterie.algorithms import CFL, IFCA, SRFCA, Discover, Global, Local
from coterie.algorithms.algorithm import Algorithm
from coterie.clustering.result import Clustering
from coterie.data.federated import Federated
from coterie.data.shards import places
from coterie.errors import SettingError, whole_number
from coterie.evaluate.comparison import ONE_EACH, ONE_FOR_ALL, Comparison, Row
from coterie.evaluate.differences import differences
from coterie.evaluate.groups import Gain, groups
from coterie.evaluate.kept import Kept, Progress, contents
from coterie.evaluate.metrics import adjusted_rand
from coterie.evaluate.trials import (
    RATES,
    Trial,
    Tried,
    simplest,
    step_size_of,
    with_smaller_steps,
    with_step_size,
)
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.learn.losses import CLASSIFYING, named
from coterie.learn.tasks import MeasureLosses
from coterie.models import MLP, Linear

if TYPE_CHECKING:
    import pandas as pd

STEPS = 10  # of a local update
STARTS = 5  # of IFCA, of which the best goes on
PAIRED = 2000  # clients, beyond which methods that look at all pairs of them take minutes for each seed


def usual_methods(rounds: int, clients: int) -> dict[str, Algorithm[Any]]:
    """What is compared unless something else is asked for: about as many local updates of a client each."""
    third, half = max(1, rounds // 3), max(1, rounds // 2)
    several = {f"ifca, k={k}": IFCA(k, rounds=half, n_init=STARTS) for k in (2, 3, 4, 5) if k < clients}
    return {
        ONE_FOR_ALL: Global(rounds=rounds),
        ONE_EACH: Local(rounds=rounds),
        "discover": Discover(rounds=third),
        **several,
        **({"srfca": SRFCA(rounds=third), "cfl": CFL(rounds=rounds)} if clients <= PAIRED else {}),
    }


def usual_learners(classifies: bool) -> dict[str, Learner]:
    """The models of which the better one is taken."""
    loss, local = "cross_entropy" if classifies else "squared", SGD(lr=RATES[1], steps=STEPS)
    models: dict[str, Any] = {"linear": Linear(), "mlp": MLP(hidden=(32,))}
    return {name: Learner(model, loss, local) for name, model in models.items()}


def compare(
    data: Federated,
    learner: Learner | None = None,
    *,
    methods: Mapping[str, Algorithm[Any]] | None = None,
    rounds: int = 30,
    seeds: int = 3,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run several methods on one population, and say whether groups are worth it.

    Parameters
    ----------
    data
        The clients. Where there are no test examples, a fifth of each client's is held out.
    learner
        What clients know how to do; the step size in it is chosen again for each method. When not given, the
        better of a linear model and a small network.
    methods
        What is compared, by name, beside one model for all ("global") and one each ("local").
    rounds
        How many local updates a client carries out, about, with each of the usual methods.
    seeds
        From how many seeds each method trains in the end.
    seed
        Everything random.
    folder
        Where what is computed is kept: called again, it goes on from there.
    progress
        Is told what is about to be computed.
    """
    whole_number("rounds", rounds, 1)
    whole_number("seeds", seeds, 1)
    train, test = (data.train, data.test) if data.test is not None else data.train.split(seed=seed)
    usual = usual_methods(rounds, len(train))
    chosen = usual if methods is None else {m: usual[m] for m in (ONE_FOR_ALL, ONE_EACH)} | dict(methods)
    if len(chosen) < 3:
        raise SettingError("methods must name one, at least, that finds groups.")
    learners = usual_learners(train.spec.classes is not None) if learner is None else {"given": learner}
    of = contents(data.name, train, chosen, learners, rounds=rounds, seeds=seeds, seed=seed)
    kept = Kept(folder, of, progress)
    trial = Trial(train, seed, kept.tried)
    both = (ONE_FOR_ALL, ONE_EACH)
    tuned = {
        (model, method): trial.tuned(model, method, one, chosen[method])
        for model, one in learners.items()
        for method in both
    }
    model = min(learners, key=lambda name: min(tuned[name, method].loss for method in both))
    for method, algorithm in chosen.items():
        if (model, method) not in tuned:
            tuned[model, method] = trial.tuned(model, method, learners[model], algorithm)

    clients, held_out = Simulation(train), Simulation(test)
    judged: dict[str, list[_Judged]] = {}
    for method, algorithm in chosen.items():
        one = with_step_size(learners[model], tuned[model, method].step_size)
        judged[method] = [
            _judged(kept.found(method, number, algorithm, clients, one, seed + number), held_out)
            for number in range(seeds)
        ]
    tried = {method: tuned[model, method] for method in chosen}
    grouping = simplest({method: one for method, one in tried.items() if method not in both})
    of_all = with_step_size(learners[model], tuned[model, ONE_FOR_ALL].step_size)
    classifies = named(of_all.loss) in CLASSIFYING
    return Comparison(
        data.name,
        tuple(_row(method, judged, one, classifies) for method, one in tried.items()),
        min(tried, key=lambda method: tried[method].loss),
        grouping,
        kept.groups(
            lambda: with_smaller_steps(lambda one: groups(train, one, rounds=rounds, seed=seed), of_all)
        ),
        judged[grouping][0].found,
        model,
        _per_client(grouping, judged, held_out),
        differences(judged[grouping][0].found, train, seed),
    )


# -- what comes of it ----------------------------------------------------------------------------------------


class _Judged(NamedTuple):
    """What a method found from one seed, and what held-out examples say of it."""

    found: Clustering
    rows: pd.DataFrame  # by client: loss and accuracy


def _judged(found: Clustering, held_out: Simulation) -> _Judged:
    rows = found.evaluate(held_out, "train", personal=found.personal is not None).per_client
    return _Judged(found, rows.set_index("id"))


def _mean(judged: list[_Judged], measure: str) -> pd.Series:
    """Of each client, over seeds."""
    import pandas as pd  # slow to import

    mean: pd.Series = pd.concat([one.rows[measure] for one in judged], axis=1).mean(axis=1)
    return mean


def _row(method: str, judged: Mapping[str, list[_Judged]], tried: Tried, classifies: bool) -> Row:
    mine, measure = judged[method], "accuracy" if classifies else "loss"

    def over(other: str) -> Gain:
        more = (_mean(mine, measure) - _mean(judged[other], measure)).dropna().to_numpy()
        return Gain.of(more if classifies else -more)

    def mean(of: Callable[[Clustering], float]) -> float:
        return float(np.mean([of(one.found) for one in mine]))

    means = {name: [one.rows[name].mean() for one in mine] for name in ("loss", "accuracy")}
    clients = len(mine[0].found.ids)
    pairs = combinations([one.found.assignment for one in mine], 2)
    agreement = [adjusted_rand(a, b) for a, b in pairs if method not in (ONE_FOR_ALL, ONE_EACH)]
    return Row(
        method,
        mean(lambda found: found.k),
        float(np.mean(means["loss"])),
        float(np.mean(means["accuracy"])) if classifies else None,
        float(np.std(means[measure], ddof=1)) if len(mine) > 1 else 0.0,
        over(ONE_FOR_ALL),
        over(ONE_EACH),
        float(np.mean(agreement)) if agreement else None,
        tried.loss,
        step_size_of(mine[0].found.learner),
        mean(lambda found: found.history.total("updates") / clients),
        mean(lambda found: found.history.total("bytes_up") + found.history.total("bytes_down")),
        mean(lambda found: found.history.total("seconds")),
    )


def _per_client(grouping: str, judged: Mapping[str, list[_Judged]], held_out: Simulation) -> pd.DataFrame:
    """See `Comparison.per_client`."""
    import pandas as pd  # slow to import

    mine, found = judged[grouping], judged[grouping][0].found
    where = places(held_out.ids, found.ids)
    group = found.assignment[where]
    asked = held_out.with_learner(found.learner, trains=False)
    losses = np.asarray(asked.ask(MeasureLosses(found.models)).report.losses, float)
    at = np.arange(len(losses)), np.maximum(group, 0)
    own = losses[at]
    losses[at] = np.inf
    others = losses[:, found.sizes > 0].min(1)
    company = [_company(a.found.assignment, b.found.assignment) for a, b in combinations(mine, 2)]
    columns = {
        "client": held_out.ids,
        "group": group,
        "margin": np.where(np.isfinite(others), others - own, np.nan),
        "company": np.mean(company, axis=0)[where] if company else np.nan,
        "loss": own,
    }
    for name in (ONE_FOR_ALL, ONE_EACH):
        columns[name] = _mean(judged[name], "loss").reindex(held_out.ids).to_numpy()
    table: pd.DataFrame = pd.DataFrame(columns)[group >= 0]
    return table.reset_index(drop=True)


def _company(a: Int[np.ndarray, " clients"], b: Int[np.ndarray, " clients"]) -> Float[np.ndarray, " clients"]:
    """What share of those who are in a client's group one time or the other are there both times."""
    table = np.zeros((a.max() + 2, b.max() + 2))
    np.add.at(table, (a, b), 1)
    both = table[a, b]
    return np.asarray(both / (table.sum(1)[a] + table.sum(0)[b] - both))
