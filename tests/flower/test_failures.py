"""Clients that are away, late, broken or hostile: left out of that round, named, and asked again."""

import time
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from support.exchanges import started
from support.in_process import InProcessGrid, apps_of
from support.observers import Between
from support.references import ifca, local_update, loss

import coterie as ct
from coterie.errors import CoterieError, FederationError
from coterie.flower import FlowerFederation, replies, wire
from coterie.learn import tasks
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import RunFolder

CONTENT = {
    "seed": 2,
    "data": {"name": "mixed-regression", "clients": 5, "k": 2, "dim": 3, "examples": 12, "seed": 4},
    "local": {"name": "sgd", "lr": 0.05, "steps": 2},
    "algorithm": {"name": "ifca", "k": 2, "rounds": 3, "n_init": 2},
    "baselines": [],
}
DATA = Experiment.read(CONTENT).make_data()
CLIENTS = list(DATA.train)
LR, STEPS = 0.05, 2
LEARNER = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=LR, steps=STEPS))
START = np.array([[0.5, -0.2, 0.1], [-0.5, 0.3, 0.2]], np.float32)
IFCA = ct.IFCA(k=2, rounds=3, init=START)
ALL, BUT_TWO = [0, 1, 2, 3, 4], [0, 1, 3, 4]
WEIGHT = "value:layers.0.weight"


def grid_of():
    return InProcessGrid(apps_of(LEARNER, DATA))


def federation(grid, **settings):
    usual = {"min_clients": 5, "poll": 0.001, "wait": 20, "deadline": 60}
    return FlowerFederation(grid, **(usual | settings))


def fit(grid, happen=None, algorithm=IFCA, seed=0, **settings):
    return algorithm.fit(federation(grid, **settings), LEARNER, seed=seed, observers=[Between(happen or {})])


def matrix(models):
    return np.asarray(models.layers[0].weight)[:, 0, :]


def chosen(thetas):
    return [int(np.argmin([loss(theta, x, y) for theta in thetas])) for x, y in CLIENTS]


def agrees(found, participants, start=START):
    """The result is that of the paper's algorithm with just those clients in each round."""
    thetas, _, losses = ifca(CLIENTS, start, LR, STEPS, participants)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.assignment, chosen(thetas))
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-5)
    assert [r.answered for r in found.history] == [len(members) for members in participants]


def test_the_reference_would_notice_who_took_part():
    one, other = (ifca(CLIENTS, START, LR, STEPS, [ALL, members, ALL])[0] for members in (ALL, BUT_TWO))
    assert np.abs(one - other).max() > 1e-3
    agrees(fit(grid_of()), [ALL, ALL, ALL])


# -- ways to fail -----------------------------------------------------------------------------------------


def replying(**changes):
    """Sends other arrays than it should: a function of the right one, or None for none at all."""

    def twist(content):
        if "reply" not in content.array_records:
            return content
        arrays = wire.from_record(content.array_records["reply"])
        for name, change in changes.items():
            place = {"value": WEIGHT, "loss": "report/loss"}.get(name, name)
            new = None if change is None else change(arrays.get(place))
            arrays.pop(place, None)
            if new is not None:
                arrays[place] = new
        return wire.reply_records(arrays)

    return twist


def raising(content):
    raise RuntimeError("out of memory\nand so on")


def of_bytes(data):
    def twist(content):
        array = Array(dtype="float32", shape=(1, 3), stype="numpy.ndarray", data=data)
        return RecordDict({"reply": ArrayRecord({**content.array_records["reply"], WEIGHT: array})})

    return twist


def spoiled(value, where=0):
    def change(array):
        array = np.array(array)
        array.flat[where] = value
        return array

    return change


NOT_FINITE = "NaN or infinity in its reply"
UNREADABLE = "its reply cannot be read"
# a representative of each check; test_wire.py has every way in which bytes, shapes and types can be wrong
TWISTS = {
    "raises": (raising, "error at the client: RuntimeError: out of memory"),
    "refuses at length": (
        lambda content: wire.refusal_records("the disk is full.\nTraceback:\n..."),
        "the disk is full.",
    ),
    "sends another shape": (
        replying(value=lambda a: a[..., :2]),
        f"'{WEIGHT}' of its reply has shape (1, 1, 2), not (1, 1, 3)",
    ),
    "leaves something out": (replying(cluster=None), "its reply lacks 'cluster'"),
    "has a say in what it counts": (
        replying(weight=lambda a: np.ones(1, np.float32)),
        "its reply has an unexpected 'weight'",
    ),
    "sends text": (replying(value=lambda a: np.full(a.shape, "1.0")), UNREADABLE),
    "sends NaN": (replying(value=spoiled(np.nan)), NOT_FINITE),
    "sends what becomes infinite": (replying(value=lambda a: a.astype(float) + 1e300), NOT_FINITE),
    "sends a loss of NaN": (replying(loss=spoiled(np.nan)), NOT_FINITE),
    "sends a model a bit too large": (
        replying(value=lambda a: np.full_like(a, 600)),
        "norm 1.04e+03 of its reply is above 1000",
    ),
    "names a cluster too many": (
        replying(cluster=lambda a: a * 0 + 2),
        "it names a cluster 2 that does not exist",
    ),
    "names a negative cluster": (
        replying(cluster=lambda a: a * 0 - 1),
        "it names a cluster -1 that does not exist",
    ),
    "sends nothing": (lambda content: RecordDict(), UNREADABLE),
    "sends half an array": (of_bytes(b"\x93NUMPY\x01\x00"), UNREADABLE),
}


def left_out(found, reason):
    """Client 2 was left out of round 1, and of no other, for that reason."""
    assert [r.missing for r in found.history][::2] == [{}, {}]
    ((why, clients),) = found.history[1].missing.items()
    assert clients == ("2",)
    assert why.startswith(reason) if reason == UNREADABLE else why == reason
    assert "\n" not in why


@pytest.mark.parametrize("way", TWISTS)
def test_a_client_that_answers_wrongly_is_left_out_of_that_round_only(way):
    twist, reason = TWISTS[way]
    grid = grid_of()
    node = grid.nodes[3]
    happen = {1: lambda: setattr(node, "twist", twist), 2: lambda: setattr(node, "twist", None)}
    found = fit(grid, happen, max_norm=1000)
    left_out(found, reason)
    agrees(found, [ALL, BUT_TWO, ALL])
    assert len(node.heard) == 1 + 4  # it was asked every time


@pytest.mark.parametrize(
    "weight, reason",
    [(np.nan, NOT_FINITE), (-1.0, "its weight -1 is not a number of examples")],
)
def test_a_client_that_counts_for_an_impossible_number_of_examples_is_left_out(weight, reason):
    grid = grid_of()
    node = grid.nodes[3]
    twist = replying(weight=lambda a: np.full_like(a, weight))
    happen = {1: lambda: setattr(node, "twist", twist), 2: lambda: setattr(node, "twist", None)}
    found = fit(grid, happen, ct.IFCA(k=2, rounds=3, init=START, weight="examples"))
    left_out(found, reason)
    thetas, _, _ = ifca(CLIENTS, START, LR, STEPS, [ALL, BUT_TWO, ALL], by_examples=True)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fault, reason, settings",
    [
        ({"online": False}, "not connected", {}),
        ({"unheard": True}, "the SuperLink did not take the message", {}),
        ({"silent": True}, "no answer within 0.25 s", {"deadline": 0.25}),
        ({"late": 0.4}, "no answer within 0.25 s", {"deadline": 0.25}),
    ],
)
def test_a_client_that_does_not_answer_in_time_is_left_out_of_that_round_only(fault, reason, settings):
    grid = grid_of()
    node = grid.nodes[3]
    usual = {name: getattr(node, name) for name in fault}

    def mends():
        node.__dict__.update(usual)
        time.sleep(0.3 if settings else 0)  # by now its late answer is there, or no longer to come

    found = fit(grid, {1: lambda: node.__dict__.update(fault), 2: mends}, **settings)
    left_out(found, reason)
    agrees(found, [ALL, BUT_TWO, ALL])


@pytest.mark.parametrize("late, pause", [(1.0, 0.45), (60.0, 0.65)])
def test_a_client_that_is_still_at_an_earlier_ask_is_not_asked_on_top(late, pause):
    grid = grid_of()
    node = grid.nodes[3]
    happen = {
        1: lambda: setattr(node, "late", late),
        2: lambda: setattr(node, "late", 0.0),
        3: lambda: time.sleep(pause),  # its answer has come, or the message has expired: it is asked again
    }
    found = fit(grid, happen, ct.IFCA(k=2, rounds=4, init=START), deadline=0.6)
    missing = [r.missing for r in found.history]
    assert missing == [{}, {"no answer within 0.6 s": ("2",)}, {"still at an earlier ask": ("2",)}, {}]
    agrees(found, [ALL, BUT_TWO, BUT_TWO, ALL])
    asked = [3 in nodes for kind, nodes in grid.exchanges if kind == wire.ASK]
    assert asked == [True, True, False, True, True]


def test_a_client_that_goes_down_during_a_round_holds_nobody_up():
    grid = grid_of()
    node = grid.nodes[3]

    def goes_down():
        grid.before_push = lambda kind: setattr(node, "online", False)

    def comes_back():
        grid.before_push = lambda kind: None
        node.online = True

    began = time.monotonic()
    found = fit(grid, {1: goes_down, 2: comes_back}, deadline=300)
    assert time.monotonic() - began < 60
    left_out(found, "lost its connection")
    agrees(found, [ALL, BUT_TWO, ALL])


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_client_that_reports_nonsense_at_the_end_spoils_nothing(value):
    # the last exchange asks for losses alone: they choose the start and the final assignment
    grid = grid_of()
    happen = {
        3: lambda: setattr(grid.nodes[3], "twist", replying(**{"report/losses": lambda a: a * 0 + value}))
    }
    found = fit(grid, happen)
    thetas, last, _ = ifca(CLIENTS, START, LR, STEPS, [ALL] * 3)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)
    expected = chosen(thetas)
    assert found.assignment.tolist() == [last[i] if i == 2 else expected[i] for i in ALL]


@pytest.mark.slow
@pytest.mark.parametrize("restart", [0, 1])
def test_nonsense_about_one_start_at_the_end_does_not_decide_which_is_kept(restart):
    algorithm = ct.IFCA(k=2, rounds=3, n_init=2)
    best = fit(grid_of(), algorithm=algorithm, seed=7).history.restart
    grid = grid_of()

    def spoils():
        grid.nodes[3].twist = replying(
            **{"report/losses": lambda a: np.where(np.arange(2)[:, None] == restart, np.nan, a)}
        )

    found = fit(grid, {3: spoils}, algorithm, seed=7)
    assert found.history.restart == best


def test_a_client_that_misses_the_last_exchange_keeps_its_cluster_and_its_losses_are_unknown():
    grid = grid_of()
    found = fit(grid, {3: lambda: setattr(grid.nodes[3], "online", False)})
    thetas, last, _ = ifca(CLIENTS, START, LR, STEPS, [ALL] * 3)
    expected = chosen(thetas)
    assert found.assignment.tolist() == [last[i] if i == 2 else expected[i] for i in ALL]
    told = [[loss(theta, *CLIENTS[i]) for theta in thetas] for i in BUT_TWO]
    np.testing.assert_allclose(found.losses[BUT_TWO], told, rtol=1e-4, atol=1e-6)
    assert np.isnan(found.losses[2]).all()  # not zero


def test_a_client_that_never_answers_has_no_cluster():
    grid = grid_of()
    grid.nodes[3].twist = lambda content: content if "client" in content else wire.refusal_records("no")
    found = fit(grid)
    assert found.assignment[2] == -1 and (found.assignment[BUT_TWO] >= 0).all()
    assert [r.missing for r in found.history] == [{"no": ("2",)}] * 3
    thetas, _, _ = ifca(CLIENTS, START, LR, STEPS, [BUT_TWO] * 3)
    np.testing.assert_allclose(matrix(found.models), thetas, rtol=1e-5, atol=1e-6)


def test_bytes_that_were_never_sent_are_not_counted():
    grid = grid_of()
    here = federation(grid)
    assert here.clients == 5
    grid.nodes[3].online = False
    found = ct.IFCA(k=2, rounds=1, init=START).fit(here, LEARNER)
    sent = [m.content for node in grid.nodes.values() for m in node.heard if "ask" in m.content]
    size = [
        sum(a.numpy().nbytes for a in ask["everybody"].values()) for ask in sent if len(ask["everybody"]) > 1
    ]
    assert len(size) == 4
    assert found.history[0].bytes_down == sum(size)


def test_no_claim_of_examples_makes_sums_overflow():
    grid = grid_of()
    for node in (1, 2, 3):
        grid.nodes[node].twist = replying(weight=lambda a: np.full_like(a, 3e38))
    found = fit(grid, {}, ct.Global(rounds=2, weight="examples"), min_replies=2)
    assert np.isfinite(matrix(found.models)).all()
    assert np.abs(matrix(found.models)).max() > 0
    assert np.isfinite([r.loss for r in found.history]).all()


def test_training_that_diverges_is_called_that():
    learner = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=1e6, steps=20))
    grid = InProcessGrid(apps_of(learner, DATA))
    with pytest.raises(CoterieError, match=r"diverged|learning rate"):
        ct.Global(rounds=2).fit(federation(grid), learner)


def test_several_clients_are_named_by_reason():
    grid = grid_of()
    grid.nodes[1].twist = grid.nodes[4].twist = replying(value=spoiled(np.nan))
    grid.nodes[2].twist = replying(cluster=None)
    found = fit(grid, min_replies=2)
    assert found.history[0].missing == {NOT_FINITE: ("0", "3"), "its reply lacks 'cluster'": ("1",)}
    assert (found.history[0].asked, found.history[0].answered) == (5, 2)


def test_a_fault_in_one_start_leaves_a_client_out_of_that_start_only():
    algorithm = ct.IFCA(k=2, rounds=3, n_init=2)
    models = started(ct.Simulation(DATA.train), LEARNER, ct.Random(), k=2, starts=2, seed=7)
    starts = [matrix(start) for start in models]
    grid = grid_of()
    node = grid.nodes[3]
    twist = replying(value=lambda a: np.stack([a[0], np.full_like(a[1], np.nan)]))
    happen = {1: lambda: setattr(node, "twist", twist), 2: lambda: setattr(node, "twist", None)}
    found = fit(grid, happen, algorithm, seed=7)
    left_out(found, f"{NOT_FINITE} (restart 1)")
    whole = ifca(CLIENTS, starts[0], LR, STEPS, [ALL, ALL, ALL])
    partly = ifca(CLIENTS, starts[1], LR, STEPS, [ALL, BUT_TWO, ALL])
    np.testing.assert_allclose(
        found.history.restarts, np.stack([whole[2], partly[2]], axis=1), rtol=1e-5, atol=1e-7
    )
    final = [np.mean([min(loss(t, *c) for t in thetas) for c in CLIENTS]) for thetas, *_ in (whole, partly)]
    best = int(np.argmin(final))
    assert found.history.restart == best
    np.testing.assert_allclose(matrix(found.models), (whole, partly)[best][0], rtol=1e-5, atol=1e-6)
    # in that start client 2 has the cluster it had before
    assert [len(log.moved) for log in found.history.logs] == [2, 2, 2]
    assert 2 not in [client for client, _ in found.history.logs[1].moved[1]]
    assert found.history[1].answered == 5


def test_a_fault_in_every_start_leaves_a_client_out():
    grid = grid_of()
    grid.nodes[3].twist = replying(value=lambda a: a * np.nan)
    found = fit(grid, algorithm=ct.IFCA(k=2, rounds=3, n_init=2))
    assert found.history[0].answered == 4
    assert found.history[0].missing == {NOT_FINITE: ("2",)}


# -- one model each ---------------------------------------------------------------------------------------


def local_models(start, rounds, clients=ALL):
    """What each client makes of its own model alone; those not named keep what they were given."""
    models = np.repeat(start[None], len(CLIENTS), axis=0)
    for i in clients:
        for _ in range(rounds):
            models[i] = local_update(models[i], *CLIENTS[i], LR, STEPS)
    return models


LOCAL = ct.Local(rounds=2)
(FIRST,) = matrix(started(ct.Simulation(DATA.train), LEARNER, ct.Random(), k=1)[0])


def test_a_client_that_misses_the_one_exchange_of_local_training_is_asked_once_more():
    grid = grid_of()
    node = grid.nodes[3]
    node.twist = replying(value=spoiled(np.nan))

    def mends(kind):
        if grid.asks() == 1:
            node.twist = None

    grid.before_push = mends
    found = fit(grid, {}, LOCAL)
    assert [nodes for kind, nodes in grid.exchanges if kind == wire.ASK] == [[1, 2, 3, 4, 5], [3]]
    assert [(r.answered, r.missing) for r in found.history] == [(5, {})] * 2
    np.testing.assert_allclose(matrix(found.models), local_models(FIRST, 2), rtol=1e-5, atol=1e-6)
    assert found.assignment.tolist() == ALL


@pytest.mark.parametrize("way", ["is down", "sends NaN"])
def test_a_client_that_never_trains_does_not_stop_the_others(way):
    grid = grid_of()

    def fails():
        grid.nodes[3].online = way != "is down"
        grid.nodes[3].twist = replying(value=spoiled(np.nan))

    grid.before_push = lambda kind: kind == wire.ASK and fails()
    found = fit(grid, {}, LOCAL, wait=0.2, min_replies=0.5)
    np.testing.assert_allclose(matrix(found.models), local_models(FIRST, 2, BUT_TWO), rtol=1e-5, atol=1e-6)
    assert found.assignment.tolist() == [0, 1, -1, 3, 4]  # it has no model of its own
    reason = "not connected" if way == "is down" else NOT_FINITE
    assert [(r.answered, r.missing) for r in found.history] == [(4, {reason: ("2",)})] * 2


# -- too few ----------------------------------------------------------------------------------------------


def losses(here, clients=None):
    """Ask for the losses of two blank models: the cheapest exchange there is."""
    one = LEARNER.for_data(here.spec).shapes(here.spec)
    models = jax.tree.map(lambda a: jnp.zeros((2, *a.shape), a.dtype), one)
    chosen = None if clients is None else here.select(np.array(clients))
    return here.with_learner(LEARNER).ask(tasks.MeasureLosses(models), clients=chosen)


def ask(grid, clients=None, **settings):
    return losses(federation(grid, **settings), clients)


def refusing(content):
    return wire.refusal_records("not today.") if "reply" in content else content


@pytest.mark.parametrize(
    "min_replies, enough", [(2, True), (3, False), (0.4, True), (0.41, False), (1.0, False)]
)
def test_as_many_must_answer_as_the_terms_say(min_replies, enough):
    grid = grid_of()
    for node in (1, 2, 5):
        grid.nodes[node].twist = refusing
    if enough:
        answers = ask(grid, min_replies=min_replies)
        assert answers.answered.tolist() == [False, False, True, True, False]
        assert dict(answers.failures) == dict.fromkeys((0, 1, 4), "not today.")
    else:
        with pytest.raises(FederationError, match=r"^2 of 5 clients answered and [35] are needed"):
            ask(grid, min_replies=min_replies)


def test_a_number_of_replies_is_of_those_asked():
    grid = grid_of()
    grid.nodes[1].twist = refusing
    assert ask(grid, [1, 2], min_replies=4).answered.all()
    with pytest.raises(FederationError, match="1 of 2 clients answered and 2 are needed"):
        ask(grid, [0, 1], min_replies=4)


def test_too_few_replies_are_an_error_that_names_clients_and_reasons():
    grid = grid_of()
    grid.nodes[1].twist = grid.nodes[4].twist = replying(value=spoiled(np.nan))
    grid.nodes[3].twist = refusing
    with pytest.raises(FederationError) as raised:
        fit(grid, min_replies=0.5)
    sentence = str(raised.value)
    assert "2 of 5 clients answered and 3 are needed" in sentence
    assert f"0: {NOT_FINITE}; 2: not today.; 3: {NOT_FINITE}" in sentence
    assert "resume" in sentence and sentence.endswith(".") and "\n" not in sentence


def test_too_few_connected_are_waited_for_and_then_named():
    grid = grid_of()

    def leave():
        grid.nodes[1].online = grid.nodes[4].online = grid.nodes[5].online = False
        leave.at = time.monotonic()

    with pytest.raises(FederationError) as raised:
        fit(grid, {1: leave}, wait=0.3)
    assert 0.3 < time.monotonic() - leave.at < 15
    for name in "034":
        assert f"{name}: not connected" in str(raised.value)
    assert "1:" not in str(raised.value) and "3 are needed" in str(raised.value)
    assert grid.asks() == 1  # the others were not troubled


def test_those_who_come_back_while_they_are_waited_for_take_part():
    grid = grid_of()
    began = []

    def leave():
        for node in (1, 4, 5):
            grid.nodes[node].online = False
        began.append(time.monotonic())

    ids = grid.get_node_ids

    def connected():
        if began and time.monotonic() - began[0] > 0.2:
            for node in grid.nodes.values():
                node.online = True
        return ids()

    grid.get_node_ids = connected
    agrees(fit(grid, {1: leave}, wait=30, min_replies=1.0), [ALL] * 3)


def test_too_few_clients_to_begin_with_are_an_error_after_the_wait():
    grid = grid_of()
    for node in (2, 4):
        grid.nodes[node].online = False
    began = time.monotonic()
    with pytest.raises(FederationError) as raised:
        fit(grid, min_clients=4, wait=0.2)
    assert 0.2 < time.monotonic() - began < 15
    sentence = str(raised.value)
    assert "only 3 of the 4 clients needed to begin were there after 0.2 s" in sentence
    assert sentence.endswith(".") and "\n" not in sentence
    assert grid.asks() == 0


def test_enough_clients_begin_without_one_that_never_introduces_itself():
    grid = grid_of()
    grid.nodes[3].silent = True
    found = fit(grid, min_clients=4, wait=0.3)
    assert found.ids.tolist() == ["0", "1", "3", "4"]


# -- as they arrive ---------------------------------------------------------------------------------------


def test_replies_are_reduced_as_they_arrive(monkeypatch):
    grid = grid_of()
    here = federation(grid)
    assert here.clients == 5
    events = []
    pull, add = grid.pull_messages, replies.Replies.add

    def pulled(ids):
        messages = pull(ids)
        events.extend(("came", m.metadata.src_node_id) for m in messages)
        return messages

    def added(self, index, records):
        outcome = add(self, index, records)
        kept, _ = self._kept[index]
        assert kept.value is None  # only the sums are held
        events.append(("added", index + 1))
        return outcome

    monkeypatch.setattr(grid, "pull_messages", pulled)
    monkeypatch.setattr(replies.Replies, "add", added)
    grid.nodes[1].late, grid.nodes[4].late = 0.8, 0.4
    found = ct.IFCA(k=2, rounds=1, init=START).fit(here, LEARNER)
    first = events[:10]
    assert first[-4:] == [("came", 4), ("added", 4), ("came", 1), ("added", 1)]
    assert {node for what, node in first[:6] if what == "added"} == {2, 3, 5}
    agrees(found, [ALL])


# -- a run in a folder ------------------------------------------------------------------------------------


def run(grid, folder, happen=None, **settings):
    here = federation(grid, **settings)

    def progress(name, rounds):
        return nullcontext(Between(happen or {}))

    experiment = Experiment.read(CONTENT)
    return execute(
        experiment, RunFolder(folder), federation=here, resume=True, checkpoint_every=0.0, progress=progress
    )


def same(one, other):
    assert one.ids.tolist() == other.ids.tolist()
    np.testing.assert_array_equal(one.assignment, other.assignment)
    np.testing.assert_allclose(matrix(one.models), matrix(other.models), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.history.restarts, other.history.restarts, rtol=1e-6)
    assert one.history.assignments().tolist() == other.history.assignments().tolist()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return run(grid_of(), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("done", [1, 3])
def test_a_run_that_stopped_for_want_of_clients_can_be_resumed_and_ends_the_same(
    done, uninterrupted, tmp_path
):
    grid = grid_of()

    def leave():
        for node in (1, 2, 3):
            grid.nodes[node].online = False

    with pytest.raises(FederationError, match="2 of 5 clients"):
        run(grid, tmp_path, {done: leave}, wait=0.2)
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == done
    assert not RunFolder(tmp_path).finished
    again = grid_of()
    same(run(again, tmp_path), uninterrupted)
    assert again.asks() == (3 - done) + 2  # the rounds that were left, the last exchange, the evaluation
    same(ct.load(tmp_path), uninterrupted)


def test_who_was_missing_is_still_known_when_the_run_is_loaded(tmp_path):
    grid = grid_of()
    grid.nodes[3].twist = replying(value=lambda a: a * np.nan)
    found = run(grid, tmp_path)
    assert found.history[0].missing == {NOT_FINITE: ("2",)}
    assert [r.missing for r in ct.load(tmp_path).history] == [r.missing for r in found.history]
