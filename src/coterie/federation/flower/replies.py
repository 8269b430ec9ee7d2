"""The replies to one ask: what they must look like, checked and reduced as they arrive."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import RecordDict
from jaxtyping import Array, Bool, Key, PyTree

from coterie.data.shards import Spec
from coterie.federation.flower import wire
from coterie.federation.program import Program, bytes_of
from coterie.federation.protocol import Answers
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.tasks import Reply
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
    broadcast, each
        What is sent, as in `Federation.ask`.
    max_norm
        The largest norm of a value that is accepted.
    """

    def __init__(
        self,
        program: Program,
        learner: Learner,
        spec: Spec,
        broadcast: PyTree,
        each: PyTree,
        max_norm: float,
    ) -> None:
        self._program, self._spec, self._max_norm = program, spec, max_norm
        self._broadcast, self._each = jax.device_get((broadcast, each))
        self._model = learner.shapes(spec)
        self._shape = program.shape(learner, broadcast, _one_example(spec), stacked.take(each, 0))
        lead = () if program.replicas is None else (program.replicas,)
        report, value = jax.tree.map(
            lambda a: np.zeros((*lead, *a.shape), a.dtype), (self._shape.report, self._shape.value)
        )
        self._blank = Reply(report, value, jnp.zeros(lead, jnp.int32), jnp.ones(lead, jnp.float32))
        tree = wire.flatten(wire.reply_tree(self._blank, self._shape), self._model)
        self._expected = {name: (array.shape, array.dtype) for name, array in tree.items()}
        self._sums = program.start(self._shape)
        self._kept: dict[int, tuple[Reply, Bool[np.ndarray, " replicas"]]] = {}

    @property
    def count(self) -> int:
        """How many clients have given a reply that can be used."""
        return len(self._kept)

    def letters(
        self, nodes: Mapping[int, int], names: Sequence[str], split: str, key: Key[Array, ""]
    ) -> dict[int, RecordDict]:
        """What each node is sent.

        `nodes` has the node of each client that can be asked, by its index among those to ask, and `names`
        the ids of all of these.
        """
        # one record for all: what is equal for everybody is kept, and sent to the SuperLink, once
        broadcast = wire.flatten(self._broadcast, self._model)
        shared = wire.to_record(broadcast)
        words = np.asarray(jax.random.key_data(key))
        return {
            node: wire.Ask(
                client=names[index],
                task=self._program.task.__name__,
                split=split,
                spec=self._spec,
                replicas=self._program.replicas,
                key=words,
                broadcast=broadcast,
                each=wire.flatten(stacked.take(self._each, index), self._model),
            ).records(shared)
            for index, node in nodes.items()
        }

    def add(self, index: int, records: RecordDict | wire.Unreadable) -> str | None:
        """Take in the reply of the client asked at `index`.

        Returns why it was left out of some replicas, if it was; raises `Unreadable` if it was of all.
        """
        arrays = wire.check_shapes(wire.read_reply(records), self._expected)
        tree = wire.unflatten(arrays, self._model) or {}
        reply = Reply(
            tree.get("report", {}),
            tree.get("value"),
            tree.get("cluster", self._blank.cluster),
            tree.get("weight", self._blank.weight),
        )
        faults = self._faults(reply)
        usable = np.array([fault is None for fault in faults])
        if not usable.any():
            raise wire.Unreadable(faults[0] or "")
        if self._program.reduce is not None:
            rows: tuple[Reply, Any] = jax.tree.map(
                lambda a: jnp.asarray(a)[None], (reply, self._mask(usable))
            )
            self._sums, reply = _added(self._program, self._sums, *rows)
            reply = jax.tree.map(lambda a: a[0], jax.device_get(reply))
        self._kept[index] = reply, usable
        wrong = [f"{fault} (restart {r})" for r, fault in enumerate(faults) if fault is not None]
        return ", ".join(wrong) or None

    def _mask(self, usable: Bool[np.ndarray, " replicas"]) -> np.ndarray:
        return usable[0] if self._program.replicas is None else usable

    def _faults(self, reply: Reply) -> list[str | None]:
        """For each replica, what makes the reply unusable."""
        count = self._program.replicas or 1
        values = _rows(reply.value, count)
        if values is None:
            return [
                None
            ] * count  # numbers that are only reported may be NaN: an accuracy where there is none
        numbers = np.concatenate([a for a in (values, _rows(reply.report, count)) if a is not None], axis=1)
        weight, cluster = (np.reshape(a, count) for a in (reply.weight, reply.cluster))
        clusters = np.inf if self._program.reduce is None else self._program.reduce.k
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(values.astype(np.float64), axis=1)
        faults: list[str | None] = []
        for r in range(count):
            if not np.isfinite(numbers[r]).all() or not np.isfinite(weight[r]):
                faults.append(NOT_FINITE)
            elif norms[r] > self._max_norm:
                faults.append(f"norm {norms[r]:.3g} of its reply is above {self._max_norm:g}")
            elif not 0 <= cluster[r] < clusters:
                faults.append(f"it names a cluster {cluster[r]} that does not exist")
            elif not 0 <= weight[r] <= MAX_WEIGHT:
                faults.append(f"its weight {weight[r]:g} is not a number of examples")
            else:
                faults.append(None)
        return faults

    def answers(self, positions: np.ndarray, failures: tuple[tuple[int, str], ...], unsent: int) -> Answers:
        """What the algorithm is told: whose replies count, why others' do not, how many were sent nothing."""
        blank = (
            self._blank if self._program.reduce is None else Reply(self._blank.report, None, *self._rest())
        )
        nobody = np.zeros(self._program.replicas or 1, bool)
        each = [self._kept.get(i, (blank, nobody)) for i in range(len(positions))]
        replies, answered = jax.tree.map(
            lambda *a: jnp.asarray(np.stack(a)), *[(reply, self._mask(usable)) for reply, usable in each]
        )
        down = bytes_of((self._broadcast, stacked.take(self._each, 0)))
        clients = jnp.asarray(positions, jnp.int32)
        answers = self._program.answers(clients, replies, answered, self._sums, down, self._shape)
        return dataclasses.replace(answers, failures=failures, unsent=unsent)

    def _rest(self) -> tuple[Any, Any]:
        return self._blank.cluster, self._blank.weight


@partial(jax.jit, static_argnums=0)
def _added(program: Program, sums: Any, replies: Reply, answered: Array) -> tuple[Any, Reply]:
    return program.reduced(sums, replies, answered)


def _one_example(spec: Spec) -> Shard:
    """The smallest shard there is: what a reply looks like does not depend on a client's examples."""
    y = jnp.zeros((1, *spec.y_shape), spec.y_dtype)
    return Shard(jnp.asarray(spec.example()), y, jnp.asarray(1))


def _rows(tree: PyTree, count: int) -> np.ndarray | None:
    """All floating numbers of a tree, one row per replica; None where there are none."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    floats = [leaf.reshape(count, -1) for leaf in leaves if leaf.dtype.kind == "f"]
    return np.concatenate(floats, axis=1) if floats else None
