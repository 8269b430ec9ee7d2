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
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from jaxtyping import Array

from coterie import keys
from coterie.data.shards import Shards, Spec
from coterie.errors import CoterieError, DataError, SettingError
from coterie.federation.compiled import keep_compiled_programs
from coterie.flower import wire
from coterie.learn.catalogue import TASKS
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.task import Kind, Task, carry_out, shape_of

KEPT = "coterie.kept"  # the record of a node's state that holds what it keeps


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

    def carry_out(self, ask: wire.Request, kept: wire.Arrays | None = None) -> wire.Arrays:
        """Do what is asked, given what was kept of earlier asks; the reply's arrays by name.

        Those whose names begin with `keep/` are kept, and not sent.
        """
        ...

    def needs(self, ask: wire.Request) -> tuple[str, ...]:
        """The names of what must have been kept of earlier asks."""
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

    def examples(self, ask: wire.Request) -> tuple[np.ndarray, np.ndarray]:
        """The features, as models see them, and targets that an ask is about."""
        shards = {"train": self.train, "test": self.test}.get(ask.split)
        if shards is None:
            raise DataError(f"client {self.id!r} has no {ask.split} examples.")
        if not shards.spec.fits(ask.spec):
            raise DataError(f"client {self.id!r} has examples of {shards.spec}, the federation {ask.spec}.")
        x, y = shards.client(0)
        return shards.spec.seen(x), y


class JaxClient:
    """A client that runs the very tasks of the simulation, compiled, on its own examples.

    Parameters
    ----------
    learner
        What it knows how to do: the same as the server's.
    own
        Its data.
    others
        Tasks of your own that it may be asked beside those of `coterie.learn.catalogue`. A client does
        nothing that it does not know by name.
    """

    def __init__(self, learner: Learner, own: Own, others: Iterable[type[Task]] = ()) -> None:
        self._learner, self._own = learner, own
        self._tasks = dict(TASKS)
        for task in others:
            if self._tasks.setdefault(task.__name__, task) is not task:
                raise SettingError(
                    f"two tasks are called {task.__name__}, and clients know them by name: rename one."
                )

    @property
    def id(self) -> str:
        return self._own.id

    @property
    def spec(self) -> Spec:
        return self._own.train.spec

    def needs(self, ask: wire.Request) -> tuple[str, ...]:
        return ask.kind(self._tasks).task.needs

    def carry_out(self, ask: wire.Request, kept: wire.Arrays | None = None) -> wire.Arrays:
        kind = ask.kind(self._tasks)
        x, y = self._own.examples(ask)
        learner = self._learner.for_data(ask.spec)
        model = learner.shapes(ask.spec)
        with jax.default_matmul_precision("float32"):
            tree = _compiled(
                kind,
                ask.starts,
                learner,
                wire.unflatten(ask.everybody, model) or {},
                wire.unflatten(ask.each, model) or {},
                None if ask.only is None else jnp.asarray(ask.only),
                Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(len(x))),
                jnp.asarray(keys.words(keys.tokens([self.id]))[0]),
                jax.random.wrap_key_data(jnp.asarray(ask.key)),
                wire.unflatten(kept or {}, model) or {},
                jax.random.wrap_key_data(jnp.asarray(np.frombuffer(os.urandom(8), np.uint32))),
            )
        return wire.flatten(jax.device_get(tree), model)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(
    kind: Kind,
    starts: int | None,
    learner: Learner,
    everybody: dict[str, Any],
    each: dict[str, Any],
    only: Array | None,
    shard: Shard,
    token: Array,
    key: Array,
    kept: dict[str, Any],
    secret: Array,
) -> dict[str, Any]:
    reply = carry_out(kind, learner, everybody, each, only, shard, token, key, starts, kept, secret)
    return wire.reply_tree(reply, shape_of(kind, learner, everybody, each, only, shard, starts, kept))


def client_app(make: Callable[[Context], Client]) -> ClientApp:
    """A Flower `ClientApp` for the client that `make` gives for a node's context.

    It says who it is and what its examples look like, and carries out what it is asked. A mistake that a
    user can mend (a file that is not there, examples of another shape) goes back as one sentence.
    """
    keep_compiled_programs()  # Flower starts a process for every message
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
            wanted, client = wire.Request.read(message.content), client_of(context)
            if client.id != wanted.client:
                return wire.refusal_records("this node holds another client's data now", mistaken=True)
            # what Flower keeps on the node for the length of a run
            memory = wire.from_record(context.state.array_records.get(KEPT) or ArrayRecord())
            needed = {name: _of_name(memory, name) for name in client.needs(wanted)}
            for name, arrays in needed.items():
                if not arrays:
                    return wire.refusal_records(f"it has not kept {name!r}", forgotten=True)
            reply, kept = wire.parted(
                client.carry_out(wanted, {k: a for own in needed.values() for k, a in own.items()})
            )
            if kept:
                context.state[KEPT] = wire.to_record({**memory, **kept})
            return wire.reply_records(reply)

        return answer(message, reply)

    return app


def _of_name(arrays: wire.Arrays, name: str) -> wire.Arrays:
    """The arrays of one thing that was kept."""
    return {
        full: a for full, a in arrays.items() if full == name or full.startswith((f"{name}/", f"{name}:"))
    }
