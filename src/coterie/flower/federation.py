"""Clients on machines of their own, asked through Flower."""

from __future__ import annotations

import importlib.metadata
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flwr.serverapp import Grid
from jaxtyping import Array, Bool, Int, Key, PyTree

from coterie import keys, registry
from coterie.data.shards import Spec
from coterie.errors import FederationError, SettingError
from coterie.federation.flower_settings import FlowerSettings
from coterie.federation.program import Program
from coterie.federation.protocol import Answers, Reduction, checked_positions
from coterie.flower import wire
from coterie.flower.post import Post
from coterie.flower.replies import NOT_FINITE, Replies
from coterie.flower.roster import Roster
from coterie.learn.learner import Learner
from coterie.learn.task import Task


class Participants(eqx.Module):
    """Clients to ask, by position."""

    clients: Int[Any, "*rounds asked"]  # the number of clients where nobody is asked


class _Kept(NamedTuple):
    """Something that clients keep: its shape at a client with one example, and who has it, by position."""

    shape: PyTree
    clients: set[int]


class FlowerFederation:
    """A federation whose clients are Flower nodes: each on its own machine, with its own data.

    Parameters
    ----------
    grid
        What a Flower `ServerApp` is given to reach its nodes.
    settings
        Those of `FlowerSettings`: `min_clients`, `min_replies`, `deadline`, `wait`, `max_norm`, `poll`.

    A client that is not connected, does not answer in time, fails, or sends anything but finite numbers of
    the shapes expected and within the norm is left out of that ask, with the reason in `Answers.failures`;
    it is asked again next time. A node that joins late is let in before the next round. All that a client is
    ever sent is the ask itself: of other clients it learns nothing.
    """

    def __init__(self, grid: Grid, **settings: Any) -> None:
        self._settings = FlowerSettings(**registry.validate_call("flower", FlowerSettings, settings))
        self._post = Post(grid, self._settings.poll)
        self._roster = Roster(self._post, self._settings)
        self._learner: Learner | None = None
        self._split = "train"
        self._kept: dict[str, _Kept] = {}

    def _copy(self) -> FlowerFederation:
        new = object.__new__(FlowerFederation)
        new.__dict__.update(self.__dict__)
        return new

    @property
    def traceable(self) -> bool:
        return False

    @property
    def clients(self) -> int:
        return len(self._gathered.ids)

    @property
    def ids(self) -> np.ndarray:
        return np.array(self._gathered.ids)

    @property
    def tokens(self) -> np.ndarray:
        return keys.tokens(self._gathered.ids)

    @property
    def spec(self) -> Spec:
        spec = self._gathered.spec
        assert spec is not None
        return spec

    @property
    def _gathered(self) -> Roster:
        if not self._roster.begun:
            self._roster.gather()
        return self._roster

    @property
    def test(self) -> FlowerFederation:
        """The same clients, asked about the examples they hold out instead of those they train on."""
        new = self._copy()
        new._split = "test"
        return new

    def recall(self, ids: np.ndarray, spec: Spec) -> None:
        self._roster.recall(ids, spec)

    def admit(self) -> None:
        self._gathered.admit()

    def present(self) -> Int[np.ndarray, " present"]:
        return np.array([i for i in range(self.clients) if self._roster.node(i) is not None], np.int64)

    def place(self, state: PyTree) -> PyTree:
        return jax.tree.map(jnp.asarray, state)

    def with_learner(self, learner: Learner, *, trains: bool = True) -> FlowerFederation:
        new = self._copy()
        new._learner = learner.for_data(self.spec)
        new._kept = {}  # other runs have not kept anything yet
        return new

    def select(self, positions: Int[np.ndarray, "*rounds asked"]) -> Participants:
        positions = checked_positions(positions, self.clients)
        return Participants(positions.astype(np.int32))

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
            raise SettingError("these clients have no learner yet: use federation.with_learner(learner).")
        kind, everybody, each = task.split()
        if starts is not None:  # what is a client's own has the clients in front
            each, only = jax.tree.map(lambda a: a.swapaxes(0, 1), (each, only))
        positions = np.arange(self.clients) if clients is None else np.asarray(clients.clients)
        asked = {i: int(position) for i, position in enumerate(positions) if position < self.clients}
        program = Program(kind, reduce, starts, 0.0, len(positions))
        for name in kind.task.needs:
            if name not in self._kept:
                raise SettingError(f"{kind.name} needs {name!r}, which no client has kept.")
        kept = {name: self._kept[name].shape for name in kind.task.needs}
        replies = Replies(
            program, self._learner, self.spec, everybody, each, only, self._settings.max_norm, kept
        )
        self._note_kept(replies.keeps, starts)
        needed = self._settings.needed(len(asked)) if least is None else least
        failures: dict[int, str] = {}
        nodes = self._reachable(asked, needed, failures)
        names = [self._roster.ids[asked[i]] if i in asked else "" for i in range(len(positions))]
        contents = replies.asks(nodes, names, self._split, jax.random.key(0) if key is None else key)
        index_of = {node: i for i, node in nodes.items()}
        for node, records in self._post.exchange(contents, wire.ASK, self._settings.deadline):
            index = index_of[node]
            try:
                partly = replies.add(index, records)
            except wire.Unreadable as error:
                failures[asked[index]] = str(error)
                if isinstance(error, wire.Mistaken):
                    self._roster.forget(node)
                if isinstance(error, wire.Forgotten):
                    for name in kind.task.needs:
                        self._kept[name].clients.discard(asked[index])
            else:
                for name in replies.keeps:
                    self._kept[name].clients.add(asked[index])
                if partly:
                    failures[asked[index]] = partly
        if replies.count < needed:
            raise self._too_few(replies.count, needed, len(asked), failures)
        return replies.answers(positions, tuple(failures.items()), nodes)

    def _note_kept(self, keeps: dict[str, PyTree], starts: int | None) -> None:
        """Expect that clients keep something of these shapes."""
        lead = () if starts is None else (starts,)
        for name, shape in keeps.items():
            whole = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*lead, *a.shape), a.dtype), shape)
            known = self._kept.get(name)
            clients = known.clients if known is not None and known.shape == whole else set()
            self._kept[name] = _Kept(whole, clients)

    def keeping(self, name: str) -> Bool[np.ndarray, " clients"]:
        known = self._kept[name].clients if name in self._kept else set()
        return np.isin(np.arange(self.clients), list(known))

    def _reachable(self, asked: dict[int, int], needed: int, failures: dict[int, str]) -> dict[int, int]:
        """The nodes of the clients asked that can be asked now, by index, once there are enough of them."""
        began = time.monotonic()
        while True:
            self._roster.look()
            busy = self._post.busy()
            nodes = {i: self._roster.node(position) for i, position in asked.items()}
            away = {
                i: "not connected" if node is None else "still at an earlier ask"
                for i, node in nodes.items()
                if node is None or node in busy
            }
            failures |= {asked[i]: reason for i, reason in away.items()}
            if len(asked) - len(away) >= needed:
                return {i: node for i, node in nodes.items() if node is not None and i not in away}
            if time.monotonic() - began > self._settings.wait:
                raise self._too_few(len(asked) - len(away), needed, len(asked), failures)
            failures.clear()
            time.sleep(self._post.every)

    def _too_few(self, count: int, needed: int, asked: int, failures: dict[int, str]) -> FederationError:
        names = self._roster.ids
        shown = [f"{names[position]}: {reason}" for position, reason in sorted(failures.items())[:5]]
        more = f", and {len(failures) - 5} more" if len(failures) > 5 else ""
        diverged = any(reason.startswith(NOT_FINITE) for reason in failures.values())
        return FederationError(
            f"{count} of {asked} clients answered and {needed} are needed "
            f"({'; '.join(shown)}{more}){self._roster.complaints()}: "
            + ("if training has diverged, lower the learning rate; else " if diverged else "")
            + "bring them back and resume the run, or lower min_replies."
        )

    def describe(self) -> dict[str, Any]:
        return {
            "federation": "flower",
            "flwr": importlib.metadata.version("flwr"),
            "jax": jax.__version__,
        }
