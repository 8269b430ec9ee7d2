"""What travels between server and clients, message by message: models and a few numbers, never examples."""

import dataclasses
import io
import json
import re

import equinox as eqx
import jax
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.common.serde import recorddict_to_proto
from support.in_process import InProcessGrid, app_of, carried_over

import coterie as ct
from coterie import keys
from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.errors import DataError, FederationError, SettingError
from coterie.flower import FlowerFederation, JaxClient, Own, client_app, wire
from coterie.learn.task import Client, Reply, Task, per_client

CLIENTS = 4
NAMES = [f"hospital-of-town-{c * 5}" for c in "abcd"]
NODES = [7_340_000_000_000_000_011, 5_120_000_000_000_000_023, 8_810_000_000_000_000_041, 311_111_111_117]
RAW = ct.data.mixed_regression(clients=CLIENTS, k=2, dim=5, examples=9, seed=3)


def renamed(shards):
    return Shards.from_lists(*zip(*shards, strict=True), NAMES)


DATA = Federated(train=renamed(RAW.train), test=renamed(RAW.test))
LEARNER = ct.Learner(ct.models.Linear(bias=True), loss="squared", local=ct.SGD(lr=0.05, steps=2))
WEIGHT, BIAS = "layers.0.weight", "layers.0.bias"
ROUNDS = 3
ALGORITHMS = {
    "ifca": ct.IFCA(k=2, rounds=ROUNDS, n_init=3),
    "global": ct.Global(rounds=ROUNDS),
    "local": ct.Local(rounds=ROUNDS),
}


class Run:
    """A run of which every message was kept."""

    def __init__(self, algorithm):
        apps = [app_of(LEARNER, DATA.train[[i]], DATA.test[[i]]) for i in range(CLIENTS)]
        self.grid = InProcessGrid(apps)
        self.grid.nodes = dict(zip(NODES, self.grid.nodes.values(), strict=True))
        federation = FlowerFederation(self.grid, min_clients=CLIENTS, poll=0.001)
        self.found = algorithm.fit(federation, LEARNER, seed=5)
        self.fit_asks = self.grid.asks()
        self.evaluation = self.found.evaluate(federation.test)
        self.nodes = dict(zip(NAMES, self.grid.nodes.values(), strict=True))

    def heard(self, node, kind):
        return [m.content for m in node.heard if m.metadata.message_type == kind]

    def letters(self, client):
        """What a client was asked, and what it answered, exchange by exchange."""
        node = self.nodes[client]
        hello = len(self.heard(node, "query.hello"))
        return list(zip(self.heard(node, "query.ask"), node.said[hello:], strict=True))

    def contents(self):
        """Every message: to or from which client, and what was in it."""
        for name, node in self.nodes.items():
            for message in node.heard:
                yield name, message.content
            for content in node.said:
                yield name, content


@pytest.fixture(scope="module")
def runs():
    return {name: Run(algorithm) for name, algorithm in ALGORITHMS.items()}


def names(record):
    return set(record)


def size(*records):
    return sum(array.numpy().nbytes for record in records for array in record.values())


def sent_bytes(ask):
    """What a client is sent of an ask: what all are, what it alone is, and which model concerns it."""
    which = ask["key"]["only"].numpy().nbytes if "only" in ask["key"] else 0
    return size(ask["everybody"], ask["each"]) + which


# -- what kind of thing travels ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_only_plain_arrays_and_a_few_words_travel(name, runs):
    seen = 0
    for _, content in runs[name].contents():
        for record in content.values():
            assert type(record) in (ArrayRecord, ConfigRecord)
            if isinstance(record, ConfigRecord):
                assert all(isinstance(word, str) and len(word) < 200 for word in record.values())
                continue
            for array in record.values():
                assert array.stype == "numpy.ndarray" and array.data.startswith(b"\x93NUMPY")
                plain = np.load(io.BytesIO(array.data), allow_pickle=False)
                assert plain.dtype.kind in "fiub" and plain.dtype.itemsize <= 4
                assert len(array.data) == plain.nbytes + 128  # behind the header, nothing but the numbers
                seen += 1
    assert seen > 10


def expected(name):
    """By task: its settings, and the names of what is sent to all and back."""
    start, models = ({f"{what}:{part}" for part in (WEIGHT, BIAS)} for what in ("start", "models"))
    value = {f"value:{part}" for part in (WEIGHT, BIAS)}
    figures = {"report/loss", "report/accuracy", "report/examples"}
    evaluate = {"Evaluate": ({}, models, figures)}
    if name == "local":
        return {"TrainAlone": ({"rounds": ROUNDS}, start, value | {"report/loss"})} | evaluate
    settings = {"send": "models", "by_examples": False, "frozen": False}
    rounds = {"ChooseAndTrain": (settings, models | {"round"}, value | {"report/loss", "cluster"})}
    return rounds | {"MeasureLosses": ({}, models, {"report/losses"})} | evaluate


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_message_holds_what_its_task_needs_and_no_more(name, runs):
    tasks = expected(name)
    seen = set()
    for client in NAMES:
        for ask, answer in runs[name].letters(client):
            assert names(ask) == {"ask", "key", "everybody", "each"}
            words = dict(ask["ask"])
            assert words.pop("client") == client
            task = words.pop("task")
            settings, everybody, back = tasks[task]
            assert json.loads(words.pop("settings")) == settings
            assert (names(ask["everybody"]), names(ask["each"])) == (everybody, set())
            assert names(ask["key"]) == ({"key", "only"} if task == "Evaluate" else {"key"})
            assert names(answer) == {"reply"} and names(answer["reply"]) == back
            assert words.pop("split") == ("test" if task == "Evaluate" else "train")
            assert json.loads(words.pop("spec"))["x_shape"] == [5]
            starts = {"starts": "3" if name == "ifca" else "1"}
            assert words == ({} if task == "Evaluate" else starts)
            seen.add(task)
    assert seen == tasks.keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_greeting_says_nothing_and_its_answer_a_name_and_a_shape(name, runs):
    for client, node in runs[name].nodes.items():
        (hello,) = runs[name].heard(node, "query.hello")
        assert len(hello) == 0
        introduction = node.said[0]
        assert names(introduction) == {"client"} and names(introduction["client"]) == {"id", "spec"}
        assert introduction["client"]["id"] == client
        spec = json.loads(introduction["client"]["spec"])
        assert spec == {
            "x_shape": [5],
            "x_dtype": "float32",
            "y_shape": [],
            "y_dtype": "float32",
            "classes": None,
            "scale": None,
        }


# -- how much ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_history_counts_the_bytes_that_travel(name, runs):
    run = runs[name]
    exchanges = 1 if name == "local" else ROUNDS
    for t in range(exchanges):
        asked, answered = zip(*[run.letters(client)[t] for client in NAMES], strict=True)
        down = [sent_bytes(ask) for ask in asked]
        up = [size(answer["reply"]) for answer in answered]
        assert run.found.history[t].bytes_down == sum(down) > 0
        assert run.found.history[t].bytes_up == sum(up) > 0
        assert len(set(down)) == len(set(up)) == 1  # the same to and from everybody
    for t in range(exchanges, ROUNDS):
        assert (run.found.history[t].bytes_down, run.found.history[t].bytes_up) == (0, 0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_beside_those_bytes_there_is_only_the_key_and_a_few_words(name, runs):
    for client in NAMES:
        for ask, answer in runs[name].letters(client):
            assert ask["key"]["key"].numpy().nbytes == 8
            for content in (ask, answer):
                arrays = content.array_records.values()
                words = sum(len(k) + len(v) for r in content.config_records.values() for k, v in r.items())
                assert words < 300
                framing = 300 * sum(map(len, arrays)) + 100
                on_the_wire = len(recorddict_to_proto(content).SerializeToString())
                assert on_the_wire <= size(*arrays) + words + framing


def test_models_travel_once_however_many_clients_there_are(runs):
    ask, answer = runs["ifca"].letters(NAMES[0])[0]
    assert sent_bytes(ask) == 3 * (2 * 6 * 4 + 4)  # starts x (models, round)
    assert size(answer["reply"]) == 3 * (6 * 4 + 4 + 4)  # starts x (model, loss, cluster)


# -- what never does --------------------------------------------------------------------------------------


def rows():
    """The examples of all clients, each as the bytes it would have in a message."""
    for shards in (DATA.train, DATA.test):
        for x, _ in shards:
            for row in x:
                for form in (row, row.astype(np.float64), row[::-1]):
                    yield np.ascontiguousarray(form).tobytes()
                yield row[:2].tobytes()
            for column in x.T:
                yield np.ascontiguousarray(column)[:2].tobytes()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_example_of_any_client_is_in_any_message(name, runs):
    whole = b"".join(recorddict_to_proto(content).SerializeToString() for _, content in runs[name].contents())
    assert len(whole) > 1000
    for row in rows():
        assert row not in whole


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_target_of_any_client_is_in_any_array(name, runs):
    targets = np.concatenate([y for shards in (DATA.train, DATA.test) for _, y in shards])
    for _, content in runs[name].contents():
        for record in content.array_records.values():
            for array in record.values():
                assert not np.isin(array.numpy(), targets).any()


def varint(number):
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_client_hears_of_another(name, runs):
    run = runs[name]
    own = dict(zip(NAMES, NODES, strict=True))
    for client, node in run.nodes.items():
        for message in node.heard:
            whole = recorddict_to_proto(message.content).SerializeToString()
            whole += message.metadata.group_id.encode()
            for other in NAMES:
                assert other == client or other.encode() not in whole
                for form in (str(own[other]).encode(), varint(own[other]), own[other].to_bytes(8, "little")):
                    assert form not in whole


@pytest.mark.parametrize("name", ALGORITHMS)
def test_clients_are_sent_the_same_but_for_what_is_their_own(name, runs):
    for letters in zip(*[runs[name].letters(client) for client in NAMES], strict=True):
        asks = [carried_over(ask) for ask, _ in letters]
        assert [ask["ask"].pop("client") for ask in asks] == NAMES
        if asks[0]["ask"]["task"] == "Evaluate":  # of the models, each is sent the one that it is served by
            for ask in asks:
                assert all(array.numpy().shape[0] == 1 for array in ask.pop("everybody").values())
        assert len({recorddict_to_proto(ask).SerializeToString() for ask in asks}) == 1


def test_clients_that_take_part_in_different_rounds_alone_are_told_in_which():
    run = Run(ct.Local(rounds=6, participation=0.5))
    for client in NAMES:
        ask, answer = run.letters(client)[0]
        assert names(ask["each"]) == {"takes_part"}
        takes_part = ask["each"]["takes_part"].numpy()
        position, tokens = NAMES.index(client), keys.tokens(NAMES)
        drawn = [position in keys.participants(5, t, tokens, 2) for t in range(6)]
        assert takes_part.tolist() == [drawn]  # of the one start
        assert answer["reply"]["report/loss"].numpy().shape == (1, 6)


def test_the_model_that_a_local_client_gets_back_is_its_own(runs):
    run = runs["local"]
    for position, client in enumerate(NAMES):
        (_, answer), (evaluation, _) = run.letters(client)
        mine = answer["reply"][f"value:{WEIGHT}"].numpy()[0]  # of the one start
        kept = jax.tree.leaves(run.found.models)[0][position]
        np.testing.assert_array_equal(mine, kept)
        np.testing.assert_array_equal(evaluation["everybody"][f"models:{WEIGHT}"].numpy()[0], kept)


# -- how often --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_there_is_one_exchange_per_round_and_a_last_one(name, runs):
    run = runs[name]
    assert run.fit_asks == (1 if name == "local" else ROUNDS + 1)
    kinds = [kind for kind, _ in run.grid.exchanges]
    assert kinds.count("query.hello") == 1 and kinds[0] == "query.hello"
    assert set(kinds) == {"query.hello", "query.ask"}
    for _, nodes in run.grid.exchanges:
        assert nodes == sorted(NODES)
    for client in NAMES:
        asked = [ask["ask"]["task"] for ask, _ in run.letters(client)]
        rounds = ["TrainAlone"] if name == "local" else ["ChooseAndTrain"] * ROUNDS + ["MeasureLosses"]
        assert asked == [*rounds, "Evaluate"]


def test_only_the_participants_of_a_round_are_asked():
    grid = InProcessGrid([app_of(LEARNER, DATA.train[[i]]) for i in range(CLIENTS)])
    federation = FlowerFederation(grid, min_clients=CLIENTS, poll=0.001)
    found = ct.Global(rounds=ROUNDS, participation=2).fit(federation, LEARNER, seed=5)
    rounds = [nodes for kind, nodes in grid.exchanges if kind == "query.ask"][:-1]
    assert [len(nodes) for nodes in rounds] == [2] * ROUNDS
    assert [r.asked for r in found.history] == [r.answered for r in found.history] == [2] * ROUNDS
    tokens = keys.tokens(NAMES)
    for t, nodes in enumerate(rounds):
        assert nodes == (1 + keys.participants(5, t, tokens, 2)).tolist()


def test_a_key_of_its_own_for_every_round(runs):
    sent = {tuple(ask["key"]["key"].numpy()) for ask, _ in runs["ifca"].letters(NAMES[0])[:ROUNDS]}
    assert len(sent) == ROUNDS


# -- what a client may be asked ---------------------------------------------------------------------------


class Everything(Task):
    """A task that no client should carry out unless it knows it."""

    class Report(eqx.Module):
        examples: jax.Array

    def __call__(self, client: Client) -> Reply:
        return Reply(self.Report(client.shard.x))


def test_a_client_does_nothing_that_it_does_not_know_by_name():
    grid = InProcessGrid([app_of(LEARNER, DATA.train[[i]]) for i in range(2)])
    federation = FlowerFederation(grid, poll=0.001).with_learner(LEARNER)
    with pytest.raises(FederationError, match=f"client '{NAMES[0]}' does not know the task 'Everything'"):
        federation.ask(Everything())
    assert all(set(content) == {"refusal"} for node in grid.nodes.values() for content in node.said[1:])


class CountSome(Task):
    """A task of somebody's own: with something for all, something for each, and a setting."""

    times: jax.Array
    more: jax.Array = per_client()
    offset: int = eqx.field(static=True, default=0)

    class Report(eqx.Module):
        total: jax.Array

    def __call__(self, client: Client) -> Reply:
        return Reply(self.Report(client.shard.size * self.times + self.more + self.offset))


def test_a_client_carries_out_a_task_that_it_was_taught():
    own = [Own(NAMES[i], DATA.train[[i]]) for i in range(2)]
    taught = [CountSome]
    apps = [client_app(lambda context, mine=mine: JaxClient(LEARNER, mine, others=taught)) for mine in own]
    federation = FlowerFederation(InProcessGrid(apps), poll=0.001).with_learner(LEARNER)
    answers = federation.ask(CountSome(np.int32(2), np.array([1, 3], np.int32), offset=100))
    assert answers.report.total.tolist() == [100 + 18 + 1, 100 + 18 + 3]
    twice = CountSome(np.array([2, 3], np.int32), np.array([[1, 3], [0, 1]], np.int32))
    assert federation.ask(twice, starts=2).report.total.tolist() == [[19, 21], [27, 28]]


def test_a_node_may_store_its_features_in_one_byte():
    one = DATA.train[[0]]
    x, y = one.client(0)
    x = np.round(100 + 20 * x).astype(np.uint8)
    models = LEARNER.for_data(one.spec).init(jax.random.key(0), one.spec)
    sent = wire.flatten({"models": jax.tree.map(lambda a: a[None], models)}, models)
    asked = a_request(everybody=sent)
    stored = Shards.from_lists([x], [y], ["a"], scale=0.25)
    seen = Shards.from_lists([x * 0.25], [y], ["a"])
    replies = [JaxClient(LEARNER, Own("a", own)).carry_out(asked) for own in (stored, seen)]
    for name, array in replies[0].items():
        np.testing.assert_array_equal(array, replies[1][name])


def test_a_task_of_your_own_cannot_take_the_name_of_another():
    class CountExamples(CountSome):
        """Not ours, which is called the same."""

    with pytest.raises(SettingError) as raised:
        JaxClient(LEARNER, Own("a", DATA.train[[0]]), others=[CountExamples])
    assert (
        str(raised.value) == "two tasks are called CountExamples, and clients know them by name: rename one."
    )


def a_request(**other):
    usual = {"client": "a", "task": "MeasureLosses", "split": "train", "spec": DATA.train.spec}
    sent = {"settings": {}, "starts": None, "key": np.zeros(2, np.uint32), "everybody": {}, "each": {}}
    return wire.Request(**(usual | sent | other))


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"split": "test"}, "client 'a' has no test examples"),
        ({"split": "../train"}, "client 'a' has no ../train examples"),
        ({"spec": dataclasses.replace(DATA.train.spec, x_shape=(4,))}, "client 'a' has examples of"),
    ],
)
def test_a_client_refuses_an_ask_about_examples_that_it_does_not_have(changes, sentence):
    client = JaxClient(LEARNER, Own("a", DATA.train[[0]]))
    with pytest.raises(DataError, match=re.escape(sentence)):
        client.carry_out(a_request(**changes))


# -- less than everything ---------------------------------------------------------------------------------


def sent_and_counted(algorithm, rounds):
    """For each round: what every client was sent, and the history's record of it."""
    run = Run(algorithm)
    for t in range(rounds):
        asked, answered = zip(*[run.letters(client)[t] for client in NAMES], strict=True)
        record = run.found.history[t]
        assert record.bytes_down == sum(map(sent_bytes, asked))
        assert record.bytes_up == sum(size(answer["reply"]) for answer in answered)
        yield asked, record


def test_a_settled_client_is_sent_its_own_model_alone():
    alone = 0
    for asked, record in sent_and_counted(ct.IFCA(k=2, rounds=6, n_init=3, settle=1, recheck=3), 6):
        counts = [ask["everybody"][f"models:{WEIGHT}"].numpy().shape[:2] for ask in asked]
        assert set(counts) <= {(3, 2), (3, 1)}  # starts x models
        alone += counts.count((3, 1))
        assert record.bytes_spared == counts.count((3, 1)) * 3 * 1 * 6 * 4
        for ask, (_, models) in zip(asked, counts, strict=True):
            only = ask["key"]["only"].numpy()
            # of what it is not sent, it does not even learn the number
            assert (only == 0).all() if models == 1 else (only < 0).any()
    assert alone > 0


@pytest.mark.parametrize("preset", [None, "authors"])
def test_what_is_shared_is_sent_once_and_comes_back_unless_it_is_frozen(preset):
    share = ct.IFCA(k=2, rounds=ROUNDS, n_init=3, share=lambda name: name == WEIGHT, preset=preset)
    for asked, _ in sent_and_counted(share, ROUNDS):
        for ask in asked:
            shapes = {name: array.numpy().shape for name, array in ask["everybody"].items()}
            assert shapes[f"shared/{WEIGHT}"] == (3, 1, 5)
            assert shapes[f"models/{BIAS}"] == (3, 2, 1)
            assert json.loads(ask["ask"]["settings"])["frozen"] == (preset == "authors")
            assert not any("models" in name and WEIGHT in name for name in shapes)
    for node in Run(share).nodes.values():
        reply = node.said[1]["reply"]
        assert any(WEIGHT in name for name in reply) == (preset is None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "before"),
    [
        (ct.IFCA(k=3, rounds=2, n_init=2, init=ct.FarthestLoss(rounds=1)), 2 * 3 - 1),
        (ct.IFCA(k=2, rounds=2, n_init=2, init=ct.OneShot(rounds=1)), 1),
        (ct.OneShotKMeans(k=2, rounds=2, alone=1), 1),
        (ct.SRFCA(rounds=1, refines=2, threshold="100%"), 4),  # alone, all pairs, and one for each REFINE
        (ct.SRFCA(rounds=1, refines=2, threshold="100%", distance="l2"), 1),
        (ct.IFCA(k=2, rounds=2, n_init=2, resample=True), 1),
        (ct.FedX(k=2, rounds=2, n_init=2, init=ct.MomentDescent()), 26),
    ],
)
def test_a_start_takes_as_many_exchanges_as_the_documentation_says(algorithm, before):
    run = Run(algorithm)
    assert run.fit_asks == before + 2 + 1  # the rounds, and a last one
