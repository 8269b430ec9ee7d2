"""The replies to one ask: what they must look like, checked and reduced as they arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flwr.app import RecordDict
from jaxtyping import Array, Bool, Key, PyTree

from coterie.data.shards import Spec
from coterie.federation.program import Program
from coterie.federation.protocol import Answers
from coterie.flower import wire
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.task import Reply, shape_of
from coterie.models import stacked

NOT_FINITE = "NaN or infinity in its reply"
MAX_WEIGHT = 2.0**31  # more examples than anybody holds; sums of such weights are still numbers


class Replies:
    """One ask under way.

    Parameters
    ----------
    program
        The ask without its data.
    learner, spec
        What clients do, and the shape of an example: together they tell what a reply must look like.
    everybody, each, only
        What is sent: to all, to each of the clients asked, and which model concerns each. The last
        two have a leading axis of clients.
    max_norm
        The largest norm of a value that is accepted.
    kept
        Shapes of what the clients have kept and need for it, of a client with one example.
    """

    def __init__(
        self,
        program: Program,
        learner: Learner,
        spec: Spec,
        everybody: dict[str, PyTree],
        each: dict[str, PyTree],
        only: Any,
        max_norm: float,
        kept: dict[str, PyTree] | None = None,
    ) -> None:
        self._program, self._spec, self._max_norm = program, spec, max_norm
        everybody, each, only = jax.device_get((everybody, each, only))
        self._everybody, self._each, self._only = everybody, each, only
        self._model = learner.shapes(spec)
        one = _one_example(spec)
        own, which = stacked.take((each, only), 0)
        shape = shape_of(program.task, learner, everybody, own, which, one, program.starts, kept)
        self.keeps = shape.keep or {}  # shapes of what clients keep, of a client with one example
        self._shape = dataclasses.replace(shape, keep=None)
        self._settings = wire.settings_to_send(program.task)
        lead = () if program.starts is None else (program.starts,)
        report, value = jax.tree.map(
            lambda a: np.zeros((*lead, *a.shape), a.dtype), (self._shape.report, self._shape.value)
        )
        none: Any = np.zeros(lead, np.int32), np.ones(lead, np.float32)
        self._blank = Reply(report, value, *none)
        tree = wire.flatten(wire.reply_tree(self._blank, self._shape), self._model)
        self._expected = {name: (array.shape, array.dtype) for name, array in tree.items()}
        self._sums = program.start(self._shape)
        self._traffic = program.traffic(everybody, each, only, self._shape)
        self._one_model = np.asarray(self._traffic.one_model)
        self._kept: dict[int, tuple[Reply, Bool[np.ndarray, " starts"]]] = {}

    @property
    def count(self) -> int:
        """How many clients have given a reply that can be used."""
        return len(self._kept)

    def asks(
        self, nodes: Mapping[int, int], names: Sequence[str], split: str, key: Key[Array, ""]
    ) -> dict[int, RecordDict]:
        """What each node is sent.

        `nodes` has the node of each client that can be asked, by its index among those to ask, and `names`
        the ids of all of these.
        """
        # one record for all: what is equal for everybody is kept, and sent to the SuperLink, once
        whole = wire.to_record(wire.flatten(self._everybody, self._model))
        words = np.asarray(jax.random.key_data(key))
        contents = {}
        for index, node in nodes.items():
            everybody = self._everybody
            only = None if self._only is None else self._only[index]
            if self._one_model[index]:
                everybody, only = self._with_one_model(np.asarray(only))
            request = wire.Request(
                client=names[index],
                task=self._program.task.name,
                settings=self._settings,
                split=split,
                spec=self._spec,
                starts=self._program.starts,
                key=words,
                everybody=wire.flatten(everybody, self._model),
                each=wire.flatten(stacked.take(self._each, index), self._model),
                only=only,
            )
            contents[node] = request.records(None if self._one_model[index] else whole)
        return contents

    def _with_one_model(self, only: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
        """What a client is sent that is told which of the models concerns it: that one, as number 0."""

        def picked(leaf: np.ndarray) -> Any:
            if self._program.starts is None:
                return leaf[only][None]
            return leaf[np.arange(len(only)), only][:, None]

        models = jax.tree.map(picked, self._everybody["models"])
        return {**self._everybody, "models": models}, np.zeros_like(only)

    def add(self, index: int, records: RecordDict | wire.Unreadable) -> str | None:
        """Take in the reply of the client asked at `index`.

        Returns why it was left out of some starts, if it was; raises `Unreadable` if it was of all.
        """
        arrays = wire.check_shapes(wire.read_reply(records), self._expected)
        tree = wire.unflatten(arrays, self._model) or {}
        report = self._blank.report
        reply = Reply(
            None if report is None else type(report)(**tree["report"]),
            tree.get("value"),
            self._only[index] if self._one_model[index] else tree.get("cluster", self._blank.cluster),
            tree.get("weight", self._blank.weight),
        )
        faults = self._faults(reply)
        usable = np.array([fault is None for fault in faults])
        if not usable.any():
            raise wire.Unreadable(faults[0] or "")
        if self._program.reduce is not None:
            rows: tuple[Reply, Any] = jax.tree.map(lambda a: np.asarray(a)[None], (reply, self._mask(usable)))
            self._sums, reply = _added(self._program, self._sums, *rows)
            reply = jax.tree.map(lambda a: a[0], jax.device_get(reply))
        self._kept[index] = reply, usable
        wrong = [f"{fault} (restart {r})" for r, fault in enumerate(faults) if fault is not None]
        return ", ".join(wrong) or None

    def _mask(self, usable: Bool[np.ndarray, " starts"]) -> np.ndarray:
        return usable[0] if self._program.starts is None else usable

    def _faults(self, reply: Reply) -> list[str | None]:
        """For each start, what makes the reply unusable."""
        count = self._program.starts or 1
        faults: list[str | None] = [None] * count
        values = _rows(reply.value, count)
        if values is None:
            # numbers that are only reported may be NaN: an accuracy where there is none
            return faults
        numbers = np.concatenate([a for a in (values, _rows(reply.report, count)) if a is not None], axis=1)
        weight, cluster = (np.reshape(a, count) for a in (reply.weight, reply.cluster))
        clusters = self._clusters()
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(values.astype(np.float64), axis=1)
        for r in range(count):
            if not np.isfinite(numbers[r]).all() or not np.isfinite(weight[r]):
                faults[r] = NOT_FINITE
            elif norms[r] > self._max_norm:
                faults[r] = f"norm {norms[r]:.3g} of its reply is above {self._max_norm:g}"
            elif not 0 <= cluster[r] < clusters:
                faults[r] = f"it names a cluster {cluster[r]} that does not exist"
            elif not 0 <= weight[r] <= MAX_WEIGHT:
                faults[r] = f"its weight {weight[r]:g} is not a number of examples"
        return faults

    def _clusters(self) -> float:
        """How many clusters a reply can be of."""
        if self._program.reduce is not None:
            return self._program.reduce.k
        models = self._everybody.get("models")
        lead = 0 if self._program.starts is None else 1
        return np.inf if models is None else int(jax.tree.leaves(models)[0].shape[lead])

    def answers(
        self, positions: np.ndarray, failures: tuple[tuple[int, str], ...], sent: Iterable[int]
    ) -> Answers:
        """What the algorithm is told: whose replies count, why others' do not, and who was sent anything.

        `sent` has the index of each of these among those to ask.
        """
        blank = self._blank
        if self._program.reduce is not None:
            blank = Reply(blank.report, None, blank.cluster, blank.weight)
        nobody = np.zeros(self._program.starts or 1, bool)
        each = [self._kept.get(i, (blank, nobody)) for i in range(len(positions))]
        replies, answered = jax.tree.map(
            lambda *a: np.stack(a), *[(reply, self._mask(usable)) for reply, usable in each]
        )
        traffic = self._traffic.only_to(np.isin(np.arange(len(positions)), list(sent)))
        clients = positions.astype(np.int32)
        answers = self._program.answers(clients, replies, answered, self._sums, traffic)
        return dataclasses.replace(answers, failures=failures)


@partial(jax.jit, static_argnums=0)
def _added(program: Program, sums: Any, replies: Reply, answered: Array) -> tuple[Any, Reply]:
    return program.reduced(sums, replies, answered)


def _one_example(spec: Spec) -> Shard:
    """The smallest shard there is: what a reply looks like does not depend on a client's examples."""
    one: Any = spec.example(), np.zeros((1, *spec.y_shape), spec.y_dtype), np.asarray(1, np.int32)
    return Shard(*one)


def _rows(tree: PyTree, count: int) -> np.ndarray | None:
    """All floating numbers of a tree, one row per start; None where there are none."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    floats = [leaf.reshape(count, -1) for leaf in leaves if leaf.dtype.kind == "f"]
    return np.concatenate(floats, axis=1) if floats else None
