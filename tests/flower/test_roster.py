"""Who takes part: late joiners, nodes that come back, two of a name, and those that do not fit."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from support.in_process import InProcessGrid, app_of
from support.observers import Between
from support.references import ifca, loss

import coterie as ct
from coterie import keys
from coterie.data.shards import Shards
from coterie.errors import FederationError
from coterie.flower import FlowerFederation, roster, wire
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import Recorder, RunFolder

NAMES = ["b2", "b10", "c", "d", "a"]  # the last one joins late, where its name would come first
RAW = ct.data.mixed_regression(clients=5, k=2, dim=3, examples=12, seed=4)
EXAMPLES = list(RAW.train)
LR, STEPS = 0.05, 2
LEARNER = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=LR, steps=STEPS))
START = np.array([[0.5, -0.2, 0.1], [-0.5, 0.3, 0.2]], np.float32)


def shards(name, examples=None):
    x, y = EXAMPLES[NAMES.index(name)] if examples is None else examples
    return Shards.from_lists([x], [y], [name])


def app(name, examples=None):
    return app_of(LEARNER, shards(name, examples))


def grid_of(*names):
    return InProcessGrid([app(name) for name in names])


def federation(grid, **settings):
    usual = {"min_clients": 2, "poll": 0.001, "wait": 20, "deadline": 60}
    return FlowerFederation(grid, **(usual | settings))


def matrix(models):
    return np.asarray(models.layers[0].weight)[:, 0, :]


def agrees(found, names, participants):
    """The result is that of the paper's algorithm with those clients, at those positions."""
    clients = [EXAMPLES[NAMES.index(name)] for name in names]
    thetas, _, _ = ifca(clients, START, LR, STEPS, participants)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    assert found.ids.tolist() == list(names)
    chosen = [int(np.argmin([loss(theta, x, y) for theta in thetas])) for x, y in clients]
    assert found.assignment.tolist() == chosen
    assert [r.answered for r in found.history] == [len(members) for members in participants]


FOUR, FIVE = [0, 1, 2, 3], [0, 1, 2, 3, 4]


# -- names ------------------------------------------------------------------------------------------------


def named(names):
    data = EXAMPLES[0]
    grid = InProcessGrid([app_of(LEARNER, shards(name, data), name=name) for name in names])
    return federation(grid, min_clients=len(names)).ids.tolist()


@pytest.mark.parametrize(
    "names, ordered",
    [
        (["client-10", "client-9", "client-2"], ["client-2", "client-9", "client-10"]),
        (["10", "9", "100", "0"], ["0", "9", "10", "100"]),
        (["b", "a", "7", "a1", "a10", "a2"], ["7", "a", "a1", "a2", "a10", "b"]),
        (["x1y10", "x1y9", "x01y8"], ["x01y8", "x1y9", "x1y10"]),
        (["²", "5²", "ward 3①", "a"], ["5²", "a", "ward 3①", "²"]),  # figures, but no digits
        (["Zürich", "Genf", "Bern 2", "Bern 10"], ["Bern 2", "Bern 10", "Genf", "Zürich"]),
    ],
)
def test_clients_are_in_the_natural_order_of_their_names(names, ordered):
    assert named(names) == ordered
    assert named(names[::-1]) == ordered


@pytest.mark.slow
def test_the_order_of_the_nodes_changes_nothing():
    algorithm = ct.IFCA(k=2, rounds=3, n_init=2, participation=0.6)
    first, *others = (
        algorithm.fit(federation(grid_of(*names), min_clients=5), LEARNER, seed=3)
        for names in (NAMES, NAMES[::-1], [*NAMES[2:], *NAMES[:2]])
    )
    assert first.ids.tolist() == ["a", "b2", "b10", "c", "d"]
    for other in others:
        assert other.ids.tolist() == first.ids.tolist()
        np.testing.assert_array_equal(other.assignment, first.assignment)
        np.testing.assert_allclose(matrix(other.models), matrix(first.models), rtol=1e-6, atol=1e-6)
        assert other.history.assignments().tolist() == first.history.assignments().tolist()


# -- late -------------------------------------------------------------------------------------------------


def test_a_client_that_joins_late_takes_part_from_the_round_after_it_is_known():
    grid = grid_of(*NAMES[:4])
    happen = {1: lambda: grid.join(app("a"))}
    found = ct.IFCA(k=2, rounds=4, init=START).fit(federation(grid), LEARNER, observers=[Between(happen)])
    # in round 1 it is greeted, behind the others it is let in
    agrees(found, NAMES, [FOUR, FOUR, FIVE, FIVE])
    assert [r.asked for r in found.history] == [4, 4, 5, 5]
    steps = found.history.assignments()
    assert steps.shape == (4, 5)
    assert steps[:2, 4].tolist() == [-1, -1] and (steps[2:, 4] >= 0).all()
    assert [sum(r.sizes) for r in found.history] == [4, 4, 5, 5]
    assert [kind for kind, _ in grid.exchanges].count(wire.HELLO) == 2


def test_a_late_client_counts_as_one_of_those_who_may_be_drawn():
    grid = grid_of(*NAMES[:4])
    happen = {1: lambda: grid.join(app("a"))}
    algorithm = ct.IFCA(k=2, rounds=6, init=START, participation=0.75)
    found = algorithm.fit(federation(grid), LEARNER, seed=1, observers=[Between(happen)])
    drawn = [
        keys.participants(1, t, keys.tokens(NAMES[:count]), round(0.75 * count)).tolist()
        for t, count in enumerate([4, 4, 5, 5, 5, 5])
    ]
    assert any(4 in members for members in drawn)
    agrees(found, NAMES, drawn)


def test_local_training_is_one_exchange_that_nobody_can_join_later():
    grid = grid_of(*NAMES[:4])
    grid.before_push = lambda kind: kind == wire.ASK and grid.join(app("a"))
    found = ct.Local(rounds=4).fit(federation(grid), LEARNER, seed=0)
    assert found.ids.tolist() == NAMES[:4] and found.assignment.tolist() == FOUR
    assert [r.answered for r in found.history] == [4, 4, 4, 4]
    assert grid.asks() == 1


def test_a_client_that_joins_one_run_is_there_from_the_beginning_of_the_next():
    grid = grid_of(*NAMES[:4])
    here = federation(grid)
    happen = {1: lambda: grid.join(app("a"))}
    ct.IFCA(k=2, rounds=2, init=START).fit(here, LEARNER, observers=[Between(happen)])
    found = ct.Local(rounds=2).fit(here, LEARNER)
    assert [r.answered for r in found.history] == [5, 5]
    assert found.ids.tolist() == NAMES


def test_a_stranger_that_never_says_who_it_is_holds_nobody_up():
    grid = grid_of(*NAMES[:4])

    def joins():
        grid.nodes[grid.join(app("a"))].silent = True

    found = ct.IFCA(k=2, rounds=4, init=START).fit(federation(grid), LEARNER, observers=[Between({1: joins})])
    agrees(found, NAMES[:4], [FOUR] * 4)
    assert all(r.missing == {} for r in found.history)
    assert len(grid.nodes[5].heard) == 1  # it is not greeted again and again


def test_a_node_that_could_not_say_who_it_is_is_greeted_again(monkeypatch):
    monkeypatch.setattr(roster, "AGAIN", 0.02)
    grid = grid_of(*NAMES)
    grid.nodes[5].twist = lambda content: wire.refusal_records("the file is not there yet.")
    happen = {1: lambda: setattr(grid.nodes[5], "twist", None)}
    found = ct.IFCA(k=2, rounds=12, init=START).fit(
        federation(grid, poll=0.02), LEARNER, observers=[Between(happen)]
    )
    assert found.ids.tolist() == NAMES
    assert found.history[0].asked == 4 and found.history[11].asked == 5


# -- gone and back ----------------------------------------------------------------------------------------


def test_a_node_that_comes_back_under_another_number_is_the_same_client():
    grid = grid_of(*NAMES[:4])

    def restarts():
        grid.nodes[2].online = False
        assert grid.join(app("b10")) == 5

    found = ct.IFCA(k=2, rounds=4, init=START).fit(
        federation(grid), LEARNER, observers=[Between({1: restarts})]
    )
    participants = [[i for i in FOUR if NAMES[i] not in sum(r.missing.values(), ())] for r in found.history]
    assert participants[2:] == [FOUR, FOUR]
    agrees(found, NAMES[:4], participants)
    asked = [nodes for kind, nodes in grid.exchanges if kind == wire.ASK]
    assert asked[0] == [1, 2, 3, 4] and asked[-1] == [1, 3, 4, 5]


def test_a_node_that_holds_another_clients_data_by_now_is_not_taken_for_the_first():
    grid = grid_of(*NAMES[:4])
    happen = {1: lambda: setattr(grid.nodes[2], "app", app("a"))}
    found = ct.IFCA(k=2, rounds=5, init=START).fit(federation(grid), LEARNER, observers=[Between(happen)])
    without = [0, 2, 3]
    participants = [FOUR, without, without, [0, 2, 3, 4], [0, 2, 3, 4]]
    missing = [r.missing for r in found.history]
    assert missing[0] == {}
    assert missing[1] == {"this node holds another client's data now": ("b10",)}
    assert missing[2:] == [{"not connected": ("b10",)}] * 3
    thetas, last, _ = ifca(EXAMPLES, START, LR, STEPS, participants)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    assert found.ids.tolist() == NAMES
    assert found.assignment[1] == last[1]


def test_of_two_nodes_of_one_name_the_second_is_not_let_in_while_the_first_is_there():
    grid = grid_of(*NAMES[:4])
    second = grid.join(app("c", EXAMPLES[4]))
    happen = {
        2: lambda: setattr(grid.nodes[3], "online", False),  # the first leaves
        3: lambda: setattr(grid.nodes[3], "online", True),  # and comes back, too late
    }
    found = ct.IFCA(k=2, rounds=4, init=START).fit(federation(grid), LEARNER, observers=[Between(happen)])
    assert found.ids.tolist() == NAMES[:4]
    asked = [nodes for kind, nodes in grid.exchanges if kind == wire.ASK]
    assert asked == [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 4, second], [1, 2, 4, second], [1, 2, 4, second]]


def test_who_cannot_take_part_is_told_of_once_even_if_enough_others_can(caplog):
    grid = grid_of("c", "d", "c")
    grid.join(app("a", MISFITS["more features"][0]))
    with caplog.at_level("WARNING"):
        ct.IFCA(k=2, rounds=4, init=START).fit(federation(grid), LEARNER)
    told = [record.getMessage() for record in caplog.records if "cannot take part" in record.getMessage()]
    assert len(told) == 2
    assert any("two nodes say that they are client 'c'" in sentence for sentence in told)
    assert any("client 'a' has examples of" in sentence for sentence in told)


# -- those that do not fit --------------------------------------------------------------------------------


X, Y = EXAMPLES[4]
MISFITS = {
    "more features": ((np.concatenate([X, X], axis=1), Y), "shape (6,)"),
    "features of another type": ((X.astype(np.int32), Y), "int32"),
    "labels": ((X, (Y > 0).astype(np.int32)), "class labels"),
    "targets of another shape": ((X, np.stack([Y, Y], axis=1)), "shape (2,)"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_node_with_other_examples_is_refused_and_told_of(kind):
    examples, what = MISFITS[kind]
    grid = grid_of(*NAMES[:4])
    grid.join(app("a", examples))
    with pytest.raises(FederationError) as raised:
        federation(grid, min_clients=5, wait=0.2).ids.tolist()
    sentence = str(raised.value)
    assert "only 4 of the 5 clients" in sentence and "client 'a' has examples of" in sentence
    assert what in sentence and "the others of shape (3,) (float32) with real targets" in sentence
    assert federation(grid, min_clients=4).ids.tolist() == NAMES[:4]


@pytest.mark.parametrize("place", [0, 4])
def test_the_odd_one_out_is_refused_wherever_it_comes(place):
    names = NAMES[:4]
    apps = [app(name) for name in names]
    apps.insert(place, app("a", MISFITS["more features"][0]))
    assert federation(InProcessGrid(apps), min_clients=4, wait=0.5).ids.tolist() == names


def test_a_late_node_with_other_examples_is_never_asked():
    grid = grid_of(*NAMES[:4])
    happen = {1: lambda: grid.join(app("a", MISFITS["more features"][0]))}
    found = ct.IFCA(k=2, rounds=4, init=START).fit(federation(grid), LEARNER, observers=[Between(happen)])
    agrees(found, NAMES[:4], [FOUR] * 4)
    assert [m.metadata.message_type for m in grid.nodes[5].heard] == [wire.HELLO]


STRANGE = {
    "nothing": RecordDict(),
    "a list for a shape": RecordDict({"client": ConfigRecord({"id": "x", "spec": "[1]"})}),
    "a shape of nonsense": RecordDict(
        {
            "client": ConfigRecord(
                {
                    "id": "x",
                    "spec": '{"x_shape": "abc", "x_dtype": "nonsense", "y_shape": [], "y_dtype": "int32"}',
                }
            )
        }
    ),
    "a reply": wire.reply_records({"a": np.ones(2)}),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_node_that_introduces_itself_with_nonsense_keeps_nobody_from_beginning(kind):
    names = NAMES[:4]
    apps = [app(name) for name in names]
    grid = InProcessGrid([app("a"), *apps])
    grid.nodes[1].twist = lambda content: STRANGE[kind]
    assert federation(grid, min_clients=4, wait=0.5).ids.tolist() == names


def test_what_a_node_says_is_wrong_with_it_is_passed_on():
    grid = grid_of("c", "d")

    def breaks(content):
        raise ImportError("No module named 'torch'")

    grid.nodes[1].twist = breaks
    grid.nodes[2].twist = lambda content: wire.refusal_records("d.csv cannot be read.")
    with pytest.raises(FederationError) as raised:
        federation(grid, wait=0.2).ids.tolist()
    assert "only 0 of the 2 clients" in str(raised.value)
    assert "ImportError: No module named 'torch'" in str(raised.value)
    assert "d.csv cannot be read." in str(raised.value)


# -- classes ----------------------------------------------------------------------------------------------


CLASSIFIER = ct.Learner(ct.models.Linear(bias=True), local=ct.SGD(lr=0.1, steps=1))
LABELS = {2: np.arange(12) % 2, 3: np.arange(12) % 3, 4: np.arange(12) % 4}


def labelled(name, classes):
    x, _ = EXAMPLES[NAMES.index(name)]
    return app_of(CLASSIFIER, Shards.from_lists([x], [LABELS[classes].astype(np.int32)], [name]))


def classes_of(*counts):
    return InProcessGrid([labelled(name, count) for name, count in zip(NAMES, counts, strict=False)])


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 3, 3), (3, 3, 2)])
def test_those_who_begin_have_as_many_classes_as_any_of_them(counts):
    here = federation(classes_of(*counts), min_clients=3)
    assert here.spec.classes == 3
    found = ct.Global(rounds=1).fit(here, CLASSIFIER)
    assert found.history[0].answered == 3
    assert np.asarray(found.models.layers[0].weight).shape == (1, 3, 3)


def test_a_late_client_with_more_classes_is_refused_and_told_of():
    grid = classes_of(3, 2, 3)
    happen = {
        1: lambda: grid.join(labelled("d", 4)),
        3: lambda: [setattr(grid.nodes[n], "online", False) for n in (1, 2)],
    }
    with pytest.raises(FederationError) as raised:
        ct.Global(rounds=4).fit(federation(grid, wait=0.2), CLASSIFIER, observers=[Between(happen)])
    assert "client 'd' has 4 classes, but training began with 3" in str(raised.value)
    assert [m.metadata.message_type for m in grid.nodes[4].heard] == [wire.HELLO]


def test_a_late_client_with_fewer_classes_takes_part():
    grid = classes_of(3, 3)
    happen = {1: lambda: grid.join(labelled("c", 2))}
    found = ct.Global(rounds=3).fit(federation(grid), CLASSIFIER, observers=[Between(happen)])
    assert [r.answered for r in found.history] == [2, 2, 3]


# -- resumed ----------------------------------------------------------------------------------------------


class Crash(Exception):
    """The server is gone."""


def crash():
    raise Crash


ALGORITHM = ct.IFCA(k=2, rounds=4, init=START)


def interrupted(grid, folder, algorithm=ALGORITHM, learner=LEARNER, happen=None):
    """A run whose server is gone after two rounds, unless something else happens."""
    recorder = Recorder(RunFolder(folder), every=0.0)
    with pytest.raises(Crash):
        algorithm.fit(federation(grid), learner, observers=[recorder, Between(happen or {2: crash})])


def resumed(grid, folder, algorithm=ALGORITHM, learner=LEARNER, **settings):
    here = federation(grid, wait=0.5, **settings)
    return algorithm.fit(here, learner, observers=[Recorder(RunFolder(folder), every=0.0)])


def test_a_run_resumed_with_fewer_nodes_keeps_everybodys_position(tmp_path):
    interrupted(grid_of(*NAMES[:4]), tmp_path)
    found = resumed(grid_of("d", "b2"), tmp_path)
    assert found.ids.tolist() == NAMES[:4]
    assert [r.answered for r in found.history] == [4, 4, 2, 2]
    for t in (2, 3):
        assert found.history[t].missing == {"not connected": ("b10", "c")}
    clients = EXAMPLES[:4]
    thetas, last, _ = ifca(clients, START, LR, STEPS, [FOUR, FOUR, [0, 3], [0, 3]])
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    # those who are away keep the cluster they had
    assert found.assignment[[1, 2]].tolist() == last[[1, 2]].tolist()


def test_newcomers_to_a_resumed_run_are_let_in_behind_the_others(tmp_path):
    interrupted(grid_of(*NAMES[:4]), tmp_path)
    found = resumed(grid_of("a", "d", "c", "b2"), tmp_path)
    assert found.ids.tolist() == NAMES
    thetas, _, _ = ifca(EXAMPLES, START, LR, STEPS, [FOUR, FOUR, [0, 2, 3, 4], [0, 2, 3, 4]])
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    assert found.history.assignments()[:, 4].tolist()[:2] == [-1, -1]
    assert found.history[3].missing == {"not connected": ("b10",)}


def test_late_joiners_of_an_interrupted_run_are_remembered(tmp_path):
    grid = grid_of(*NAMES[:4])
    interrupted(grid, tmp_path, happen={1: lambda: grid.join(app("a")), 3: crash})
    found = resumed(grid_of("a", *NAMES[:4]), tmp_path)
    agrees(found, NAMES, [FOUR, FOUR, FIVE, FIVE])


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        ct.IFCA(k=2, rounds=5, n_init=2, settle=1, recheck=2, aggregate=ct.FedAvgM()),
        ct.IFCA(k=3, rounds=5, n_init=2, empty="revive"),
        ct.Global(rounds=5, aggregate=ct.FedAdam()),
        ct.Oracle({"b2": 0, "b10": 1, "c": 0, "a": 1}, rounds=5),
    ],
)
def test_whatever_is_kept_of_clients_is_kept_of_late_joiners_too(algorithm, tmp_path):
    whole, grid = grid_of(*NAMES[:4]), grid_of(*NAMES[:4])
    joins = Between({1: lambda: whole.join(app("a"))})
    expected = algorithm.fit(federation(whole), LEARNER, observers=[joins])
    interrupted(grid, tmp_path, algorithm, happen={1: lambda: grid.join(app("a")), 3: crash})
    found = resumed(grid_of("a", *NAMES[:4]), tmp_path, algorithm)
    assert found.ids.tolist() == expected.ids.tolist() == NAMES
    assert [r.answered for r in found.history] == [r.answered for r in expected.history] == [4, 4, 5, 5, 5]
    np.testing.assert_array_equal(matrix(found.models), matrix(expected.models))
    assert found.history.assignments().tolist() == expected.history.assignments().tolist()
    assert found.assignment.tolist() == expected.assignment.tolist() and (found.assignment >= 0).all()
    if isinstance(algorithm, ct.Oracle):
        assert found.assignment[[0, 1, 2, 4]].tolist() == [0, 1, 0, 1]


def test_classes_are_as_before_when_those_who_have_most_are_away(tmp_path):
    algorithm = ct.Global(rounds=3)
    interrupted(classes_of(2, 2, 3), tmp_path, algorithm, CLASSIFIER)
    found = resumed(classes_of(2, 2), tmp_path, algorithm, CLASSIFIER)
    assert [r.answered for r in found.history] == [3, 3, 2]
    assert found.spec.classes == 3


def test_an_experiment_resumed_with_fewer_nodes_than_it_has_clusters_goes_on(tmp_path):
    experiment = Experiment.read(
        {
            "local": {"name": "sgd", "lr": LR, "steps": STEPS},
            "algorithm": {"name": "ifca", "k": 2, "rounds": 3, "n_init": 1, "participation": 4},
            "baselines": [],
        }
    )
    grid = grid_of(*NAMES)

    def fails(kind):
        if grid.asks() == 2:
            raise Crash

    grid.before_push = fails
    run = {"resume": True, "checkpoint_every": 0.0}
    with pytest.raises(Crash):
        execute(experiment, RunFolder(tmp_path), federation=federation(grid, min_clients=5), **run)
    one = federation(grid_of("a"), min_clients=1, min_replies=1)
    found = execute(experiment, RunFolder(tmp_path), federation=one, **run)
    assert len(found.ids) == 5 and len(found.history) == 3
    assert found.history[0].asked == 4 and found.history[2].asked == 1  # of those who are there
