"""Several methods on one population, tuned alike.

Settings are chosen on validation examples: a fifth of each client's training examples, on which nothing is
trained meanwhile. Then every method trains on all training examples, from several seeds, and held-out
examples, which chose nothing, judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from coterie import keys, registry, storage
from coterie.algorithms import CFL, IFCA, SRFCA, Discover, Global, Local
from coterie.algorithms.algorithm import Algorithm
from coterie.clustering.result import Clustering, load
from coterie.data.federated import Federated
from coterie.data.shards import Shards, places
from coterie.errors import LearnerError, RunFolderError, SettingError, whole_number
from coterie.evaluate.comparison import ONE_EACH, ONE_FOR_ALL, Comparison, Row
from coterie.evaluate.differences import differences
from coterie.evaluate.groups import Gain, Groups, groups
from coterie.evaluate.metrics import adjusted_rand
from coterie.federation.simulation import Simulation
from coterie.learn.learner import Learner
from coterie.learn.local import SGD
from coterie.learn.losses import CLASSIFYING, named
from coterie.learn.tasks import MeasureLosses
from coterie.models import MLP, Linear

if TYPE_CHECKING:
    import pandas as pd

RATES = (0.03, 0.1, 0.3)  # step sizes that are tried in any case
FURTHER = 3  # how many more are tried where the best is the smallest or the largest, each a third or thrice
STEPS = 10  # of a local update
STARTS = 5  # of IFCA, of which the best goes on
PAIRED = 2000  # clients, beyond which methods that look at all pairs of them take minutes for each seed
MOST = 300  # clients on whom settings are chosen
SURE = 2  # standard errors, by which a method with more groups is to be better
FILE = "comparison.json"

Progress = Callable[[str], None]


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
    kept = _Kept(folder, _contents(data.name, train, chosen, learners, seeds, seed), progress)

    trial = _Trial(*_some(train, seed).split(seed=seed), seed, kept)
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
        one = _with_step_size(learners[model], tuned[model, method].step_size)
        judged[method] = [
            _judged(kept.found(method, number, algorithm, clients, one, seed + number), held_out)
            for number in range(seeds)
        ]
    tried = {method: tuned[model, method] for method in chosen}
    grouping = _simplest({method: one for method, one in tried.items() if method not in both})
    of_all = _with_step_size(learners[model], tuned[model, ONE_FOR_ALL].step_size)
    classifies = named(of_all.loss) in CLASSIFYING
    return Comparison(
        data.name,
        tuple(_row(method, judged, one, classifies) for method, one in tried.items()),
        min(tried, key=lambda method: tried[method].loss),
        grouping,
        kept.groups(lambda: _groups(train, of_all, rounds, seed)),
        judged[grouping][0].found,
        model,
        _per_client(grouping, judged, held_out),
        differences(judged[grouping][0].found, train, seed),
    )


# -- settings ------------------------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """What validation examples say of a method with some settings."""

    each: Float[np.ndarray, " clients"]  # losses; infinite where training failed
    groups: int
    step_size: float | None = None

    @property
    def loss(self) -> float:
        return float(self.each.mean())

    def as_good_as(self, best: _Tried) -> bool:
        """Whether chance may be all that the best one has ahead of it, client by client."""
        if not np.isfinite(self.loss):
            return False
        worse = self.each - best.each
        return bool(worse.mean() <= SURE * worse.std(ddof=1) / np.sqrt(len(worse)))


def _simplest(tried: Mapping[str, _Tried]) -> str:
    """Of what is as good as the best, that with the fewest groups."""
    best = min(tried.values(), key=lambda one: one.loss)
    good = [name for name, one in tried.items() if one is best or one.as_good_as(best)]
    return min(good, key=lambda name: (tried[name].groups, tried[name].loss))


class _Trial:
    """Trains on some clients' examples, and judges by others of theirs."""

    def __init__(self, fit: Shards, validation: Shards, seed: int, kept: _Kept) -> None:
        self._fit, self._validation = Simulation(fit), Simulation(validation)
        self._seed, self._kept = seed, kept

    def tuned(self, model: str, method: str, learner: Learner, algorithm: Algorithm[Any]) -> _Tried:
        """A method with the best step size, if it has one."""

        def tried(step_size: float | None) -> _Tried:
            with_it = _with_step_size(learner, step_size)
            said = f"{method}, {model}" + ("" if step_size is None else f", step size {step_size:g}")
            found = self._kept.tried(said, lambda: self._tried(algorithm, with_it))
            return found._replace(step_size=step_size)

        if not isinstance(getattr(learner.local, "lr", None), int | float):
            return tried(None)
        rates = {rate: tried(rate) for rate in RATES}
        for _ in range(FURTHER):
            best = min(rates, key=lambda rate: rates[rate].loss)
            if min(rates) < best < max(rates):
                break
            further = float(f"{best * 3 if best == max(rates) else best / 3:.2g}")
            rates[further] = tried(further)
        return min(rates.values(), key=lambda one: one.loss)

    def _tried(self, algorithm: Algorithm[Any], learner: Learner) -> _Tried:
        try:
            found = algorithm.fit(self._fit, learner, seed=self._seed)
            judged = found.evaluate(self._validation, "train", personal=found.personal is not None)
        except (LearnerError, SettingError):  # it diverged; or there are too few clients for it
            return _Tried(np.full(len(self._validation.ids), np.inf), 0)
        each = judged.per_client.set_index("id")["loss"].reindex(self._validation.ids).to_numpy(float)
        return _Tried(np.where(np.isfinite(each), each, np.inf), found.k)


def _with_step_size(learner: Learner, step_size: float | None) -> Learner:
    return learner if step_size is None else replace(learner, local=replace(learner.local, lr=step_size))  # type: ignore[type-var]


def _some(train: Shards, seed: int) -> Shards:
    """Clients with two examples or more, drawn where they are many."""
    may = np.flatnonzero(train.sizes >= 2)
    if len(may) < 2:
        raise SettingError("fewer than two clients have two examples or more: there is nothing to compare.")
    return train[may[keys.participants(seed, 0, train.tokens[may], MOST)]]


def _groups(train: Shards, learner: Learner, rounds: int, seed: int) -> Groups:
    """Whether there are groups, with smaller steps where half of the examples are too few for these."""
    for _ in range(FURTHER):
        try:
            return groups(train, learner, rounds=rounds, seed=seed)
        except LearnerError:  # it diverged
            if not isinstance(rate := getattr(learner.local, "lr", None), int | float):
                raise
            learner = _with_step_size(learner, rate / 3)
    return groups(train, learner, rounds=rounds, seed=seed)


# -- what is kept --------------------------------------------------------------------------------------------


class _Kept:
    """What was computed, in a folder if there is one."""

    def __init__(self, folder: str | Path | None, of: dict[str, Any], progress: Progress | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._tell = progress or (lambda what: None)
        self._known: dict[str, Any] = {"of": of, "tried": {}, "groups": None}
        if self._folder is None or not (self._folder / FILE).exists():
            return
        self._known = storage.read_json(self._folder / FILE)
        # JSON has no tuples
        unlike = [key for key, value in json.loads(json.dumps(of)).items() if self._known["of"][key] != value]
        if unlike:
            raise RunFolderError(
                f"{self._folder} holds another comparison (of another {unlike[0]}): choose another folder."
            )

    def tried(self, name: str, compute: Callable[[], _Tried]) -> _Tried:
        known = self._known["tried"]
        if name not in known:
            self._tell(f"choosing settings: {name}")
            one = compute()
            losses = [float(loss) if np.isfinite(loss) else None for loss in one.each]  # JSON has no infinity
            known[name] = {"each": losses, "groups": one.groups}
            self._write()
        each = np.array([np.inf if loss is None else loss for loss in known[name]["each"]])
        return _Tried(each, known[name]["groups"])

    def groups(self, compute: Callable[[], Groups]) -> Groups:
        if self._known["groups"] is None:
            self._tell("are there groups")
            self._known["groups"] = compute().to_json()
            self._write()
        return Groups.from_json(self._known["groups"])

    def found(
        self,
        method: str,
        number: int,
        algorithm: Algorithm[Any],
        clients: Simulation,
        learner: Learner,
        seed: int,
    ) -> Clustering:
        """What a method finds."""
        path = None if self._folder is None else self._folder / method / str(number)
        if path is not None and (path / "clustering.json").exists():
            return load(path, learner)
        self._tell(f"{method}, seed {seed}")
        found = algorithm.fit(clients, learner, seed=seed)
        if path is not None:
            found.save(path)
        return found

    def _write(self) -> None:
        if self._folder is not None:
            storage.write_json(self._folder / FILE, self._known)


def _contents(
    name: str,
    train: Shards,
    methods: Mapping[str, Algorithm[Any]],
    learners: Mapping[str, Learner],
    seeds: int,
    seed: int,
) -> dict[str, Any]:
    """What a comparison is of, as far as it can be written down."""
    sums = [[float(b.x.sum(dtype=float)), float(b.y.sum(dtype=float))] for b in train.buckets]
    whose = repr([train.ids.tolist(), train.sizes.tolist(), sums])
    return {
        "data": [name, storage.digest(whose.encode())],
        "methods": {m: registry.describe_algorithm(a) for m, a in methods.items()},
        "model": {m: registry.describe_learner(one) for m, one in learners.items()},
        "number of seeds": seeds,
        "seed": seed,
    }


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


def _row(method: str, judged: Mapping[str, list[_Judged]], tried: _Tried, classifies: bool) -> Row:
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
        tried.step_size,
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
