"""Who can be asked, and what comes back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie.data.shards import Shards, Spec
from coterie.errors import SettingError
from coterie.learn.learner import Learner
from coterie.learn.task import Reply, Task
from coterie.models import stacked


class Reduction(Protocol):
    """How the values of replies are summed on the way, batch by batch: see `coterie.aggregate`.

    The sums of two groups of clients, added leaf by leaf, are the sums of both. A reduction may have a method
    `add_numbers`, which need only be right where all values are numbers, and may then be faster.
    """

    @property
    def k(self) -> int:
        """How many clusters replies are summed by."""
        ...

    def start(self, value: Any) -> Any: ...

    def add(self, sums: Any, replies: Reply, answered: Bool[Array, " clients"]) -> Any: ...


class Ask(eqx.Module):
    """What an algorithm wants clients to be asked, in one exchange.

    Attributes
    ----------
    task
        With what is sent. Fields that each client has its own row of are aligned with `clients`.
    only
        Which of the task's stacked `models` concerns each of `clients`: it is sent that one alone. -1: all.
    clients
        Positions of those to ask; None for everybody (in a round: for all that are drawn).
    key
        Randomness of this ask; the driver's choice when None.
    reduce
        How the replies' values are summed as they come; None to keep all of them.
    least
        How few answers will do; the federation's own setting when None.
    remind
        What to ask those clients first that do not have, or no longer have, what the task needs them to have
        kept: the ask by which they came to keep it.
    """

    task: Task
    only: Int[Array, " clients"] | None = None
    clients: Int[np.ndarray, " clients"] | None = None
    key: Key[Array, ""] | None = None
    reduce: Reduction | None = eqx.field(static=True, default=None)
    least: int | None = eqx.field(static=True, default=None)
    remind: Ask | None = None


class Traffic(eqx.Module):
    """What an ask moves, in bytes."""

    sent: Bool[Any, " asked"]  # who is sent anything
    one_model: Bool[Any, " asked"]  # who is sent only one of the models, and not all of them
    down: int = eqx.field(static=True)  # to each client that is sent all of the models
    spared: int = eqx.field(static=True)  # how much less it is for one that is sent one model
    up: int = eqx.field(static=True)  # back from each client that answers

    @classmethod
    def of(
        cls,
        everybody: dict[str, PyTree],
        each: dict[str, PyTree],
        only: Int[Array, "asked *starts"] | None,
        up: int,
        asked: int,
    ) -> Traffic:
        """The traffic of an ask that reaches everybody."""
        down = bytes_of(everybody) + bytes_of(each) // asked
        if only is None:
            return cls(np.ones(asked, bool), np.zeros(asked, bool), down, 0, up)
        if "models" not in everybody:
            raise SettingError(
                "`only` names one of a task's models for each client: this task has no models."
            )
        down += bytes_of(only) // asked
        models, k = everybody["models"], jax.tree.leaves(everybody["models"])[0].shape[only.ndim - 1]
        one_model = (only >= 0).reshape(asked, -1).all(axis=1)
        return cls(np.ones(asked, bool), one_model, down, bytes_of(models) // k * (k - 1), up)

    def only_to(self, some: Bool[Any, " asked"]) -> Traffic:
        """The same, had nobody else been sent anything."""
        return dataclasses.replace(self, sent=self.sent & some)

    def __getitem__(self, index: Any) -> Traffic:
        """The traffic of some of the clients."""
        return dataclasses.replace(self, sent=self.sent[index], one_model=self.one_model[index])

    def total(self, answered: Bool[np.ndarray, " asked"]) -> tuple[int, int, int]:
        """Bytes down, bytes that more would have been sent with all models for everybody, bytes up."""
        spared = int((self.sent & self.one_model).sum()) * self.spared
        return int(self.sent.sum()) * self.down - spared, spared, int((self.sent & answered).sum()) * self.up


class Answers(eqx.Module):
    """The replies to one ask, aligned with the clients that were asked.

    An ask with several starts has an axis of starts in front of all but `clients`, `traffic` and `failures`.
    """

    clients: Int[Array, " asked"]  # positions of the clients asked
    answered: Bool[Array, "*starts asked"]  # entries of those that did not answer mean nothing
    report: PyTree  # the task's own module; leading axis asked
    cluster: Int[Array, "*starts asked"]
    weight: Float[Array, "*starts asked"]
    value: PyTree  # leading axis asked; what the reduction makes of it, when there is one
    traffic: Traffic
    failures: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())  # position, reason

    def updated(self, known: PyTree, reported: PyTree) -> PyTree:
        """What is known of all clients, with what those that answered have told now (of one start)."""

        def one(known: Array, reported: Array) -> Array:
            rows = jnp.where(stacked.expand(self.answered, reported), reported, known[self.clients])
            return known.at[self.clients].set(rows, mode="drop")  # a place may be blank

        return jax.tree.map(one, known, reported)

    def of_start(self, start: int) -> Answers:
        """The answers for one of several starts."""
        answered, report, cluster, weight, value = stacked.take(
            (self.answered, self.report, self.cluster, self.weight, self.value), start
        )
        return Answers(self.clients, answered, report, cluster, weight, value, self.traffic, self.failures)


def join_answers(parts: Sequence[Answers], reduced: bool, starts: bool, order: np.ndarray) -> Answers:
    """The answers of several groups of clients as one, in that order; reduced values are added up."""

    def joined(*arrays: Array, axis: int = int(starts)) -> Array:
        return jnp.take(jnp.concatenate(arrays, axis), order, axis)

    def of_clients(name: str) -> Any:
        return jax.tree.map(joined, *[getattr(part, name) for part in parts])

    values = [part.value for part in parts]
    traffic = [part.traffic for part in parts]
    return Answers(
        clients=joined(*[part.clients for part in parts], axis=0),
        answered=of_clients("answered"),
        report=of_clients("report"),
        cluster=of_clients("cluster"),
        weight=of_clients("weight"),
        value=jax.tree.map(lambda *a: sum(a[1:], a[0]), *values) if reduced else of_clients("value"),
        traffic=dataclasses.replace(
            traffic[0],
            sent=joined(*[part.sent for part in traffic], axis=0),
            one_model=joined(*[part.one_model for part in traffic], axis=0),
        ),
    )


class Federation(Protocol):
    """Clients that can be asked. The one method that matters is `ask`."""

    @property
    def clients(self) -> int:
        """How many clients there are; they are numbered by position 0, 1, 2, ... for good."""
        ...

    @property
    def ids(self) -> np.ndarray:
        """The stable client ids, by position."""
        ...

    @property
    def tokens(self) -> np.ndarray:
        """The token of each id: see `coterie.keys`."""
        ...

    @property
    def spec(self) -> Spec:
        """The shape of one example."""
        ...

    @property
    def traceable(self) -> bool:
        """Whether whole rounds can be compiled; otherwise they run on the host, ask by ask."""
        ...

    def recall(self, ids: np.ndarray, spec: Spec) -> None:
        """The clients of an interrupted run, who keep their positions, present or not, and its spec."""
        ...

    def admit(self) -> None:
        """Let in clients that have joined since: they get positions behind those there are."""
        ...

    def present(self) -> Int[np.ndarray, " present"]:
        """Positions of the clients that can be asked now, as far as is known."""
        ...

    def place(self, state: PyTree) -> PyTree:
        """The server's state where rounds leave it, so that the first one compiles as all others do."""
        ...

    def with_learner(self, learner: Learner, *, trains: bool = True) -> Federation:
        """The same clients, knowing how to do what the learner says.

        `trains` tells whether they will be asked to train, for which a federation may prepare.
        """
        ...

    def select(self, positions: Int[np.ndarray, "*rounds asked"]) -> Any:
        """Clients to ask, as `ask` wants them: one set per round where there is a leading axis.

        The result's attribute `clients` holds the positions. A position equal to the number of clients leaves
        its place blank: nobody is asked there, and `answered` is False.
        """
        ...

    def ask(
        self,
        task: Task,
        *,
        only: Int[Array, "*starts asked"] | None = None,
        clients: Any = None,
        key: Key[Array, ""] | None = None,
        reduce: Reduction | None = None,
        starts: int | None = None,
        least: int | None = None,
    ) -> Answers:
        """Have clients carry out a task.

        Parameters
        ----------
        task
            With what is sent. Fields that each client has its own row of are aligned with the clients asked.
        only
            Which of the task's stacked `models` concerns each client asked: it is sent that one alone. -1:
            all of them do.
        clients
            Whom to ask, as made by `select`; everybody when None.
        key
            Randomness of this ask; every client derives its own from it and from its id.
        reduce
            How to sum the replies' values as they come instead of keeping them all.
        starts
            Carry out the task so many times side by side, in one exchange: every array of `task` and `only`
            has a leading axis of starts.
        least
            How few answers will do; the federation's own setting when None. 0: nobody is waited for.
        """
        ...

    def keeping(self, name: str) -> Bool[np.ndarray, " clients"]:
        """Which clients are known to have kept something under a name, in this run."""
        ...

    def describe(self) -> dict[str, Any]:
        """How results were computed, to be recorded with them: device, precision and the like."""
        ...


def checked_positions(
    positions: Int[np.ndarray, "*rounds asked"], clients: int
) -> Int[np.ndarray, "*rounds asked"]:
    """The places of the clients to ask, each a client's or, where nobody is asked, the number of clients."""
    positions = np.asarray(positions)
    real = (positions >= 0) & (positions < clients)
    if positions.size == 0 or not real.any(axis=-1).all() or (positions[~real] != clients).any():
        raise SettingError(
            f"clients to ask must be positions between 0 and {clients - 1}, at least one in every round; "
            f"{clients} stands for nobody."
        )
    return positions


def bytes_of(tree: PyTree) -> int:
    """The bytes that the arrays of a pytree take; numbers that are not arrays take none."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return sum(math.prod(leaf.shape) * _itemsize(leaf) for leaf in leaves)


def _itemsize(leaf: Any) -> int:
    return 8 if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else int(jnp.dtype(leaf.dtype).itemsize)


def as_federation(train: Shards | Federation) -> Federation:
    """`train` as a federation: a simulation is made for shards."""
    from coterie.federation.simulation import Simulation

    if isinstance(train, Shards):
        return Simulation(train)
    if not hasattr(train, "ask"):
        raise SettingError(
            "these are no clients: give Shards (such as data.train) or a federation, "
            f"not {type(train).__name__}."
        )
    return train
