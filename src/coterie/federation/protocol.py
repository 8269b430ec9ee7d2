"""Who can be asked, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from coterie.data.shards import Shards, Spec
from coterie.errors import SettingError
from coterie.learn.learner import Learner
from coterie.learn.tasks import Reply, Task


class Reduction(Protocol):
    """How the values of replies are summed on the way, batch by batch: see `coterie.aggregate`.

    The sums of two groups of clients, added leaf by leaf, are the sums of both.
    """

    @property
    def k(self) -> int:
        """How many clusters replies are summed by."""
        ...

    def start(self, value: Any) -> Any: ...

    def add(self, sums: Any, replies: Reply, answered: Bool[Array, " clients"]) -> Any: ...


class Answers(eqx.Module):
    """The replies to one ask, aligned with the clients that were asked.

    An ask with replicas has a replica axis behind the client axis (in `value`, when reduced, in front). So
    has `answered`: a client may have answered for some replicas only.
    """

    clients: Int[Array, " asked"]  # positions of the clients asked
    answered: Bool[Array, "asked *replicas"]  # entries of those that did not answer mean nothing
    report: dict[str, Array]  # leading axis asked
    cluster: Int[Array, "asked ..."]
    value: PyTree  # leading axis asked; what the reduction makes of it, when there is one
    down: int = eqx.field(static=True)  # bytes sent to each client asked
    up: int = eqx.field(static=True)  # bytes sent back by each client that answers
    failures: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())  # position, reason
    unsent: int = eqx.field(static=True, default=0)  # how many of the clients asked were sent nothing


def stack_answers(parts: Sequence[Answers], reduced: bool, order: np.ndarray | None = None) -> Answers:
    """The answers of several groups of clients as one; reduced values are added up."""

    def joined(*arrays: Array) -> Array:
        whole = jnp.concatenate(arrays)
        return whole if order is None else whole[order]

    values = [part.value for part in parts]
    return Answers(
        clients=joined(*[part.clients for part in parts]),
        answered=joined(*[part.answered for part in parts]),
        report=jax.tree.map(joined, *[part.report for part in parts]),
        cluster=joined(*[part.cluster for part in parts]),
        value=jax.tree.map(lambda *a: sum(a[1:], a[0]), *values)
        if reduced
        else jax.tree.map(joined, *values),
        down=parts[0].down,
        up=parts[0].up,
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

    def with_learner(self, learner: Learner) -> Federation:
        """The same clients, knowing how to do what the learner says."""
        ...

    def select(self, positions: Int[np.ndarray, "*rounds asked"]) -> Any:
        """Clients to ask, as `ask` wants them: one set per round where there is a leading axis.

        The result's attribute `clients` holds the positions.
        """
        ...

    def ask(
        self,
        task: Task,
        broadcast: PyTree = None,
        *,
        each: PyTree = None,
        clients: Any = None,
        key: Key[Array, ""] | None = None,
        reduce: Reduction | None = None,
        replicas: int | None = None,
        least: int | None = None,
    ) -> Answers:
        """Have clients carry out a task.

        Parameters
        ----------
        task
            One of `coterie.learn.tasks`, or a function like them.
        broadcast
            What every client is sent.
        each
            What each client alone is sent: a pytree with a leading axis aligned with the clients asked.
        clients
            Whom to ask, as made by `select`; everybody when None.
        key
            Randomness of this ask; every client derives its own from it and from its id.
        reduce
            How to sum the replies' values as they come instead of keeping them all.
        replicas
            Carry out the task this many times side by side: every leaf of `broadcast`, and of `each` behind
            the client axis, has a leading replica axis.
        least
            How few answers will do; the federation's own terms when None. 0: nobody is waited for.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """How results were computed, to be recorded with them: device, precision and the like."""
        ...


def as_federation(train: Shards | Federation) -> Federation:
    """`train` as a federation: a simulation is made for shards."""
    from coterie.federation.simulation import Simulation

    if isinstance(train, Shards):
        return Simulation(train)
    if not hasattr(train, "ask"):
        raise SettingError(
            f"fit needs Shards (such as data.train) or a federation, not {type(train).__name__}."
        )
    return train
