"""One ask as a JAX program: a batched map over clients with the reduction fused into it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt32

from coterie import keys
from coterie.data.shards import Spec
from coterie.federation.participants import Participants
from coterie.federation.protocol import Answers, Reduction, Traffic, bytes_of
from coterie.learn.learner import Learner
from coterie.learn.shard import Shard
from coterie.learn.task import Kind, Reply, carry_out, shape_of
from coterie.models import stacked

_DROP = int(keys.token("drop") & np.uint64(0x7FFFFFFF))


class Memory(eqx.Module):
    """What clients have kept of the tasks of a run, by name, and who has; leading axis rows."""

    kept: dict[str, PyTree] = eqx.field(default_factory=dict)
    knows: dict[str, Bool[Array, " rows"]] = eqx.field(default_factory=dict)

    def only(self, names: tuple[str, ...]) -> Memory:
        """What is kept under these names."""
        return Memory({n: self.kept[n] for n in names}, {n: self.knows[n] for n in names})


class Rows(eqx.Module):
    """A bucket of shards on the devices, padded with blank rows to a multiple of their number."""

    x: Array  # (rows, capacity, ...)
    y: Array
    size: Int[Array, " rows"]
    token: UInt32[Array, "rows 2"]
    place: Int[Array, " rows"]  # position of the client; the number of clients for a blank row
    memory: Memory = Memory()  # of the tasks of the run
    gram: Float[Array, "rows capacity capacity"] | None = None  # see `Shard.gram`


class Share(eqx.Module):
    """The clients of one bucket that take part in an ask, or one device's share of them."""

    spec: Spec = eqx.field(static=True)
    x: Array  # (rows, capacity, ...)
    y: Array
    size: Int[Array, " rows"]
    token: UInt32[Array, "rows 2"]
    rows: Int[Array, " clients"] | None  # which rows take part; all, in order, when None
    place: Int[Array, " clients"]  # index of each among the asked; their number for a blank one
    each: dict[str, PyTree]  # leading axis clients
    only: Int[Array, "clients *starts"] | None = None
    memory: Memory = Memory()
    gram: Float[Array, "rows capacity capacity"] | None = None

    def pick(self, start: Any, width: int) -> tuple[Any, ...]:
        """What a client has and is sent, of `width` clients from `start` on: see `Program.client`."""

        def cut(a: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(a, start, width)

        def of_row(a: Array) -> Array:
            return cut(a) if self.rows is None else a[cut(self.rows)]

        x, *rest = jax.tree.map(of_row, (self.x, self.y, self.size, self.gram))
        shard = Shard(self.spec.seen(x), *rest)
        own = jax.tree.map(cut, (self.each, self.only))
        return shard, of_row(self.token), cut(self.place), *own, jax.tree.map(of_row, self.memory)

    @property
    def clients(self) -> int:
        return int(self.place.shape[0])

    def one(self) -> tuple[Shard, PyTree, PyTree, PyTree]:
        """The shapes of one client's shard, of what it alone is sent, and of what it has kept."""
        one = jax.eval_shape(lambda: jax.tree.map(lambda a: a[0], self.pick(0, 1)))
        shard, _, _, each, only, memory = one
        return shard, each, only, memory.kept

    def remembered(self, memory: Memory, keep: dict[str, PyTree], there: Bool[Array, " clients"]) -> Memory:
        """The memory of all rows, with what those clients keep now that are there."""
        count = self.x.shape[0]
        rows = jnp.arange(count) if self.rows is None else self.rows
        rows = jnp.where(there, rows, count)  # nowhere

        def written(new: Array, old: Array | None = None) -> Array:
            old = jnp.zeros((count, *new.shape[1:]), new.dtype) if old is None else old
            return old.at[rows].set(new, mode="drop")

        kept, knows = dict(memory.kept), dict(memory.knows)
        for name, value in keep.items():
            known = name in kept and stacked.alike(kept[name], value)
            kept[name] = jax.tree.map(written, value, *([kept[name]] if known else []))
            knows[name] = written(jnp.ones(len(there), bool), knows[name] if known else None)
        return Memory(kept, knows)


def shares_of(
    spec: Spec,
    buckets: tuple[Rows, ...],
    own: tuple[PyTree, PyTree],
    clients: Participants | None,
    asked: int,
    needs: tuple[str, ...],
) -> tuple[Share, ...]:
    """What of an ask is for each bucket.

    `own` is what clients alone are sent, and `needs` are the names of what they must have kept.
    """
    places = [rows.place for rows in buckets] if clients is None else clients.place
    picked = [None] * len(buckets) if clients is None else clients.rows
    # a blank row is sent what the last client is sent; its reply is dropped
    mine = [jax.tree.map(lambda a: a[jnp.minimum(place, asked - 1)], own) for place in places]  # noqa: B023
    return tuple(
        Share(
            spec,
            *(rows.x, rows.y, rows.size, rows.token),
            *(pick, place, each, only),
            rows.memory.only(needs),
            rows.gram,
        )
        for rows, pick, place, (each, only) in zip(buckets, picked, places, mine, strict=True)
    )


@dataclass(frozen=True)
class Program:
    """An ask without its data."""

    task: Kind
    reduce: Reduction | None
    starts: int | None
    drop: float
    asked: int

    def run(
        self,
        learner: Learner,
        everybody: dict[str, PyTree],
        key: Key[Array, ""],
        share: Share,
        batch: int,
        sums: Any,
    ) -> tuple[Any, tuple[Reply, Bool[Array, " clients"]]]:
        """`jax.lax.map(client, share, batch_size=batch)`, with the replies' values summed batch by batch.

        Returns the sums, and the replies and who answered, stacked over clients. Values that were summed are
        not kept, so that memory is one batch of them plus the sums.
        """
        client = partial(self.client, learner, everybody, key)

        # as few batches as that batch allows, but of equal size: 1,200 clients are 2 x 600, not 1,024 + 176
        batches = -(-share.clients // batch)
        batch = -(-share.clients // batches)
        # the last of them begins early enough to be as large: another size would be a program of its own
        again = batches * batch - share.clients

        def step(sums: Any, number: Any) -> tuple[Any, tuple[Reply, Array]]:
            start = jnp.minimum(number * batch, share.clients - batch) if again else number * batch
            inputs = share.pick(start, batch)
            if batch == 1:
                # not a vmap of one: convolutions with per-client weights are far slower batched than plain
                replies, answered = jax.tree.map(
                    lambda a: a[None], client(*jax.tree.map(lambda a: a[0], inputs))
                )
            else:
                replies, answered = jax.vmap(client)(*inputs)
            counts = answered
            if again:
                new = start + jnp.arange(batch) >= number * batch
                counts = answered & stacked.expand(new, answered)
            sums, replies = self.reduced(sums, replies, counts)
            return sums, (replies, answered)

        if batches == 1:
            return step(sums, 0)
        sums, kept = jax.lax.scan(step, sums, jnp.arange(batches))

        def in_order(a: Array) -> Array:
            first = a[: batches - bool(again)].reshape(-1, *a.shape[2:])
            return jnp.concatenate([first, a[-1, again:]]) if again else first

        return sums, jax.tree.map(in_order, kept)

    def client(
        self,
        learner: Learner,
        everybody: dict[str, PyTree],
        key: Key[Array, ""],
        shard: Shard,
        token: UInt32[Array, "2"],
        place: Int[Array, ""],
        each: dict[str, PyTree],
        only: Any,
        memory: Memory,
    ) -> tuple[Reply, Bool[Array, ""]]:
        """One client's reply, and whether it is given at all."""
        answered = place < self.asked
        for knows in memory.knows.values():
            answered &= knows
        if self.drop:
            # from a key of its own: the client's is for the task
            lot = jax.random.uniform(keys.of_client(jax.random.fold_in(key, _DROP), token))
            answered &= lot >= self.drop
        reply = carry_out(
            self.task, learner, everybody, each, only, shard, token, key, self.starts, memory.kept
        )
        return reply, answered

    def reduced(
        self, sums: Any, replies: Reply, answered: Bool[Array, "clients *starts"]
    ) -> tuple[Any, Reply]:
        """The sums with stacked replies added, and the replies without what was summed."""
        reduce = self.reduce
        if reduce is None:
            return sums, replies

        def added(add: Any) -> Any:
            if self.starts is not None:
                add = jax.vmap(add, in_axes=(0, 1, None if answered.ndim == 1 else 1))
            return add(sums, replies, answered)

        quick = getattr(reduce, "add_numbers", None)
        if quick is None or jax.default_backend() == "cpu":  # where other things take far longer
            whole = added(reduce.add)
        else:
            whole = added(quick)
            sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(whole)]).all()
            whole = jax.lax.cond(sound, lambda: whole, lambda: added(reduce.add))
        return whole, replace(replies, value=None)

    def shape(
        self,
        learner: Learner,
        everybody: dict[str, PyTree],
        shard: Shard,
        each: dict[str, PyTree],
        only: Any,
        kept: dict[str, PyTree],
    ) -> Reply:
        """The shapes of one client's reply (of one start); defaults, which do not travel, stay numbers."""
        shape = shape_of(self.task, learner, everybody, each, only, shard, self.starts, kept)
        return replace(shape, keep=None)

    def start(self, shape: Reply) -> Any:
        """The empty sums, given the shapes of one reply."""
        reduce = self.reduce
        if reduce is None:
            return None
        if self.starts is None:
            return reduce.start(shape.value)
        return jax.vmap(lambda _: reduce.start(shape.value))(jnp.arange(self.starts))

    def answers(
        self,
        clients: Int[Any, " asked"],
        replies: Reply,
        answered: Bool[Any, "asked *starts"],
        sums: Any,
        traffic: Traffic,
    ) -> Answers:
        """What the algorithm is told."""
        if self.starts is not None and answered.ndim == 1:
            answered = answered[:, None].repeat(self.starts, axis=1)
        replied: Any = answered, replies.report, replies.cluster, replies.weight, replies.value
        if self.starts is not None:
            replied = jax.tree.map(lambda a: a.swapaxes(0, 1), replied)
        answered, report, cluster, weight, value = replied
        value = value if self.reduce is None else sums
        return Answers(clients, answered, report, cluster, weight, value, traffic)

    def traffic(
        self, everybody: dict[str, PyTree], each: dict[str, PyTree], only: Any, shape: Reply
    ) -> Traffic:
        """What travels, given the shapes of one reply, when everybody can be reached."""
        return Traffic.of(everybody, each, only, bytes_of(shape) * (self.starts or 1), self.asked)
