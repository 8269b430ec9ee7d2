"""All clients as one batched JAX program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Key, PyTree, Shaped

from coterie import keys
from coterie.data.preparation import Preparation
from coterie.data.shards import Bucket, Shards, Spec, places
from coterie.errors import FederationError, SettingError
from coterie.federation import batches, debug, streaming
from coterie.federation.batches import Batch
from coterie.federation.compiled import keep_compiled_programs
from coterie.federation.devices import copied, everywhere, memory, mesh, on_the_host, spread, use_every_core
from coterie.federation.participants import Participants, placed
from coterie.federation.program import Memory, Program, Rows, Share, shares_of
from coterie.federation.protocol import Answers, Reduction, checked_positions
from coterie.learn import losses, sample_space
from coterie.learn.learner import Learner
from coterie.learn.task import Kind, Task
from coterie.models import stacked
from coterie.models.half import in_half

Precision = Literal["float32", "tf32", "bfloat16"]
_MATMUL = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class _Settings:
    """What a compiled program depends on beside shapes; equal for simulations of equal shape."""

    spec: Spec
    clients: int
    mesh: jax.sharding.Mesh | None
    batch: Batch
    precision: Precision | None
    drop: float
    debug: bool
    resident: bool
    sample_space: bool
    memory: int  # bytes of a device
    halved: int = 0  # how often the batch was, for want of memory

    @property
    def devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size


@jax.tree_util.register_pytree_node_class
class Simulation:
    """A federation whose clients are simulated, batched, on the devices there are.

    Parameters
    ----------
    shards
        Who holds what.
    batch
        Clients per device that are computed at once: 1 is one after another, a large number is a pure
        `vmap`. `"auto"` chooses by what one client needs and what the device has; `"tune"` times a few
        values for each kind of ask and remembers the fastest. The choice changes results by rounding only.
    devices
        The devices to spread the clients over; all when not given, also those of other processes that
        `jax.distributed` has brought together. Each process then holds the examples of its own clients on
        its devices, and all of them run the same program.
    precision
        Of what clients compute: `"float32"`; `"tf32"`, the same but for the products of accelerators; or
        `"bfloat16"`, in which features are stored, and weights and activations rounded wherever a model is
        applied. When not given, tf32 for classifiers on an accelerator and float32 otherwise. Models, their
        averages and all sums are float32 in any case.
    drop
        Fault injection: the probability that a client does not answer an ask.
    debug
        Run client by client without compilation; an error names the client and the task that failed.
    resident
        Whether the data lives on the devices. If not, it stays in host memory (or on disk, for memory-mapped
        shards) and only the clients that are asked travel, block by block.
    sample_space
        Whether local updates may be computed in the span of a client's examples, where that takes less
        arithmetic: see `coterie.learn.sample_space`. It changes results by rounding only.

    A simulation is a pytree whose leaves are the clients' data, so that it can be an argument of a compiled
    program; inside one it no longer knows the client ids.
    """

    def __init__(
        self,
        shards: Shards,
        *,
        batch: Batch = "auto",
        devices: Sequence[Any] | None = None,
        precision: Precision | None = None,
        drop: float = 0.0,
        debug: bool = False,
        resident: bool = True,
        sample_space: bool = True,
    ) -> None:
        _check(batch, precision, drop)
        use_every_core()
        keep_compiled_programs()
        available = list(devices) if devices is not None else jax.devices()
        # no more than there are clients, but some of every process
        grid = mesh(available if jax.process_count() > 1 else available[: len(shards)])
        self._shards: Shards | None = shards
        self._settings = _Settings(
            shards.spec,
            len(shards),
            grid,
            batch,
            precision,
            drop,
            debug,
            resident,
            sample_space,
            memory(available),
        )
        self._learner: Learner | None = None
        self._device = available[0]
        self._rows: tuple[Rows, ...] = ()
        if self.traceable:
            tokens = keys.words(shards.tokens)
            self._rows = tuple(self._put(b, tokens[b.clients], b.clients) for b in shards.buckets)

    def _put(self, bucket: Bucket, tokens: np.ndarray, place: np.ndarray) -> Rows:
        put = partial(spread, grid=self._settings.mesh, device=self._device)
        narrow = self._settings.precision == "bfloat16" and bucket.x.dtype.kind == "f"
        return Rows(
            x=put(bucket.x, dtype=jnp.bfloat16 if narrow else None),
            y=put(bucket.y),
            size=put(bucket.sizes.astype(np.int32)),
            token=put(tokens),
            place=put(place.astype(np.int32), fill=self.clients),
        )

    @property
    def traceable(self) -> bool:
        return self._settings.resident and not self._settings.debug

    @property
    def clients(self) -> int:
        return self._settings.clients

    @property
    def spec(self) -> Spec:
        return self._settings.spec

    @property
    def ids(self) -> np.ndarray:
        return self.shards.ids

    @property
    def tokens(self) -> np.ndarray:
        return self.shards.tokens

    @property
    def preparation(self) -> Preparation | None:
        """What was done to the table that the clients came from, if they did."""
        return self.shards.preparation

    @property
    def shards(self) -> Shards:
        """The data on the host."""
        if self._shards is None:
            raise RuntimeError("inside a compiled program a simulation has no client ids")
        return self._shards

    @property
    def precision(self) -> Precision:
        """The precision in force."""
        if self._settings.precision is not None:
            return self._settings.precision
        return "float32" if self._learner is None else usual_precision(self._learner.loss)

    def recall(self, ids: np.ndarray, spec: Spec) -> None:
        same = np.array_equal(places(ids, self.ids), np.arange(self.clients))
        if not same or spec != self.spec:
            raise SettingError(f"the run was begun with other clients than these {self.clients}.")

    def admit(self) -> None:
        pass  # all clients are there from the beginning

    def present(self) -> Int[np.ndarray, " present"]:
        return np.arange(self.clients)

    def place(self, state: PyTree) -> PyTree:
        return copied(state, grid=self._settings.mesh, device=self._device)

    def with_learner(self, learner: Learner, *, trains: bool = True) -> Simulation:
        learner = learner.for_data(self.spec)
        if self._settings.precision == "bfloat16":
            learner = replace(learner, model=in_half(learner.model))

        def prepared(own: Rows) -> Rows:
            # other learners, and other runs, have not kept anything yet
            gram, (_, examples, *each) = None, own.x.shape
            if (
                self._settings.sample_space
                and trains
                and sample_space.pays(learner, examples, math.prod(each))
            ):
                gram = sample_space.compiled_products()(learner, self.spec, own.x)
            return replace(own, memory=Memory(), gram=gram)

        new = self.tree_unflatten(self._settings, (tuple(map(prepared, self._rows)), learner))
        new._shards, new._device = self._shards, self._device
        return new

    def with_examples(
        self, x: Shaped[Array, "clients capacity ..."], y: Shaped[Array, "clients capacity ..."]
    ) -> Simulation:
        """The same clients, as large as they are, with other examples, which may be traced values.

        So a compiled program can draw its clients' data and train on it. `x` and `y` hold as many examples
        per client, in the order of their positions, as the largest client has; a smaller one takes the first
        of them. As inside any compiled program, the result does not know the client ids.
        """
        if not self.traceable:
            raise SettingError("other examples need a simulation whose data lives on the devices.")
        capacity = max(rows.x.shape[1] for rows in self._rows)
        for name, array, each in (("x", x, self.spec.x_shape), ("y", y, self.spec.y_shape)):
            wanted = (self.clients, capacity, *each)
            if array.shape != wanted:
                raise SettingError(f"{name} must have shape {wanted} for these clients, not {array.shape}.")

        learner: Any = self._learner  # there is one, where there are products between examples

        def filled(rows: Rows) -> Rows:
            # a blank row holds what the last client holds
            client, width = jnp.minimum(rows.place, self.clients - 1), rows.x.shape[1]
            return Rows(
                x=x[client, :width].astype(rows.x.dtype),
                y=y[client, :width].astype(rows.y.dtype),
                size=rows.size,
                token=rows.token,
                place=rows.place,
                memory=rows.memory,
                gram=None
                if rows.gram is None
                else sample_space.products(learner, self.spec, x[client, :width]),
            )

        return self.tree_unflatten(self._settings, (tuple(map(filled, self._rows)), self._learner))

    def select(self, positions: Int[np.ndarray, "*rounds asked"]) -> Participants:
        positions = checked_positions(positions, self.clients)
        if not self.traceable:
            return Participants(positions.astype(np.int32), (), ())
        members = [bucket.clients for bucket in self.shards.buckets]
        return placed(positions, members, self._settings.devices, self.clients)

    def ask(
        self,
        task: Task,
        *,
        only: Int[Array, "*starts asked"] | None = None,
        clients: Participants | None = None,
        key: Key[Array, ""] | None = None,
        reduce: Reduction | None = None,
        starts: int | None = None,
        least: int | None = None,
    ) -> Answers:
        """See `Federation.ask`."""
        if self._learner is None:
            raise SettingError("these clients have no learner yet: use simulation.with_learner(learner).")
        kind, everybody, each = task.split()
        if starts is not None:  # what is a client's own has the clients in front
            each, only = jax.tree.map(lambda a: a.swapaxes(0, 1), (each, only))
        return self._ask(
            kind, everybody, each, only, clients, jax.random.key(0) if key is None else key, reduce, starts
        )

    def _ask(
        self,
        kind: Kind,
        everybody: dict[str, PyTree],
        each: dict[str, PyTree],
        only: Array | None,
        clients: Participants | None,
        key: Key[Array, ""],
        reduce: Reduction | None,
        starts: int | None,
    ) -> Answers:
        assert self._learner is not None
        if kind.task.needs or kind.task.keeps:
            self._check_memory(kind)
        if self.traceable:
            answers: Answers

            def ask() -> Any:
                return _ask(self, kind, reduce, starts, everybody, each, only, clients, key)

            traced = isinstance(self._rows[0].size, jax.core.Tracer)
            if traced or not batches.may_run_out():
                answers, memories = ask()
            else:
                answers, memories = batches.until_it_fits(ask, self.halve_batch)
            if kind.task.keeps:
                self._rows = tuple(
                    eqx.tree_at(lambda r: r.memory, rows, memory)
                    for rows, memory in zip(self._rows, memories, strict=True)
                )
            return answers
        positions = np.arange(self.clients) if clients is None else np.asarray(clients.clients)
        real = positions < self.clients
        if not real.all():
            asked = self.select(positions[real])
            own, one = stacked.take((each, only), np.flatnonzero(real))
            answers = self._ask(kind, everybody, own, one, asked, key, reduce, starts)
            return streaming.with_blanks(answers, positions, real, reduce is not None, starts)
        if self._settings.debug:
            program = Program(kind, reduce, starts, self._settings.drop, len(positions))
            return debug.ask(self.shards, self._learner, program, positions, everybody, each, only, key)

        words = keys.words(self.shards.tokens)

        def put(bucket: Bucket, place: np.ndarray) -> Simulation:
            settings = replace(self._settings, clients=len(place), resident=True)
            block = self.tree_unflatten(settings, ((), self._learner))
            block._device = self._device
            block._rows = (block._put(bucket, words[bucket.clients], place),)
            jax.block_until_ready(block._rows)
            return block

        def ask_block(block: Simulation, own: PyTree) -> Answers:
            theirs, one = own
            return block._ask(kind, everybody, theirs, one, None, key, reduce, starts)

        return streaming.ask(self.shards, positions, (each, only), reduce is not None, starts, put, ask_block)

    def halve_batch(self) -> None:
        """Compute half as many clients at once from now on."""
        if jax.process_count() > 1:  # others would not know
            raise FederationError(
                f"{self.describe()['device']} of process {jax.process_index()} has too little memory for as "
                f"many clients at once: choose fewer for all processes with batch=..."
            )
        settings = replace(self._settings, halved=self._settings.halved + 1)
        most = max(rows.place.shape[0] // settings.devices for rows in self._rows)
        most = min(most, settings.batch) if isinstance(settings.batch, int) else most
        if 2**settings.halved > most:
            raise FederationError(
                f"{self.describe()['device']} has too little memory for one client at a time: use a smaller "
                "model, or fewer starts."
            )
        if settings.halved == 1:
            warnings.warn(
                f"{self.describe()['device']} has too little memory for as many clients at once as were "
                "chosen: half as many are computed at once from now on, or fewer where need be.",
                stacklevel=2,
            )
        self._settings = settings

    def _check_memory(self, kind: Kind) -> None:
        """Refuse tasks that need what nobody has kept, or keep something where that gets lost."""
        if not self.traceable:
            raise SettingError(f"{kind.name} needs a simulation whose data lives on the devices.")
        if kind.task.keeps and any(isinstance(rows.size, jax.core.Tracer) for rows in self._rows):
            raise SettingError(f"what {kind.name} keeps is lost in a compiled round: ask it in a pause.")
        for name in kind.task.needs:
            if not all(name in rows.memory.kept for rows in self._rows):
                raise SettingError(f"{kind.name} needs {name!r}, which no client has kept.")

    def keeping(self, name: str) -> Bool[np.ndarray, " clients"]:
        known = np.zeros(self.clients + 1, bool)
        for rows in self._rows:
            if name in rows.memory.knows:
                known[on_the_host(rows.place)] |= on_the_host(rows.memory.knows[name])
        return known[: self.clients]

    def describe(self) -> dict[str, Any]:
        grid = self._settings.mesh
        return {
            "federation": "simulation",
            "device": (self._device if grid is None else grid.devices.flat[0]).device_kind,
            "devices": self._settings.devices,
            "processes": jax.process_count(),
            "precision": self.precision,
            "batch": self._settings.batch,
            "jax": jax.__version__,
        }

    def tree_flatten(self) -> tuple[tuple[Any, ...], _Settings]:
        return (self._rows, self._learner), self._settings

    @classmethod
    def tree_unflatten(cls, settings: _Settings, children: Any) -> Simulation:
        new = object.__new__(cls)
        new._shards, new._device, new._settings = None, None, settings
        new._rows, new._learner = children
        return new


def usual_precision(loss: str | losses.Loss) -> Precision:
    """The precision of matrix products where none is asked for, on this device, for learners of that loss."""
    classifies = losses.named(loss) in losses.CLASSIFYING
    return "tf32" if classifies and jax.default_backend() != "cpu" else "float32"


def _check(batch: int | str, precision: str | None, drop: float) -> None:
    """Refuse settings that no simulation can have."""
    if batch not in ("auto", "tune") and (not isinstance(batch, int) or batch < 1):
        raise SettingError(f"batch must be 'auto', 'tune' or a number of clients from 1 up, not {batch!r}.")
    if batch == "tune" and jax.process_count() > 1:
        raise SettingError("batch='tune' would choose otherwise in each process: give 'auto' or a number.")
    if precision is not None and precision not in get_args(Precision):
        raise SettingError(f"precision must be one of {', '.join(get_args(Precision))}, not {precision!r}.")
    if not 0 <= drop < 1:
        raise SettingError(f"drop must be a probability below 1, not {drop}.")


@partial(jax.jit, static_argnums=(1, 2, 3))
def _ask(
    simulation: Simulation,
    kind: Kind,
    reduce: Reduction | None,
    starts: int | None,
    everybody: dict[str, PyTree],
    each: dict[str, PyTree],
    only: Array | None,
    clients: Participants | None,
    key: Key[Array, ""],
) -> tuple[Answers, list[Memory]]:
    settings, learner = simulation._settings, simulation._learner
    assert learner is not None
    asked = jnp.arange(settings.clients, dtype=jnp.int32) if clients is None else clients.clients
    shares = shares_of(settings.spec, simulation._rows, (each, only), clients, len(asked), kind.task.needs)
    memories = tuple(rows.memory for rows in simulation._rows) if kind.task.keeps else ()
    program = Program(kind, reduce, starts, settings.drop, len(asked))
    with jax.default_matmul_precision(_MATMUL[simulation.precision]):
        at_once = batches.at_once(
            settings.batch, program, learner, everybody, shares, settings.devices, settings.memory
        )
        at_once = [max(1, batch >> settings.halved) for batch in at_once]

        shape = program.shape(learner, everybody, *shares[0].one())

        def on_device(
            learner: Learner,
            everybody: PyTree,
            key: Any,
            shares: tuple[Share, ...],
            memories: tuple[Memory, ...],
        ) -> Any:
            sums = program.start(shape)
            kept, remembered = [], []
            for i, (share, batch) in enumerate(zip(shares, at_once, strict=True)):
                sums, (replies, answered) = program.run(learner, everybody, key, share, batch, sums)
                if memories:
                    remembered.append(share.remembered(memories[i], replies.keep or {}, answered))
                kept.append((replace(replies, keep=None), answered))
            return sums if settings.mesh is None else jax.lax.psum(sums, "clients"), kept, remembered

        if settings.mesh is not None:
            specs = (P(), P(), P(), P("clients"), P("clients")), (P(), P("clients"), P("clients"))
            on_device = jax.shard_map(
                on_device, mesh=settings.mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
            )
        sums, kept, remembered = on_device(learner, everybody, key, shares, memories)

    # back into the order of the asked, by a gather: a scatter of whole models is slow on some devices
    places = jnp.concatenate([share.place for share in shares])
    back = jnp.zeros(len(asked), jnp.int32).at[places].set(jnp.arange(len(places)), mode="drop")
    replies, answered = jax.tree.map(lambda *parts: jnp.concatenate(parts)[back], *kept)
    real = asked < settings.clients
    traffic = program.traffic(everybody, each, only, shape).only_to(real)
    answers = program.answers(asked, replies, answered & real, sums, traffic)
    return everywhere(settings.mesh, answers), remembered
