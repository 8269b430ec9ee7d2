"""What travels between server and clients: arrays by name, and a few words. No pickles, no examples.

A tree of arrays is a dict, possibly nested, whose leaves are arrays or models (pytrees of the learner's
structure, perhaps stacked). Its arrays are named by path: `models:layers.0.weight` is the array
`layers.0.weight` of the model (or stack of models) at `models`; `report/loss` is a plain array in a nested
dict; `*` stands for a tree that is itself a leaf. So a client needs no JAX to understand an ask.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from jaxtyping import PyTree

from coterie.data.shards import Spec
from coterie.errors import ClientError, SettingError
from coterie.learn.task import Kind, Reply, Task
from coterie.models import stacked

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
HELLO, ASK = "query.hello", "query.ask"  # the two types of message
_ROOT = "*"
KEEP = "keep"  # where a client's reply has what it keeps to itself
MAX_CLASSES = 2**17  # beyond this, labels are more likely something else, and every model would be huge


class Unreadable(Exception):
    """A message that is not what it should be; the text says how."""


class Mistaken(Unreadable):
    """A node is not the client that it was taken for."""


class Forgotten(Unreadable):
    """A node no longer has what it was to keep."""


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself when it is greeted: its name and the shape of an example."""

    id: str
    spec: Spec

    def records(self) -> RecordDict:
        return RecordDict({"client": ConfigRecord({"id": self.id, "spec": _spec_text(self.spec)})})

    @classmethod
    def read(cls, records: RecordDict | Unreadable) -> Introduction:
        _raise_refusal(records)
        assert not isinstance(records, Unreadable)
        try:
            config = records.config_records["client"]
            return cls(_name(str(config["id"])), _spec_from(config["spec"]))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Unreadable(f"its introduction cannot be read: {error!r}") from error


@dataclass(frozen=True)
class Request:
    """One ask as one client gets it."""

    client: str  # for whom it is: the node may hold another client's data by now
    task: str  # the name of the task's class
    settings: dict[str, Any]  # of the task: plain values
    split: str  # which of its examples: "train" or "test"
    spec: Spec  # the shape of an example throughout the federation
    starts: int | None
    key: np.ndarray
    everybody: Arrays
    each: Arrays
    only: np.ndarray | None = None  # which of the models concerns it

    def records(self, everybody: ArrayRecord | None = None) -> RecordDict:
        """As it is sent; `everybody` is the record of what all are sent, if it is made already."""
        words = {
            "client": self.client,
            "task": self.task,
            "settings": json.dumps(self.settings),
            "split": self.split,
            "spec": _spec_text(self.spec),
        }
        if self.starts is not None:
            words["starts"] = str(self.starts)
        only = {} if self.only is None else {"only": self.only}
        return RecordDict(
            {
                "ask": ConfigRecord(dict(words)),
                "key": to_record({"key": self.key, **only}),
                "everybody": to_record(self.everybody) if everybody is None else everybody,
                "each": to_record(self.each),
            }
        )

    @classmethod
    def read(cls, records: RecordDict) -> Request:
        try:
            words = records.config_records["ask"]
            own = from_record(records.array_records["key"])
            return cls(
                client=str(words["client"]),
                task=str(words["task"]),
                settings=_settings(json.loads(str(words["settings"]))),
                split=str(words["split"]),
                spec=_spec_from(words["spec"]),
                starts=int(str(words["starts"])) if "starts" in words else None,
                key=own["key"],
                everybody=from_record(records.array_records["everybody"]),
                each=from_record(records.array_records["each"]),
                only=own.get("only"),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise Unreadable(f"the ask cannot be read: {error!r}") from error

    def kind(self, known: Mapping[str, type[Task]]) -> Kind:
        """What kind of task is asked for, of those that a client knows."""
        if self.task not in known:
            raise ClientError(f"client {self.client!r} does not know the task {self.task!r}.")
        task = known[self.task]
        static = {field.name for field in fields(task) if field.metadata.get("static")}
        if not self.settings.keys() <= static:
            odd = sorted(self.settings.keys() - static)[0]
            raise Unreadable(f"the task {self.task!r} has no setting {odd!r}")
        return Kind(task, tuple(sorted(self.settings.items())))


def settings_to_send(kind: Kind) -> dict[str, Any]:
    """The settings of a task, if they are plain values."""
    settings = dict(kind.settings)
    try:
        if _settings(json.loads(json.dumps(settings))) == settings:
            return settings
    except (TypeError, ValueError):
        pass
    raise SettingError(f"the settings of {kind.name} are not plain values, which alone travel: {settings}.")


def _settings(content: Any) -> dict[str, Any]:
    """Settings as they arrive: a list is a tuple, as nothing that decides on a program can change."""
    return {str(name): tuple(value) if isinstance(value, list) else value for name, value in content.items()}


def reply_records(arrays: Arrays) -> RecordDict:
    """A reply as it is sent."""
    return RecordDict({"reply": to_record(arrays)})


def refusal_records(sentence: str, mistaken: bool = False, forgotten: bool = False) -> RecordDict:
    """What a client sends that cannot do what it is asked, is another one, or has forgotten what it kept."""
    return RecordDict(
        {"refusal": ConfigRecord({"reason": sentence, "mistaken": mistaken, "forgotten": forgotten})}
    )


def read_reply(records: RecordDict | Unreadable) -> Arrays:
    """The arrays of a reply."""
    _raise_refusal(records)
    assert not isinstance(records, Unreadable)
    try:
        return from_record(records.array_records["reply"])
    except (LookupError, ValueError) as error:
        raise Unreadable(f"its reply cannot be read: {error}") from error


def _raise_refusal(records: RecordDict | Unreadable) -> None:
    """Raise what came instead of an answer."""
    if isinstance(records, Unreadable):
        raise records
    if "refusal" in records.config_records:
        refusal = records.config_records["refusal"]
        kind = Mistaken if refusal.get("mistaken") else Forgotten if refusal.get("forgotten") else Unreadable
        raise kind(first_line(str(refusal.get("reason", ""))))


def first_line(text: str) -> str:
    """The first line of what a client says, in case it says a lot."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "no reason given"


def to_record(arrays: Arrays) -> ArrayRecord:
    """Named arrays in Flower's form."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The inverse of `to_record`; whatever is no plain array of numbers is unreadable."""
    return {name: _array(name, array) for name, array in record.items()}


def _array(name: str, sent: Array) -> np.ndarray:
    """An array from the form in which NumPy saves one; nothing else is tried, whatever the bytes may be."""
    content = sent.data
    file = io.BytesIO(content)
    try:
        if sent.stype != SType.NUMPY:
            raise ValueError(f"but {sent.stype}")
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = header[version](file)
        if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"{len(content)} bytes are not an array of {shape} x {dtype}")
        flat = np.frombuffer(content, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if by_columns else "C")
    except Exception as error:  # bytes from elsewhere can be wrong in more ways than can be listed
        raise ValueError(f"{name!r} is not an array of numbers, {error}") from error


def flatten(tree: PyTree, model: PyTree) -> Arrays:
    """The arrays of a tree by name; `model` has the structure of one model."""
    if tree is None or (isinstance(tree, dict) and not tree):
        return {}
    bare = jax.tree_util.treedef_is_leaf(jax.tree.structure(model))

    def whole(node: Any) -> bool:
        return stacked.alike(node, model) or node is None or (isinstance(node, dict) and not node)

    arrays: Arrays = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, whole):
        where = _where(path)
        if leaf is None or (isinstance(leaf, dict) and not leaf):
            raise SettingError(f"{where} is empty, which does not travel: leave it out.")
        if bare or not stacked.alike(leaf, model):
            arrays[where] = _plain(where, leaf)
            continue
        for inner, array in jax.tree_util.tree_leaves_with_path(leaf):
            name = stacked.name_of(inner)
            if f"{where}:{name}" in arrays:
                raise SettingError(f"two arrays of this learner's model are called {name!r}: rename one.")
            arrays[f"{where}:{name}"] = _plain(where, array)
    return arrays


def unflatten(arrays: Mapping[str, Any], model: PyTree) -> Any:
    """The inverse of `flatten`; None where there are no arrays."""
    tree = nested(arrays)
    names = list(stacked.named(model))
    structure = jax.tree.structure(model)

    def with_models(node: Any) -> Any:
        if isinstance(node, Named):
            if node.keys() != set(names):
                odd = sorted(node.keys() ^ set(names))[0]
                raise Unreadable(f"a model that was sent does not fit this learner's: {odd!r} is on one side")
            return jax.tree.unflatten(structure, [node[name] for name in names])
        return {key: with_models(child) for key, child in node.items()} if isinstance(node, dict) else node

    return with_models(tree)


class Named(dict[str, Any]):
    """The arrays of a model, or of a stack of models, by name."""


def nested(arrays: Mapping[str, Any]) -> Any:
    """The tree as nested dicts, with models as `Named` arrays: all that a client without JAX needs."""
    if not arrays:
        return None
    root: dict[str, Any] = {}
    for full, array in arrays.items():
        where, colon, name = full.partition(":")
        *parents, last = where.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        if colon:
            node.setdefault(last, Named())[name] = array
        else:
            node[last] = array
    return root.get(_ROOT, root)


def reply_tree(reply: Reply, shape: Reply) -> dict[str, Any]:
    """What of a reply travels; `shape` tells by plain numbers what was left at its default."""
    tree: dict[str, Any] = {} if reply.report is None else {"report": by_field(reply.report)}
    if reply.value is not None:
        tree["value"] = reply.value
    for name in ("cluster", "weight"):
        if hasattr(getattr(shape, name), "dtype"):
            tree[name] = getattr(reply, name)
    return tree | ({KEEP: reply.keep} if reply.keep else {})


def parted(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """What of a client's reply is sent, and what it keeps to itself."""
    mark = f"{KEEP}/"
    kept = {name.removeprefix(mark): a for name, a in arrays.items() if name.startswith(mark)}
    return {name: a for name, a in arrays.items() if not name.startswith(mark)}, kept


def by_field(report: Any) -> dict[str, Any]:
    """The fields of a report by name."""
    if not is_dataclass(report):
        raise SettingError(
            f"a report must be a module of its own, such as coterie.learn.tasks.Loss, not a "
            f"{type(report).__name__}."
        )
    return {field.name: getattr(report, field.name) for field in fields(report)}


def check_shapes(arrays: Arrays, expected: Shapes) -> Arrays:
    """A reply's arrays in the expected dtypes, if they are just the expected ones."""
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())[0]
        raise Unreadable(f"its reply {'lacks' if odd in expected else 'has an unexpected'} {odd!r}")
    for name, (shape, dtype) in expected.items():
        if arrays[name].shape != shape:
            raise Unreadable(f"{name!r} of its reply has shape {arrays[name].shape}, not {shape}")
        if not np.can_cast(arrays[name].dtype, dtype, "same_kind"):
            raise Unreadable(f"{name!r} of its reply is {arrays[name].dtype}, not {dtype}")
        if dtype.kind in "iu" and (arrays[name].astype(dtype) != arrays[name]).any():
            raise Unreadable(f"{name!r} of its reply does not fit in {dtype}")
    with np.errstate(over="ignore"):  # what is too large is infinite, and found to be
        return {name: np.asarray(arrays[name], dtype) for name, (_, dtype) in expected.items()}


def _where(path: Any) -> str:
    keys = [getattr(entry, "key", None) for entry in path]
    for key in keys:
        if not isinstance(key, str) or not key or set(key) & set("/:*"):
            raise SettingError(
                "what a task is sent must be arrays, models, or dicts of them, with names free of '/', ':' "
                f"and '*': {jax.tree_util.keystr(path)} is not."
            )
    return "/".join(map(str, keys)) or _ROOT


def _plain(where: str, leaf: Any) -> np.ndarray:
    if hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise SettingError(f"{where} is a random key: only the ask's own key travels.")
    array = np.asarray(leaf)
    if array.dtype.kind not in "fiub":
        raise SettingError(f"{where} is {array.dtype}, which does not travel: send float32 or integers.")
    return array


def _name(text: str) -> str:
    """A client's id from what somebody else has sent: it will be shown to people."""
    if not text.strip() or not text.isprintable() or len(text) > 200:
        raise ValueError(f"{text[:200]!r} is not a name")
    return text


def _spec_text(spec: Spec) -> str:
    return json.dumps(asdict(spec))


def _spec_from(text: Any) -> Spec:
    """A spec from what somebody else has sent."""
    spec = Spec.from_json(dict(json.loads(str(text))))
    for shape in (spec.x_shape, spec.y_shape):
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"{shape!r} is not a shape")
    for dtype in (spec.x_dtype, spec.y_dtype):
        if not isinstance(dtype, str) or np.dtype(dtype).kind not in "fiub":
            raise ValueError(f"{dtype!r} is not a type of numbers")
    if spec.scale is not None and not (type(spec.scale) is float and 0 < spec.scale < float("inf")):
        raise ValueError(f"{spec.scale!r} is not a scale")
    if spec.classes is not None and (type(spec.classes) is not int or not 1 <= spec.classes <= MAX_CLASSES):
        raise ValueError(f"{spec.classes!r} is not a number of classes")
    return spec
