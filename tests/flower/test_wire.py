"""What travels: trees of arrays and models by name, there and back, and nothing else."""

import io
import json
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from support.in_process import carried_over

import coterie as ct
from coterie.data.shards import Spec
from coterie.errors import ClientError, SettingError
from coterie.flower import wire
from coterie.learn.task import Client, Kind, Reply, Task
from coterie.learn.tasks import ChooseAndTrain, Loss

SPEC = Spec((5,), "float32", (), "int32", 3)
MLP = ct.Learner(ct.models.MLP(hidden=(4,))).for_data(SPEC)
ONE = MLP.init(jax.random.key(0), SPEC)
LINEAR = ct.models.Linear(bias=False).for_data(SPEC).init(jax.random.key(1), SPEC.example())
DOTTED = {"layer.0": {"w.eight": np.ones((2, 3), np.float32)}, "layer.1": np.zeros(4, np.float32)}
BARE = np.ones(7, np.float32)
MODELS = {"mlp": ONE, "linear without bias": LINEAR, "dotted keys": DOTTED, "one bare array": BARE}

DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "uint32", "bool")
names = st.text(st.characters(codec="utf-8", exclude_characters="/:*"), min_size=1, max_size=6)


@st.composite
def plain(draw):
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    return draw(arrays_of.arrays(draw(st.sampled_from(DTYPES)), shape))


@st.composite
def stack(draw, model):
    """The model, or a stack or a table of them."""
    lead = draw(st.sampled_from([(), (3,), (2, 3)]))
    shift = draw(st.integers(0, 100))
    return jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf), (*lead, *np.shape(leaf))).astype(np.float32) + shift,
        model,
    )


def trees(model):
    leaf = plain() | stack(model)
    inner = st.recursive(leaf, lambda t: st.dictionaries(names, t, min_size=1, max_size=3), max_leaves=5)
    return st.none() | inner


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for mine, theirs in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


# -- there and back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_tree_of_arrays_and_models_comes_back_as_it_was_sent(kind, data):
    model = MODELS[kind]
    tree = data.draw(trees(model))
    flat = wire.flatten(tree, model)
    assert all(type(a) is np.ndarray for a in flat.values())
    carried = RecordDict({"a": wire.to_record(flat)})
    same(wire.unflatten(wire.from_record(carried_over(carried).array_records["a"]), model), tree)


@pytest.mark.parametrize("kind", MODELS)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_nothing_of_a_tree_is_lost_on_the_way_to_a_client_without_jax(kind, data):
    model = MODELS[kind]
    tree = data.draw(trees(model))
    flat = wire.flatten(tree, model)
    by_hand = {}

    def walk(node, at):
        for key, child in node.items():
            if isinstance(child, wire.Named):
                by_hand.update({f"{at}{key}:{name}": array for name, array in child.items()})
            elif isinstance(child, dict):
                walk(child, f"{at}{key}/")
            else:
                by_hand[f"{at}{key}"] = child

    seen = wire.nested(flat)
    walk(seen if type(seen) is dict else {"*": seen}, "") if seen is not None else None
    same(by_hand, flat)


def test_arrays_are_named_by_where_they_are():
    stacked = jax.tree.map(lambda a: np.stack([a, a]), ONE)
    tree = {"models": stacked, "report": {"loss": np.ones(2)}, "round": np.int32(3)}
    assert set(wire.flatten(tree, ONE)) == {
        "models:layers.0.weight",
        "models:layers.0.bias",
        "models:layers.1.weight",
        "models:layers.1.bias",
        "report/loss",
        "round",
    }
    assert set(wire.flatten(np.ones(3), ONE)) == {"*"}
    assert set(wire.flatten(LINEAR, LINEAR)) == {"*:layers.0.weight"}
    assert set(wire.flatten({"each": BARE}, BARE)) == {"each"}
    assert wire.flatten(None, ONE) == wire.flatten({}, ONE) == {} and wire.unflatten({}, ONE) is None


def test_names_inside_a_model_may_be_anything():
    model = {"a/b": np.ones(2, np.float32), "c:d*": {"e.f": np.zeros(3, np.float32)}}
    tree = {"models": model, "more": {"model": model}}
    same(wire.unflatten(wire.flatten(tree, model), model), tree)


def test_a_model_of_another_structure_does_not_fit():
    sent = wire.flatten({"model": ONE}, ONE)
    with pytest.raises(wire.Unreadable, match=r"does not fit this learner's: 'layers\.0\.bias'"):
        wire.unflatten(sent, LINEAR)


# -- what does not travel ---------------------------------------------------------------------------------


BAD_TREES = {
    "a tuple": (np.ones(1),),
    "a tuple inside": {"a": (np.ones(1), np.ones(2))},
    "a list inside": {"a": [np.ones(1)]},
    "None inside": {"a": None, "b": np.ones(1)},
    "an empty dict inside": {"a": {}, "b": np.ones(1)},
    "a number as name": {0: np.ones(1)},
    "an empty name": {"": np.ones(1)},
    "a slash": {"a/b": np.ones(1)},
    "a colon": {"a:b": np.ones(1)},
    "a star": {"*": np.ones(1)},
    "a slash further in": {"a": {"b/c": np.ones(1)}},
    "a module that is no model": {"a": eqx.nn.Linear(2, 2, key=jax.random.key(0))},
    "a typed key": {"a": jax.random.key(0)},
    "typed keys": {"a": jax.random.split(jax.random.key(0), 2)},
    "bfloat16": {"a": jnp.ones(2, jnp.bfloat16)},
    "float8": {"a": jnp.ones(2, jnp.float8_e4m3fn)},
    "complex numbers": {"a": np.ones(2, complex)},
    "text": {"a": "some text"},
    "an array of text": {"a": np.array(["some", "text"])},
    "an object": {"a": object()},
}


@pytest.mark.parametrize("kind", BAD_TREES)
def test_what_does_not_travel_is_refused_in_a_sentence_that_says_where(kind):
    with pytest.raises(SettingError):  # whatever the model
        wire.flatten(BAD_TREES[kind], BARE)
    with pytest.raises(SettingError) as raised:
        wire.flatten(BAD_TREES[kind], ONE)
    sentence = str(raised.value)
    assert "\n" not in sentence and sentence.endswith(".")
    assert "a" in sentence.split() or "[" in sentence  # the name of the place, or its path
    assert "does not travel" in sentence or "random key" in sentence or "must be arrays" in sentence


@pytest.mark.parametrize(
    "model, sentence",
    [
        ({"w": jnp.ones(2, jnp.bfloat16)}, "models is "),
        ({"w": jax.random.key(0)}, "models is "),
        ({"w": "text"}, "models is "),
        ({"a.b": np.ones(2, np.float32), "a": {"b": np.zeros(2, np.float32)}}, r"a\.b"),
    ],
)
def test_a_model_of_what_does_not_travel_or_with_two_arrays_of_one_name_is_refused(model, sentence):
    with pytest.raises(SettingError, match=sentence):
        wire.flatten({"models": model}, model)


# -- records ----------------------------------------------------------------------------------------------


def npy(header, body=b""):
    header = header.encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def saved(save, *args, **kwargs):
    file = io.BytesIO()
    save(file, *args, **kwargs)
    return file.getvalue()


def a_request(**other):
    usual = {
        "client": "a",
        "task": "ChooseAndTrain",
        "settings": {"send": "models", "by_examples": False},
        "split": "train",
        "spec": SPEC,
        "starts": None,
        "key": np.array([1, 2**32 - 1], np.uint32),
        "everybody": {"models:layers.0.weight": np.ones((2, 3), np.float32), "round": np.array(4, np.int32)},
        "each": {},
    }
    return wire.Request(**(usual | other))


REQUESTS = {
    "usual": a_request(),
    "starts": a_request(starts=3, each={"pulls": np.array([[2.0]])}, only=np.array([1, -1, 0], np.int32)),
    "one model only": a_request(only=np.array(0, np.int32)),
    "held-out, nothing sent": a_request(split="test", everybody={}, settings={}),
    "settings of all plain kinds": a_request(
        settings={"a": 1, "b": 0.1, "c": "Zürich", "d": None, "e": True, "f": (1, 2)}
    ),
    "real targets": a_request(spec=Spec((2, 3), "uint8", (4,), "float32")),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_survives_serialisation(kind):
    request = REQUESTS[kind]
    read = wire.Request.read(carried_over(request.records()))
    for name in ("client", "task", "settings", "split", "spec", "starts"):
        assert getattr(read, name) == getattr(request, name)
        assert type(getattr(read, name)) is type(getattr(request, name))
    same({"key": read.key, **read.everybody}, {"key": request.key, **request.everybody})
    same((read.each, read.only), (request.each, request.only))


# -- which task -------------------------------------------------------------------------------------------


class Settled(Task):
    """A task with one setting and one array."""

    times: int = eqx.field(static=True)
    more: jax.Array | None = None

    def __call__(self, client: Client) -> Reply:
        return Reply(value=client.shard.size * self.times)


KNOWN = {"ChooseAndTrain": ChooseAndTrain, "Settled": Settled}


def test_a_request_is_for_a_task_that_the_client_knows_with_settings_that_it_has():
    kind, _, _ = Settled(3).split()
    sent = a_request(task=kind.name, settings=wire.settings_to_send(kind))
    assert wire.Request.read(carried_over(sent.records())).kind(KNOWN) == kind
    assert kind == Kind(Settled, (("times", 3),))


@pytest.mark.parametrize(
    "changes, error, sentence",
    [
        ({"task": "everything"}, ClientError, "client 'a' does not know the task 'everything'."),
        ({"task": "Task"}, ClientError, "client 'a' does not know the task 'Task'."),
        ({"task": "", "settings": {}}, ClientError, "client 'a' does not know the task ''."),
        (
            {"task": "Settled", "settings": {"times": 3, "more": 4}},
            wire.Unreadable,
            "the task 'Settled' has no setting 'more'",
        ),
        (
            {"settings": {"send": "models", "models": 3}},
            wire.Unreadable,
            "the task 'ChooseAndTrain' has no setting 'models'",
        ),
    ],
)
def test_any_other_task_or_setting_is_refused(changes, error, sentence):
    with pytest.raises(error) as raised:
        a_request(**changes).kind(KNOWN)
    assert str(raised.value) == sentence


@pytest.mark.parametrize("setting", [np.float32(1), {1, 2}, b"bytes", len, {"a": (1, 2)}])
def test_a_setting_that_is_no_plain_value_does_not_travel(setting):
    with pytest.raises(SettingError, match=r"^the settings of Settled are not plain values, which alone"):
        wire.settings_to_send(Kind(Settled, (("times", setting),)))


@pytest.mark.parametrize("name", ["a", "Zürich 7", "0", "a/b:c*", '"quoted"'])
@pytest.mark.parametrize(
    "spec", [SPEC, Spec((), "float32", (2,), "float32"), Spec((8, 8), "uint8", (), "int32", 1)]
)
def test_an_introduction_survives_serialisation(name, spec):
    introduction = wire.Introduction(name, spec)
    assert wire.Introduction.read(carried_over(introduction.records())) == introduction


@settings(deadline=None, max_examples=25)
@given(arrays=st.dictionaries(names, plain(), max_size=4))
def test_a_reply_survives_serialisation(arrays):
    same(wire.read_reply(carried_over(wire.reply_records(arrays))), arrays)


@pytest.mark.parametrize("stored", [np.asfortranarray, lambda a: a.astype(">f4")])
def test_arrays_may_be_stored_as_another_machine_likes_it(stored):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    data = saved(np.save, stored(array))
    record = ArrayRecord({"a": Array(dtype="float32", shape=(3, 4), stype="numpy.ndarray", data=data)})
    read = wire.read_reply(carried_over(RecordDict({"reply": record})))
    taken = wire.check_shapes(read, {"a": ((3, 4), np.dtype("float32"))})
    np.testing.assert_array_equal(taken["a"], array)
    assert taken["a"].dtype == np.dtype("float32") and taken["a"].dtype.isnative


def test_arrays_that_are_not_contiguous_travel_too():
    turned = np.arange(12.0).reshape(3, 4).T[::2]
    read = wire.read_reply(carried_over(wire.reply_records({"a": turned})))
    np.testing.assert_array_equal(read["a"], turned)


def test_a_refusal_is_read_as_its_sentence_and_told_from_that_of_somebody_else():
    for mistaken in (True, False):
        with pytest.raises(wire.Unreadable, match=r"^the disk is full$") as raised:
            wire.read_reply(carried_over(wire.refusal_records("the disk is full", mistaken=mistaken)))
        assert isinstance(raised.value, wire.Mistaken) == mistaken
    with pytest.raises(wire.Unreadable, match="no reason"):
        wire.read_reply(RecordDict({"refusal": ConfigRecord({})}))


# -- records that are not what they should be -------------------------------------------------------------


GOOD = saved(np.save, np.ones(3, np.float32))
BYTES = {
    "none": b"",
    "too few": GOOD[:-1],
    "half a header": GOOD[:20],
    "something else": b"something else",
    "a pickle": saved(np.save, np.array([{}], object), allow_pickle=True),
    "text": saved(np.save, np.array(["some", "text"])),
    "complex numbers": saved(np.save, np.ones(3, complex)),
    "dates": saved(np.save, np.array(["2024-01-01"], "datetime64[D]")),
    "rows of a table": saved(np.save, np.zeros(3, [("a", "f4"), ("b", "i4")])),
    "a zip archive": saved(lambda file: zipfile.ZipFile(file, "w").close()),
    "a broken zip archive": b"PK\x03\x04 and so on",
    "an npz archive": saved(np.savez, x=np.ones(3)),
    "a header that claims terabytes": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"
    ),
    "a negative shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", b"1234"),
    "an unclosed header": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), ", b"1234" * 3),
    "an unknown type": npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,), }", b"1234" * 3),
    "code in its header": npy("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (3,)}"),
}


def bad_array(kind):
    return ArrayRecord({"a": Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=BYTES[kind])})


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_that_are_no_array_are_unreadable_in_a_reply_and_in_an_ask(kind):
    with pytest.raises(wire.Unreadable, match="its reply cannot be read"):
        wire.read_reply(carried_over(RecordDict({"reply": bad_array(kind)})))
    records = a_request().records()
    records["everybody"] = bad_array(kind)
    with pytest.raises(wire.Unreadable, match="the ask cannot be read"):
        wire.Request.read(carried_over(records))


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        RecordDict({"answer": ArrayRecord()}),
        RecordDict({"reply": ConfigRecord({"a": 1})}),
        RecordDict({"reply": MetricRecord({"a": 1.0})}),
        RecordDict(
            {"reply": ArrayRecord({"a": Array(dtype="float32", shape=(3,), stype="torch.Tensor", data=GOOD)})}
        ),
        wire.Introduction("a", SPEC).records(),
    ],
)
def test_a_reply_without_arrays_is_unreadable(records):
    with pytest.raises(wire.Unreadable, match="cannot be read"):
        wire.read_reply(carried_over(records))


def changed(records, record, **words):
    records = carried_over(records)
    for name, value in words.items():
        if value is None:
            del records[record][name]
        else:
            records[record][name] = value
    return records


def without(records, name):
    del records[name]
    return records


@pytest.mark.parametrize(
    "records",
    [
        RecordDict(),
        without(a_request().records(), "ask"),
        without(a_request().records(), "key"),
        without(a_request().records(), "everybody"),
        without(a_request().records(), "each"),
        changed(a_request().records(), "ask", client=None),
        changed(a_request().records(), "ask", task=None),
        changed(a_request().records(), "ask", split=None),
        changed(a_request().records(), "ask", spec=None),
        changed(a_request().records(), "ask", spec="no JSON"),
        changed(a_request().records(), "ask", spec="[1, 2]"),
        changed(a_request().records(), "ask", spec='{"x_shape": []}'),
        changed(a_request().records(), "ask", starts="many"),
        changed(a_request().records(), "ask", settings=None),
        changed(a_request().records(), "ask", settings="no JSON"),
        changed(a_request().records(), "ask", settings="[1, 2]"),
    ],
)
def test_an_ask_that_lacks_something_is_unreadable(records):
    with pytest.raises(wire.Unreadable, match="the ask cannot be read"):
        wire.Request.read(records)


def a_spec(**other):
    usual = {"x_shape": [5], "x_dtype": "float32", "y_shape": [], "y_dtype": "int32", "classes": 3}
    return json.dumps(usual | other)


BAD_SPECS = {
    "no JSON": "no JSON",
    "null": "null",
    "a number": "3",
    "a list": "[1]",
    "a text": '"x"',
    "too little": '{"x_shape": [5]}',
    "too much": a_spec(extra=1),
    "a shape of text": a_spec(x_shape="abc"),
    "a shape of halves": a_spec(x_shape=[0.5]),
    "a negative shape": a_spec(x_shape=[-3]),
    "an unknown type": a_spec(x_dtype="nonsense"),
    "objects": a_spec(x_dtype="object"),
    "classes of text": a_spec(classes="many"),
    "negative classes": a_spec(classes=-1),
}
BAD_INTRODUCTIONS = {
    kind: RecordDict({"client": ConfigRecord({"id": "a", "spec": spec})}) for kind, spec in BAD_SPECS.items()
} | {
    "nothing": RecordDict(),
    "no shape": RecordDict({"client": ConfigRecord({"id": "a"})}),
    "no name": RecordDict({"client": ConfigRecord({"spec": a_spec()})}),
    "arrays": RecordDict({"client": ArrayRecord()}),
    "a reply": wire.reply_records({"a": np.ones(2)}),
}


@pytest.mark.parametrize("kind", BAD_INTRODUCTIONS)
def test_an_introduction_that_is_wrong_or_lacks_something_is_unreadable(kind):
    with pytest.raises(wire.Unreadable, match="its introduction cannot be read"):
        wire.Introduction.read(carried_over(BAD_INTRODUCTIONS[kind]))


# -- what a reply must look like --------------------------------------------------------------------------


EXPECTED = {
    "value:w": ((2, 3), np.dtype("float32")),
    "cluster": ((), np.dtype("int32")),
    "report/loss": ((2,), np.dtype("float32")),
}


def a_reply(**other):
    usual = {
        "value:w": np.ones((2, 3), np.float32),
        "cluster": np.array(1, np.int32),
        "report/loss": np.ones(2, np.float32),
    }
    return {name: array for name, array in (usual | other).items() if array is not None}


def test_a_reply_of_the_expected_shapes_is_taken_in_the_expected_types():
    taken = wire.check_shapes(
        a_reply(cluster=np.array(1, np.int64), **{"value:w": np.full((2, 3), 0.5)}), EXPECTED
    )
    same(taken, a_reply(**{"value:w": np.full((2, 3), 0.5, np.float32)}))


@pytest.mark.parametrize(
    "other, sentence",
    [
        ({"cluster": None}, "its reply lacks 'cluster'"),
        ({"more": np.ones(1)}, "its reply has an unexpected 'more'"),
        ({"value:w": None, "value:v": np.ones((2, 3))}, "its reply has an unexpected 'value:v'"),
        ({"value:w": np.ones((3, 2))}, r"'value:w' of its reply has shape \(3, 2\), not \(2, 3\)"),
        ({"value:w": np.ones(6)}, r"'value:w' of its reply has shape \(6,\), not \(2, 3\)"),
        ({"cluster": np.ones(1, int)}, r"'cluster' of its reply has shape \(1,\), not \(\)"),
        ({"cluster": np.array(2**32 + 1)}, ".*cluster.*"),  # it does not become another number
        ({"cluster": np.array(1.0)}, "'cluster' of its reply is float64, not int32"),
        ({"value:w": np.ones((2, 3), complex)}, "'value:w' of its reply is complex128, not float32"),
        ({"report/loss": np.array(["1", "2"])}, "'report/loss' of its reply is <U1, not float32"),
    ],
)
def test_any_other_reply_is_unreadable_and_it_is_said_why(other, sentence):
    with pytest.raises(wire.Unreadable, match=f"^{sentence}$"):
        wire.check_shapes(a_reply(**other), EXPECTED)


def test_of_a_reply_only_what_is_not_left_at_its_default_travels():
    number = jax.ShapeDtypeStruct((), jnp.float32)
    plain_reply = Reply(Loss(np.ones(1)), None)
    tree = wire.reply_tree(plain_reply, Reply(Loss(number)))
    assert set(tree) == {"report"} and set(tree["report"]) == {"loss"}
    full = Reply(Loss(np.ones(1)), ONE, np.array(1), np.array(2.0), keep={"own": ONE})
    tree = wire.reply_tree(full, Reply(Loss(number), ONE, number, number, keep={"own": ONE}))
    assert set(tree) == {"report", "value", "cluster", "weight", "keep"}
    assert tree["weight"] == 2.0 and tree["value"] is ONE
    assert set(wire.reply_tree(Reply(None, ONE), Reply(None, ONE))) == {"value"}


def test_what_a_client_keeps_to_itself_is_parted_from_what_it_sends():
    tree = {"report": {"loss": np.ones(1)}, "keep": {"own": ONE, "counts": {"seen": np.arange(3)}}}
    sent, kept = wire.parted(wire.flatten(tree, ONE))
    assert set(sent) == {"report/loss"}
    same(wire.unflatten(kept, ONE), tree["keep"])


@pytest.mark.parametrize("report", [{"loss": np.ones(1)}, np.ones(1), (np.ones(1),)])
def test_a_report_that_is_no_module_does_not_travel(report):
    with pytest.raises(SettingError, match=r"^a report must be a module of its own, such as .*, not a "):
        wire.reply_tree(Reply(report), Reply(report))
