"""What a task is: a question that one client answers from its own data.

A task is a module whose fields are what the client is sent. It is called with what the client has (`Client`)
and gives a `Reply`. It knows nothing about other clients, batching, devices or messages.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32

from coterie import keys
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard

_SECRET = int(keys.token("secret") & np.uint64(0x7FFFFFFF))


def per_client(**settings: Any) -> Any:
    """A field of a task of which every client is sent its own row: on the server it has a leading axis of
    clients, aligned with those that are asked."""
    return eqx.field(metadata={"per_client": True}, **settings)


class Client(eqx.Module):
    """What a client has when it carries out a task."""

    learner: Learner
    shard: Shard
    key: Key[Array, ""]  # its own, derived from that of the ask and its id
    only: Int[Array, ""] | None = None  # the one of the task's models that concerns it; -1: all of them do
    kept: dict[str, PyTree] | None = None  # what it kept of earlier tasks of the run: see `Task.needs`
    secret: Key[Array, ""] | None = None  # randomness that nobody else knows; simulated, where it has none


class Reply(eqx.Module):
    """What one client sends back.

    `value` is the large part (a model, a gradient), summed on the way when the ask reduces: in row `cluster`
    of the sums, counted `weight` times. `cluster` and the small numbers in `report`, a module of the task's
    own, are always kept for each client. What is left at its default does not travel, nor does `keep`: what
    the client keeps to itself for later tasks of the same run, by name.
    """

    report: PyTree = None
    value: PyTree = None
    cluster: Int[Array, ""] | int = 0
    weight: Float[Array, ""] | float = 1.0
    keep: dict[str, PyTree] | None = None


class Task(eqx.Module):
    """What a client is asked.

    Fields that hold arrays or models are sent to every client; those made by `per_client()` to each its own;
    static ones (`eqx.field(static=True)`) are settings, plain values that travel as words. A field that is
    None is not sent. Where a client needs one of the models only, the field that has all is called `models`.
    """

    @abstractmethod
    def __call__(self, client: Client) -> Reply:
        """The reply of a client."""

    keeps: ClassVar[bool] = False  # whether its replies have something that the client keeps to itself
    needs: ClassVar[tuple[str, ...]] = ()  # names of what the client must have kept of earlier tasks

    def compared(self, k: int) -> int:
        """How many losses a client computes that is to compare all of k `models`."""
        return 0

    def updates(self) -> int | Int[Array, "..."]:
        """How many local updates a client carries out; an array where clients differ."""
        return 0

    def split(self) -> tuple[Kind, dict[str, PyTree], dict[str, PyTree]]:
        """What kind of task it is, what everybody is sent, and what each client alone is sent."""
        settings: dict[str, Any] = {}
        everybody: dict[str, PyTree] = {}
        each: dict[str, PyTree] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("static"):
                settings[field.name] = value
            elif value is not None:
                (each if field.metadata.get("per_client") else everybody)[field.name] = value
        return Kind(type(self), tuple(sorted(settings.items()))), everybody, each


@dataclass(frozen=True)
class Kind:
    """A task without what is sent: its class, and its settings by name."""

    task: type[Task]
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.task.__name__

    def with_content(self, everybody: dict[str, PyTree], each: dict[str, PyTree]) -> Task:
        """The task as one client gets it."""
        return self.task(**dict(self.settings), **everybody, **each)


def carry_out(
    kind: Kind,
    learner: Learner,
    everybody: dict[str, PyTree],
    each: dict[str, PyTree],
    only: Int[Array, "*starts"] | None,
    shard: Shard,
    token: UInt32[Array, "2"],
    key: Key[Array, ""],
    starts: int | None,
    kept: dict[str, PyTree] | None = None,
    secret: Key[Array, ""] | None = None,
) -> Reply:
    """What a client does with an ask, wherever it lives: derive its key, and carry out all starts."""

    def once(
        everybody: Any, each: Any, only: Any, kept: Any, key: Key[Array, ""], secret: Key[Array, ""]
    ) -> Reply:
        reply = kind.with_content(everybody, each)(Client(learner, shard, key, only, kept, secret))
        cluster, weight = jnp.asarray(reply.cluster, jnp.int32), jnp.asarray(reply.weight, jnp.float32)
        return Reply(reply.report, reply.value, cluster, weight, reply.keep)

    own = keys.of_client(key, token)
    secret = jax.random.fold_in(own, _SECRET) if secret is None else secret
    if starts is None:
        return once(everybody, each, only, kept, own, secret)
    numbered = (keys.numbered(one, starts) for one in (own, secret))
    return jax.vmap(once)(everybody, each, only, kept, *numbered)


def shape_of(
    kind: Kind,
    learner: Learner,
    everybody: dict[str, PyTree],
    each: dict[str, PyTree],
    only: Any,
    shard: Shard,
    starts: int | None,
    kept: dict[str, PyTree] | None = None,
) -> Reply:
    """The shapes of a client's reply (of one start); defaults, which do not travel, stay plain numbers."""
    content = everybody, each, only, kept
    leaves, tree = jax.tree.flatten((content, learner, shard))
    shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) if hasattr(a, "dtype") else a for a in leaves)
    return _shape_of(kind, starts, tree, tuple(shapes))


@lru_cache(maxsize=256)  # every ask over Flower needs it, and tracing a local update takes a while
def _shape_of(kind: Kind, starts: int | None, tree: Any, leaves: tuple[Any, ...]) -> Reply:
    content, learner, shard = tree.unflatten(leaves)
    if starts is not None:
        content = jax.eval_shape(lambda t: jax.tree.map(lambda a: a[0], t), content)

    def once(content: Any, learner: Learner, shard: Shard) -> Reply:
        everybody, each, only, kept = content
        key = jax.random.key(0)
        return kind.with_content(everybody, each)(Client(learner, shard, key, only, kept, key))

    reply: Reply = eqx.filter_eval_shape(once, content, learner, shard)
    return reply
