"""The client's side: a Flower `ClientApp` that carries out tasks on its own examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from jaxtyping import Array

from coterie import keys, storage
from coterie.data.shards import Shards, Spec
from coterie.errors import ClientError, CoterieError, DataError
from coterie.federation.flower import wire
from coterie.learn import known
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.tasks import Task, carry_out, shape_of


class Client(Protocol):
    """Who holds a shard and can be asked."""

    @property
    def id(self) -> str:
        """The client's stable name."""
        ...

    @property
    def spec(self) -> Spec:
        """The shape of one of its examples."""
        ...

    def carry_out(self, ask: wire.Ask) -> wire.Arrays:
        """Do what is asked; the reply's arrays by name."""
        ...


@dataclass(frozen=True)
class Own:
    """A client's own data.

    Attributes
    ----------
    id
        Its stable name.
    train, test
        `Shards` of this one client: what it trains on, and what it holds out, if anything.
    """

    id: str
    train: Shards
    test: Shards | None = None

    def examples(self, ask: wire.Ask) -> tuple[np.ndarray, np.ndarray]:
        """The features and targets that an ask is about."""
        shards = {"train": self.train, "test": self.test}.get(ask.split)
        if shards is None:
            raise DataError(f"client {self.id!r} has no {ask.split} examples.")
        if not shards.spec.fits(ask.spec):
            raise DataError(f"client {self.id!r} has examples of {shards.spec}, the federation {ask.spec}.")
        return shards.client(0)


class JaxClient:
    """A client that runs the very tasks of the simulation, compiled, on its own examples.

    Parameters
    ----------
    learner
        What it knows how to do: the same as the server's.
    own
        Its data.
    others
        Tasks of your own that it may be asked beside those of `coterie.learn.known`. A client does nothing
        that it does not know by name.
    """

    def __init__(self, learner: Learner, own: Own, others: Iterable[Task] = ()) -> None:
        self._learner, self._own = learner, own
        self._tasks = known.TASKS | {task.__name__: task for task in others}

    @property
    def id(self) -> str:
        return self._own.id

    @property
    def spec(self) -> Spec:
        return self._own.train.spec

    def carry_out(self, ask: wire.Ask) -> wire.Arrays:
        if ask.task not in self._tasks:
            raise ClientError(f"client {self.id!r} does not know the task {ask.task!r}.")
        x, y = self._own.examples(ask)
        learner = self._learner.for_data(ask.spec)
        model = learner.shapes(ask.spec)
        with jax.default_matmul_precision("float32"):
            tree = _compiled(
                self._tasks[ask.task],
                ask.replicas,
                learner,
                wire.unflatten(ask.broadcast, model),
                wire.unflatten(ask.each, model),
                Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(len(x))),
                jnp.asarray(keys.words(keys.tokens([self.id]))[0]),
                jax.random.wrap_key_data(jnp.asarray(ask.key)),
            )
        return wire.flatten(jax.device_get(tree), model)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    task: Task,
    replicas: int | None,
    learner: Learner,
    broadcast: Any,
    each: Any,
    shard: Shard,
    token: Array,
    key: Array,
) -> dict[str, Any]:
    reply = carry_out(task, learner, broadcast, each, shard, token, key, replicas)
    return wire.reply_tree(reply, shape_of(task, learner, broadcast, each, shard, replicas))


def client_app(make: Callable[[Context], Client]) -> ClientApp:
    """A Flower `ClientApp` for the client that `make` gives for a node's context.

    It says who it is and what its examples look like, and carries out what it is asked. A mistake that a
    user can mend (a file that is not there, examples of another shape) goes back as one sentence.
    """
    _keep_compiled_programs()
    app = ClientApp()
    made: dict[int, Client] = {}

    def client_of(context: Context) -> Client:
        if context.node_id not in made:
            made[context.node_id] = make(context)
        return made[context.node_id]

    def answer(message: Message, work: Callable[[], Any]) -> Message:
        try:
            records = work()
        except (CoterieError, wire.Unreadable) as error:
            records = wire.refusal_records(str(error))
        return Message(records, reply_to=message)

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        def introduce() -> Any:
            client = client_of(context)
            return wire.Introduction(client.id, client.spec).records()

        return answer(message, introduce)

    @app.query("ask")
    def ask(message: Message, context: Context) -> Message:
        def reply() -> Any:
            wanted, client = wire.Ask.read(message.content), client_of(context)
            if client.id != wanted.client:
                return wire.refusal_records("this node holds another client's data now", mistaken=True)
            return wire.reply_records(client.carry_out(wanted))

        return answer(message, reply)

    return app


def _keep_compiled_programs() -> None:
    """Flower starts a process for every message: programs compiled in one are kept for the next."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str(storage.cache() / "xla"))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
