"""SR-FCA against Algorithms 1 to 4 of the paper, and what must hold whatever the data."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.buckets import many_buckets
from support.exchanges import Overheard, server_of
from support.in_process import InProcessGrid, apps_of
from support.observers import Between, Continue, Kill, Killed, Remember
from support.references_srfca import Training, sr_fca

import coterie as ct
from coterie import keys
from coterie.algorithms.algorithm import Round
from coterie.algorithms.distances import DISTANCES, L2
from coterie.errors import LearnerError, SettingError
from coterie.flower import FlowerFederation
from coterie.initialise.random import fresh_models
from coterie.models import stacked
from coterie.run import folder as folder_module
from coterie.run.folder import Recorder, RunFolder

# all tests have as many clients, examples at most, steps and rounds: every other number is another program
LR, STEPS, ROUNDS = 0.05, 4, 4
SIZES = [9, 16, 12, 10, 14, 9, 11, 13, 16, 12, 10, 15, 13, 12]  # most clients fill a part of what they have
DIM, CLIENTS, MOST, TRIM = 5, len(SIZES), max(SIZES), 0.25


def population(seed=0, k=3, noise=0.6, sizes=SIZES):
    return ct.data.mixed_regression(
        k=k, clients=len(sizes), examples=list(sizes), dim=DIM, noise=noise, scale=2.0, seed=seed
    )


def learner(**local):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(**{"lr": LR, "steps": STEPS, **local}))


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


def clients_of(shards):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in shards]


def on_one_device(shards):
    return ct.Simulation(shards, devices=jax.local_devices()[:1])  # what compiles faster


class Trace(Remember):
    """Watches a run for w_0, and for the clusters and their models after each pause."""

    @property
    def first(self):
        return matrix(stacked.take(self.moments[0].states.first, 0))[0]

    @property
    def assignments(self):
        return [np.array(moment.states.assignment[0]) for moment in self.stages]

    @property
    def stages(self):
        return [moment for moment in self.pauses if moment.new[-1].name in ("one-shot", "refine")]


def alone(algorithm, local):
    """For how many local updates clients train alone."""
    return None if algorithm.init_steps is None else -(-algorithm.init_steps // local.local.steps)


def expected(algorithm, shards, first, local, seed=0):
    """What the paper says comes of it: the models, and the clusters after each pause."""
    tokens = keys.tokens(shards.ids)

    def drawn(t, eligible):
        count = algorithm.participants(len(eligible))
        return [eligible[i] for i in keys.participants(seed, t, tokens[eligible], count)]

    how = Training(
        local.local.lr,
        algorithm.rounds,
        local.local.steps,
        local.local.decay,
        algorithm.average,
        algorithm.radius,
        algorithm.weight == "examples",
        drawn,
    )
    return sr_fca(
        clients_of(shards),
        first,
        algorithm.threshold,
        how,
        algorithm.min_size,
        algorithm.refines,
        algorithm.trim,
        algorithm.distance,
        alone(algorithm, local),
        algorithm.warm,
        algorithm.resample,
        algorithm.final_rounds,
        algorithm.final_proximal,
    )


def assert_as_in_the_paper(algorithm, shards, local, seed=0):
    """Run it both ways; returns the clusters after each pause."""
    watch, distance = Trace(), watched(algorithm.distance)
    watching = dataclasses.replace(algorithm, distance=distance)
    found = watching.fit(on_one_device(shards), local, seed=seed, observers=[watch])
    models, stages = expected(algorithm, shards, watch.first, local, seed)
    assert [a.tolist() for a in watch.assignments] == [stage.labels.tolist() for stage in stages]
    np.testing.assert_array_equal(found.assignment, stages[-1].labels)
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-3, atol=1e-4)
    assert found.k == len(models)
    refines = [event for event in found.history.events if event.name == "refine"]
    for event, stage, far in zip(refines, stages[1:], distance.far, strict=True):
        np.testing.assert_allclose(far, stage.far, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(np.array(event.details["apart"], float), stage.apart, rtol=1e-3, atol=1e-4)
        assert event.details["merged"] == stage.home
    return found, [stage.labels for stage in stages]


class Watched:
    """Keeps how far the clients of a run were from the clusters."""

    far = []  # noqa: RUF012 (a distance has no state, and those of all runs are equal)

    def to_clusters(self, *known):
        self.far.append(super().to_clusters(*known))
        return self.far[-1]


WATCHED = {name: type("Watched", (Watched, distance), {}) for name, distance in DISTANCES.items()}


def watched(name):
    Watched.far.clear()
    return WATCHED[name]()


# -- line by line -----------------------------------------------------------------------------------------

SETTINGS = {  # and on which data
    "as printed": (
        {"distance": "l2", "average": "gradients", "radius": 1.5, "threshold": 0.8, "trim": TRIM},
        [2, 5],
    ),
    "as run": ({"distance": "cross_loss", "threshold": 0.8, "trim": TRIM}, [0, 3]),
    "warm": ({"distance": "l2", "threshold": 0.5, "warm": True, "init_steps": 17, "min_size": 1}, [0, 7]),
    "warm gradients": (
        {"distance": "cross_loss", "average": "gradients", "threshold": 1.5, "warm": True},
        [3, 1],
    ),
    "half of the clients": (
        {"distance": "cross_loss", "threshold": 0.8, "participation": 0.5, "trim": 0.34},
        [0, 3],
    ),
    "by examples": ({"distance": "l2", "threshold": 0.8, "weight": "examples", "trim": TRIM}, [2, 5]),
    "half of the clients by examples": (
        {"distance": "cross_loss", "threshold": 0.8, "weight": "examples", "participation": 0.5},
        [0, 3],
    ),
    "other examples in each REFINE": (
        {"distance": "cross_loss", "threshold": 1.0, "trim": TRIM, "resample": True},
        [1, 2],
    ),
    "other examples, warm": ({"distance": "l2", "threshold": 0.7, "warm": True, "resample": True}, [1, 5]),
    "FedProx in the end": (
        {"distance": "l2", "threshold": 0.8, "trim": TRIM, "final_rounds": 4, "final_proximal": 1.5},
        [2, 5],
    ),
    "FedAvg in the end, warm": (
        {"distance": "cross_loss", "threshold": 0.8, "warm": True, "final_rounds": 3, "participation": 0.5},
        [0, 3],
    ),
}
EXAMPLES = {True: 2, False: 1}  # so many times as many, where each is used once


QUICK = ["as printed", "as run"]


@pytest.mark.parametrize(
    ("name", "several"),
    [*[(name, False) for name in QUICK], *[pytest.param(n, True, marks=pytest.mark.slow) for n in SETTINGS]],
)
def test_agrees_with_the_paper_line_by_line(name, several):
    settings, seeds = SETTINGS[name]
    algorithm = ct.SRFCA(rounds=ROUNDS, **settings)
    # the server takes one step where clients take several: a longer one, or nothing would be learned
    local = learner(lr=0.2, steps=1) if algorithm.average == "gradients" else learner(decay=0.95)
    numbers = set()
    for seed in seeds if several else seeds[:1]:
        sizes = [EXAMPLES[algorithm.resample] * n for n in SIZES]
        found, labels = assert_as_in_the_paper(algorithm, population(seed, sizes=sizes).train, local, seed)
        assert len(labels) == algorithm.refines + 1
        assert (found.assignment >= 0).all() and set(found.assignment) == set(range(found.k))
        numbers.add(found.k)
    assert (len(numbers) > 1) == several  # clusters: their number is found, and differs from data to data


def test_no_example_is_used_in_two_stages():
    algorithm = ct.SRFCA(rounds=2, resample=True, final_rounds=1)
    server = server_of(ct.Simulation(DATA.train), LOCAL)
    state = algorithm.state_of(fresh_models(server, server.start_key(0), 1), CLIENTS)
    alone = [next(algorithm.pause(server, state, done)).task.part.tolist() for done in (0, 2, 4)]
    assert alone == [[0, 3], [1, 3], [2, 3]]
    asks = [algorithm.ask(state, Round(jnp.asarray(t))).task for t in range(5)]
    for name in ("find_on", "train_on"):
        parts = [getattr(task, name).tolist() for task in asks]
        assert parts == [[1, 3]] * 2 + [[2, 3]] * 3  # the last are those of the final clusters


def test_the_final_rounds_are_told_and_resumed_like_others():
    algorithm = ct.SRFCA(rounds=ROUNDS, **SETTINGS["FedProx in the end"][0])
    watch, clients = Remember(), on_one_device(DATA.train)
    found = algorithm.fit(clients, LOCAL, seed=1, observers=[watch])
    last = 2 * ROUNDS
    assert algorithm.expected_rounds == len(found.history) == last + 4
    assert [(event.name, event.after) for event in found.history.events] == [
        ("one-shot", 0),
        ("refine", ROUNDS),
        ("refine", last),
        ("finish", last + 4),
    ]
    # before the last refine, before and amid what follows it
    for count in (last + 2, last + 3, last + 5):
        moment, records = watch.moments[count], [r for m in watch.moments[: count + 1] for r in m.new]
        again = algorithm.fit(clients, LOCAL, seed=1, observers=[Continue(moment, records)])
        np.testing.assert_array_equal(again.assignment, found.assignment)
        np.testing.assert_array_equal(matrix(again.models), matrix(found.models))
        assert told(again) == told(found)


# -- clients in places that we choose ---------------------------------------------------------------------

EXACT = learner(lr=0.25)


def placed(points, examples=(12, 14, MOST)):
    """Clients whose loss is |w - w_i|^2: a step of 1/4 takes them half of the way to w_i, where we put it.

    All distances are then known: w_i and w_j are |w_i - w_j| apart, and the square of that by cross loss.
    """
    xs, ys = [], []
    for i, point in enumerate(points):
        n = examples[i % len(examples)]
        x = np.sqrt(n) * np.linalg.qr(np.random.default_rng(i).standard_normal((n, DIM)))[0]
        xs.append(x)
        ys.append(x @ np.pad(np.asarray(point, float), (0, DIM - len(point))))
    return ct.Shards.from_lists(xs, ys)


def polygon(corners, side, axes, around):
    """A regular polygon in the plane of two axes, around a point."""
    radius, angles = side / (2 * np.sin(np.pi / corners)), 2 * np.pi * np.arange(corners) / corners
    points = np.tile(np.array(around, float), (corners, 1))
    points[:, axes] += radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return points.tolist()


def far(count):
    """A cluster that has nothing to do with the others."""
    return [(20.0, 0.1 * i) for i in range(count)]


# with a threshold of 1, by either distance
RINGS = [
    # two rings whose corners are 0.97 from the next, and at least 1.16 from each other's; their centres 0.3
    *polygon(5, 0.97, (0, 1), around=[0, 0, 0, 0, 0]),
    *polygon(5, 0.97, (2, 3), around=[0, 0, 0, 0, 0.3]),
    *far(4),
]
BRIDGE = [
    (0, 0), (0, 0.3), (0.9, 0), (1.8, 0),  # a cluster,
    (2.7, 0),  # a client at its end that is nearer to the centre of
    (4.0, 0), (4.3, 0), (4.0, 0.3),  # this one, none of which is near it,
    (0, -1.2),  # and one that nobody is near
    *far(5),
]  # fmt: skip
ERODED = [
    (-1.94, 0), (-0.97, 0), (0, 0),  # three clients, the last of which goes to the centre of the ring
    *polygon(7, 0.93, (1, 2), around=[0.3, 0, 0, 0, 0]),
    *far(4),
]  # fmt: skip


def events(found):
    return [event.details["merged"] for event in found.history.events if event.name == "refine"]


@pytest.fixture(scope="module", params=["l2", "cross_loss"])
def exact(request):
    return ct.SRFCA(rounds=ROUNDS, threshold=1.0, distance=request.param, min_size=3, trim=TRIM)


def test_a_cluster_that_one_shot_splits_is_merged(exact):
    found, (before, first, last) = assert_as_in_the_paper(exact, placed(RINGS), EXACT)
    assert before.tolist() == [0] * 5 + [1] * 5 + [2] * 4
    assert first.tolist() == last.tolist() == [0] * 10 + [1] * 4
    assert events(found) == [[0, 0, 1], [0, 1]]
    one_shot, refine, again, _ = found.history.events
    assert "3 clusters." in one_shot.text and "3 clusters became 2." in refine.text
    assert "became" not in again.text


def test_a_client_in_the_wrong_cluster_moves_and_one_in_none_joins(exact):
    found, (before, first, last) = assert_as_in_the_paper(exact, placed(BRIDGE), EXACT)
    assert before.tolist() == [0] * 5 + [1] * 3 + [-1] + [2] * 5
    assert first.tolist() == last.tolist() == [0] * 4 + [1] * 4 + [0] + [2] * 5
    one_shot, refine, _, _ = found.history.events
    assert one_shot.text.endswith("; 3 clusters, and 1 client in none of them yet.")
    assert "1 client moved to another cluster" in refine.text
    assert one_shot.sizes == [[5, 3, 5]] and refine.sizes == [[5, 4, 5]]
    assert refine.moved == [[[4, 1], [8, 0]]]


def test_clients_of_a_cluster_that_has_become_too_small_join_the_nearest(exact):
    found, (before, first, last) = assert_as_in_the_paper(exact, placed(ERODED), EXACT)
    assert before.tolist() == [0] * 3 + [1] * 7 + [2] * 4
    assert first.tolist() == [-1] * 2 + [0] * 8 + [1] * 4  # they wait for the next REFINE
    assert last.tolist() == [0] * 10 + [1] * 4
    assert "2 clients were in clusters of fewer than 3." in found.history.events[1].text
    assert found.history.events[1].details["nearest"] == {"0": 0, "1": 0}  # if it were the last: see below


def test_in_the_last_refine_clients_of_a_cluster_that_is_too_small_join_the_nearest_at_once():
    algorithm = ct.SRFCA(rounds=ROUNDS, refines=1, threshold=1.0, distance="l2", min_size=3, trim=TRIM)
    _, (_, last) = assert_as_in_the_paper(algorithm, placed(ERODED), EXACT)
    assert last.tolist() == [0] * 10 + [1] * 4


# -- what it finds ----------------------------------------------------------------------------------------

# of these data both make three clusters, the true ones, and compile the same programs again and again
DATA = ct.data.mixed_regression(k=3, clients=CLIENTS, examples=MOST, dim=DIM, noise=0.3, scale=2.5, seed=1)
LOCAL = learner(lr=0.1)
PLAIN = {
    name: ct.SRFCA(rounds=ROUNDS, distance=name, threshold=1.0, min_size=3, trim=TRIM)
    for name in ("l2", "cross_loss")
}
BOTH = pytest.mark.parametrize("name", PLAIN)


@pytest.fixture(scope="module")
def plain():
    clients = on_one_device(DATA.train)
    return {name: algorithm.fit(clients, LOCAL, seed=1) for name, algorithm in PLAIN.items()}


@BOTH
def test_what_is_returned_is_what_is_evaluated(name, plain):
    found = plain[name]
    assert found.k == 3 and ct.metrics.misclustering(found.assignment, DATA.truth) == 0
    np.testing.assert_array_equal(found.ids, DATA.train.ids)
    np.testing.assert_array_equal(found.history.assignments()[-1], found.assignment)
    assert found.history.events[-1].sizes == [found.sizes.tolist()]
    models = matrix(found.models)
    losses = [[np.mean((y - x @ w) ** 2) for w in models] for x, y in clients_of(DATA.train)]
    np.testing.assert_allclose(found.losses, losses, rtol=1e-4)
    result = found.evaluate(DATA.test)
    own = [
        np.mean((y - x @ models[c]) ** 2)
        for (x, y), c in zip(clients_of(DATA.test), found.assignment, strict=True)
    ]
    assert result.chosen_by == "train" and len(result.per_client) == CLIENTS
    np.testing.assert_allclose(result.per_client["loss"], own, rtol=1e-4)


@BOTH
def test_each_stage_is_told(name, plain):
    history = plain[name].history
    assert [(event.name, event.after) for event in history.events] == [
        ("one-shot", 0),
        ("refine", ROUNDS),
        ("refine", 2 * ROUNDS),
        ("finish", 2 * ROUNDS),
    ]
    assert [round_.round for round_ in history] == list(range(2 * ROUNDS))
    assert history.events[0].details["threshold"] == 1
    assert sum(history.events[0].details["histogram"]["counts"]) == CLIENTS * (CLIENTS - 1) // 2
    for event in history.events:
        json.dumps(event.details, allow_nan=False)
        assert event.seconds > 0


def test_an_automatic_threshold_is_told_with_its_reason():
    found = ct.SRFCA(rounds=ROUNDS, trim=TRIM).fit(on_one_device(placed(RINGS[:5] + far(9))), EXACT)
    assert found.k == 2 and found.sizes.tolist() == [5, 9]
    told = found.history.events[0]
    low, high = told.details["gap"]
    assert low == pytest.approx(0.97**2, rel=0.01) and high > 300
    assert told.details["threshold"] == pytest.approx((low + high) / 2)
    assert told.details["reason"] in told.text and "gap" in told.details["reason"]


def test_a_distance_of_ones_own():
    @dataclasses.dataclass(frozen=True)
    class Twice(L2):
        def between_clients(self, own):
            return 2 * super().between_clients(own)

        def between_clusters(self, clusters):
            return 2 * super().between_clusters(clusters)

    once, twice = (
        ct.SRFCA(rounds=ROUNDS, min_size=3, trim=TRIM, **settings).fit(on_one_device(placed(ERODED)), EXACT)
        for settings in ({"distance": "l2", "threshold": 1.0}, {"distance": Twice(), "threshold": 2.0})
    )
    np.testing.assert_array_equal(once.assignment, twice.assignment)
    np.testing.assert_allclose(matrix(once.models), matrix(twice.models), rtol=1e-5)


# -- what must not matter ---------------------------------------------------------------------------------


def assert_the_same(one, other, order=None, **close):
    """The same clusters and models, whatever the clusters' numbers and the order of the clients."""
    close = {"rtol": 1e-4, "atol": 1e-5, **close}
    order = np.arange(len(one.ids)) if order is None else np.asarray(order)
    assert list(map(str, one.ids[order])) == list(map(str, other.ids))
    assert one.k == other.k
    own, others = (matrix(found.models)[found.assignment] for found in (one, other))
    np.testing.assert_allclose(own[order], others, **close)
    assert ct.metrics.misclustering(one.assignment[order], other.assignment) == 0


@pytest.mark.parametrize(("name", "participation"), [("l2", 0.6), ("cross_loss", 1.0)])
def test_the_order_of_the_clients_does_not_matter(name, participation, plain):
    algorithm = dataclasses.replace(PLAIN[name], participation=participation)
    found = plain[name] if participation == 1 else algorithm.fit(on_one_device(DATA.train), LOCAL, seed=1)
    order = np.random.default_rng(3).permutation(CLIENTS)
    shuffled = algorithm.fit(on_one_device(DATA.train[order]), LOCAL, seed=1)
    np.testing.assert_array_equal(shuffled.ids, order)
    assert_the_same(found, shuffled, order)
    assert shuffled.assignment[0] == 0  # clusters are numbered by their first clients


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param("cross_loss", {}, marks=pytest.mark.slow),  # on three devices
        pytest.param("l2", {"batch": 1}, marks=pytest.mark.slow),
        pytest.param("cross_loss", {"resident": False}, marks=pytest.mark.slow),
    ],
)
def test_how_clients_are_computed_does_not_matter(name, how, plain):
    again = PLAIN[name].fit(ct.Simulation(DATA.train, **how), LOCAL, seed=1)
    assert_the_same(plain[name], again)
    assert [e.moved for e in again.history.events] == [e.moved for e in plain[name].history.events]


@pytest.mark.slow
@many_buckets
def test_clients_of_very_different_sizes_count_the_same():
    # in several buckets, each of which is padded to its largest client
    data = population(0, sizes=[40, *SIZES[1:]])
    assert len(data.train.buckets) == 2
    assert_as_in_the_paper(ct.SRFCA(rounds=2, distance="cross_loss", threshold=1.0), data.train, learner())


# -- who does not answer ----------------------------------------------------------------------------------


def partly(**silent):
    """The clients of `DATA`, of which some never answer some tasks."""
    return Overheard(on_one_device(DATA.train), lambda number, name: silent.get(name, []))


EITHER = pytest.mark.parametrize(("name", "warm"), [("l2", True), ("cross_loss", False)])


@EITHER
def test_a_client_that_misses_the_first_stage_changes_nothing_for_the_others(name, warm):
    algorithm, others = dataclasses.replace(PLAIN[name], warm=warm), np.arange(CLIENTS) != 3
    watch = Trace()
    found = algorithm.fit(partly(TrainAlone=[3]), LOCAL, seed=1, observers=[watch])
    models, stages = expected(algorithm, DATA.train[np.flatnonzero(others)], watch.first, LOCAL)
    np.testing.assert_array_equal(found.assignment[others], stages[-1].labels)
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-3, atol=1e-4)
    # it takes no part in any round; in the end it is given the model that fits it best
    assert all(assignment[3] == -1 for assignment in watch.assignments)
    assert {round_.asked for round_ in found.history} == {CLIENTS - 1}
    assert found.assignment[3] == np.argmin(found.losses[3])


def test_a_client_that_says_nothing_of_losses_keeps_its_place():
    # it tells nothing of clients' models, so that it is in no cluster, and nothing in the end
    found = PLAIN["cross_loss"].fit(partly(MeasureLosses=[3]), LOCAL, seed=1)
    others = np.arange(CLIENTS) != 3
    assert found.assignment[3] == -1 and np.isnan(found.losses[3]).all()
    assert ct.metrics.misclustering(found.assignment[others], DATA.truth[others]) == 0


@EITHER
def test_a_client_whose_own_training_diverges_ruins_nothing(name, warm):
    x, y = map(list, zip(*DATA.train, strict=True))
    x[3] = x[3] * 1000
    clients, others = on_one_device(ct.Shards.from_lists(x, y)), np.arange(CLIENTS) != 3
    algorithm, watch = dataclasses.replace(PLAIN[name], warm=warm), Trace()
    found = algorithm.fit(clients, LOCAL, seed=1, observers=[watch])
    assert np.isfinite(matrix(found.models)).all()
    assert ct.metrics.misclustering(found.assignment[others], DATA.truth[others]) == 0
    assert watch.assignments[-1][3] == -1  # its own model is none
    assert found.assignment[3] == np.argmin(found.losses[3])


def test_nobody_is_drawn_who_is_in_no_cluster():
    algorithm = ct.SRFCA(rounds=ROUNDS, participation=0.7)
    server = server_of(on_one_device(DATA.train), LOCAL)
    state = algorithm.state_of(fresh_models(server, server.start_key(0), 1), CLIENTS)
    for lost in ([], [8], [0, 1, 2, 3]):
        labels = jnp.zeros(CLIENTS, jnp.int32).at[jnp.array(lost, int)].set(-1)
        drawn = algorithm.draw(server, dataclasses.replace(state, assignment=labels), range(20)).clients
        assert drawn.shape == (20, round(0.7 * (CLIENTS - len(lost))))
        assert set(drawn.flat) == set(range(CLIENTS)) - set(lost)


# -- interrupted, saved -----------------------------------------------------------------------------------


def told(found):
    """All that a run tells but for the time it took."""
    lines = [json.loads(record.to_line()) for record in found.history.records]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize(
    ("name", "every"), [pytest.param("l2", 0, marks=pytest.mark.slow), ("cross_loss", 2.5)]
)
def test_interrupted_at_any_moment_it_ends_the_same(name, every, plain, tmp_path, monkeypatch):
    """Also between the last round of a stage and what follows it; the state is kept now, or now and then."""
    clock = iter(range(10**6))
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: next(clock))
    whole = plain[name]

    def recorder(path):
        return Recorder(RunFolder(path), every=every)

    # the start, and all but the last exchange, which is made again
    happened = 1 + len(whole.history.records) - 1
    assert happened == 1 + 1 + ROUNDS + 1 + ROUNDS + 1
    clients = on_one_device(DATA.train)
    for moment in range(1, happened + 1):
        path = tmp_path / str(moment)
        with pytest.raises(Killed):
            PLAIN[name].fit(clients, LOCAL, seed=1, observers=[recorder(path), Kill(moment)])
        again = PLAIN[name].fit(clients, LOCAL, seed=1, observers=[recorder(path)])
        np.testing.assert_array_equal(again.assignment, whole.assignment)
        np.testing.assert_array_equal(matrix(again.models), matrix(whole.models))
        assert told(again) == told(whole), f"interrupted after {moment}"
        assert len((path / "rounds.jsonl").read_text().splitlines()) == len(whole.history.records) - 1


# -- what travels -----------------------------------------------------------------------------------------

MODEL = 4 * DIM


@BOTH
def test_history_counts_what_travels(name, plain):
    history = plain[name].history
    one_shot, *refines, finish = history.events
    # the model; back, the model and the loss before each round
    down, up = CLIENTS * MODEL, CLIENTS * (MODEL + ROUNDS * 4)
    if name == "cross_loss":  # all models to all clients, and a number for each
        down, up = down + CLIENTS * CLIENTS * MODEL, up + CLIENTS * CLIENTS * 4
    assert (one_shot.asks, one_shot.bytes_down, one_shot.bytes_up) == (1 + (name == "cross_loss"), down, up)
    for event in refines:
        if name == "cross_loss":  # three cluster models to all, and three numbers back
            assert (event.asks, event.bytes_down, event.bytes_up) == (
                1,
                CLIENTS * 3 * MODEL,
                CLIENTS * 3 * 4,
            )
        else:
            assert (event.asks, event.bytes_down, event.bytes_up) == (0, 0, 0)
    # the three models to all, to tell the loss under each
    assert (finish.asks, finish.bytes_down, finish.bytes_up) == (1, CLIENTS * 3 * MODEL, CLIENTS * 3 * 4)
    for round_ in history:
        assert round_.bytes_down == CLIENTS * (MODEL + 4 + 4)  # one model, the round, which model
        assert round_.bytes_up == CLIENTS * (MODEL + 4 + 4)  # the model, its loss, which model
        assert round_.bytes_spared == CLIENTS * 2 * MODEL
    assert history.total("bytes_up") == sum(r.bytes_up for r in [*history, *history.events])


class Messages:
    """A run over Flower of which every message was kept."""

    def __init__(self, algorithm, data):
        self.grid = InProcessGrid(apps_of(LOCAL, data))
        federation = FlowerFederation(self.grid, min_clients=len(data.train), poll=0.001)
        self.found = algorithm.fit(federation, LOCAL, seed=1)

    def letters(self):
        """For each client: what it was asked, and what it answered, exchange by exchange."""
        for node in self.grid.nodes.values():
            asked = [m.content for m in node.heard if m.metadata.message_type == "query.ask"]
            yield list(zip(asked, node.said[-len(asked) :], strict=True))


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in PLAIN])
def messages(request):
    return request.param, Messages(PLAIN[request.param], DATA)


def models_in(record):
    """The models that a message holds, as rows."""
    rows = [array.numpy().reshape(-1, DIM) for name, array in record.items() if "weight" in name]
    return np.concatenate([np.zeros((0, DIM), np.float32), *rows])


def test_the_tasks_of_a_run_come_in_order(messages):
    name, run = messages
    look = ["MeasureLosses"] if name == "cross_loss" else []
    rounds = ["ChooseAndTrain"] * ROUNDS
    for letters in run.letters():
        assert [ask["ask"]["task"] for ask, _ in letters] == [
            "TrainAlone",
            *look,
            *(rounds + look) * 2,
            "MeasureLosses",  # the last one, under the models that are returned
        ]


def test_losses_travel_as_numbers(messages):
    (name, run), seen = messages, 0
    for letters in run.letters():
        for ask, answer in letters:
            if ask["ask"]["task"] != "MeasureLosses":
                continue
            sent = len(models_in(ask["everybody"]))
            (reply,) = answer.values()
            assert set(reply) == {"report/losses"}
            assert reply["report/losses"].numpy().size == sent
            assert len(ask["each"]) == 0
            seen += 1
    assert seen == CLIENTS * (4 if name == "cross_loss" else 1)


def test_whose_models_clients_are_sent(messages):
    """A client's own model is sent to the others once, to compare it, or not at all."""
    name, run = messages
    everybody = list(run.letters())
    own = [models_in(letters[0][1]["reply"]) for letters in everybody]
    assert all(len(model) == 1 for model in own)
    final = matrix(run.found.models)
    for letters in everybody:
        times = np.array(
            [
                [int((models_in(ask["everybody"]) == model).all(axis=1).sum()) for model in own]
                + [int((models_in(ask["each"]) == model).all(axis=1).sum()) for model in own]
                for ask, _ in letters
            ]
        )
        by_model = times[:, :CLIENTS] + times[:, CLIENTS:]
        if name == "l2":
            assert (by_model == 0).all()
        else:
            assert (by_model[1] == 1).all() and (by_model[[0, *range(2, len(letters))]] == 0).all()
        # in a round it is sent the model of its cluster alone, and in the end those of all clusters
        assert all(
            len(models_in(ask["everybody"])) == 1
            for ask, _ in letters
            if ask["ask"]["task"] == "ChooseAndTrain"
        )
        np.testing.assert_allclose(models_in(letters[-1][0]["everybody"]), final, rtol=1e-6)


@pytest.mark.slow
def test_a_client_that_joins_late_takes_the_model_that_fits_it_best(exact):
    shards = placed(BRIDGE, examples=[MOST])
    algorithm, late = exact, len(shards) - 1
    apps = apps_of(EXACT, ct.Federated(train=shards))
    grid = InProcessGrid(apps[:late])
    watch, joins = Trace(), Between({2: lambda: len(grid.nodes) > late or grid.join(apps[late])})
    federation = FlowerFederation(grid, min_clients=late, poll=0.001)
    found = algorithm.fit(federation, EXACT, seed=1, observers=[watch, joins])
    models, stages = expected(algorithm, shards[np.arange(late)], watch.first, EXACT)
    assert [len(a) for a in watch.assignments] == [late, late + 1, late + 1]
    assert watch.assignments[-1][late] == -1
    assert found.assignment[late] == np.argmin(found.losses[late]) == found.assignment[late - 1]
    assert "fewer than" not in found.history.events[-2].text  # that is not why it is in none
    # the others are compared and moved as if it were not there
    assert [a[:late].tolist() for a in watch.assignments] == [stage.labels.tolist() for stage in stages]
    assert (stages[0].labels[4], stages[1].labels[4]) == (0, 1)
    np.testing.assert_allclose(matrix(found.models), models, rtol=1e-3, atol=1e-4)


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threshold": "many"}, "threshold must be 'auto', a distance, or a share"),
        ({"threshold": -1.0}, "threshold must be"),
        ({"threshold": float("inf")}, "threshold must be"),
        ({"threshold": None}, "threshold must be"),
        ({"distance": "cosine"}, "distance must be 'cross_loss' or 'l2', not 'cosine'"),
        ({"distance": 3}, "distance must be"),
        ({"distance": None}, "distance must be"),
        ({"min_size": 0}, "min_size must be from 1 to the number of clients, which is 14, not 0"),
        ({"min_size": 15}, "min_size must be from 1 to the number of clients, which is 14, not 15"),
        ({"refines": 0}, "refines must be at least 1, not 0"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"init_steps": 0}, "init_steps must be at least 1, not 0"),
        ({"radius": 0.0}, "radius must be positive, not 0"),
        ({"radius": -1.0}, "radius must be positive"),
        ({"final_rounds": -1}, "final_rounds must be at least 0, not -1"),
        ({"final_proximal": -0.1, "final_rounds": 2}, "final_proximal must be at least 0, not -0.1"),
        ({"final_proximal": 0.1}, "final_proximal is about further rounds: say with final_rounds how many"),
        (
            {"resample": True, "refines": MOST},
            "for every REFINE of each client, 17 in all; client 0 has 16",
        ),
        ({"trim": 0.5}, r"below 0\.5, not 0\.5"),
        ({"trim": -0.1}, r"below 0\.5, not -0\.1"),
        ({"participation": 1.5}, "participation"),
        ({"weight": "money"}, "weight"),
        ({"average": "both"}, "average"),
        ({"threshold": 1e-6}, r"no 2 clients are within threshold=1e-06 of each other: raise it .*apart"),
        ({"threshold": 0.8, "min_size": 14}, "no 14 clients are within"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(SettingError, match=words) as raised:
        ct.SRFCA(**{"rounds": ROUNDS, "distance": "l2", **change}).fit(
            on_one_device(DATA.train), LOCAL, seed=1
        )
    assert "\n" not in str(raised.value) and str(raised.value).endswith(".")


def test_a_proximal_term_that_would_be_ignored_is_refused():
    algorithm = ct.SRFCA(rounds=3, average="gradients", final_rounds=2, final_proximal=0.1)
    with pytest.raises(SettingError, match="final_proximal would be ignored with average='gradients'"):
        algorithm.fit(DATA.train, learner(steps=1))


@BOTH
def test_divergence_is_said_and_not_returned(name):
    with pytest.raises(LearnerError, match="diverged where clients trained alone: lower the learning rate"):
        PLAIN[name].fit(on_one_device(DATA.train), learner(lr=1e10))
