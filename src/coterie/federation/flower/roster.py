"""Who is there: which node holds which client's data, who left, who came back, who is new."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import RecordDict

from coterie.data.shards import Spec
from coterie.errors import FederationError
from coterie.federation.flower import wire
from coterie.federation.flower.post import Post

GREETING = 60.0  # seconds a node has to introduce itself before it is greeted again


@dataclass
class Roster:
    """The clients of a federation by position, and the node at which each of them can be reached.

    A node is known by what it says when it is greeted: its client's id and the shape of an example. Greeting
    takes an exchange, which runs beside those of the rounds and holds nobody up. A client keeps its position
    for good; new ones are let in between rounds (`admit`).
    """

    post: Post
    min_clients: int
    wait: float
    ids: list[str] = field(default_factory=list)
    spec: Spec | None = None
    _node_of: dict[str, int] = field(default_factory=dict)
    _known: dict[int, wire.Introduction] = field(default_factory=dict)
    _refused: dict[int, str] = field(default_factory=dict)
    _greeted: dict[str, int] = field(default_factory=dict)
    _asked_at: dict[int, float] = field(default_factory=dict)
    _here: set[int] = field(default_factory=set)

    def look(self) -> None:
        """See who is connected, greet those we do not know, and take in what the greeted have said."""
        self._here = self.post.connected()
        now = time.monotonic()
        for node, records in self.post.collect(self._greeted):
            try:
                if isinstance(records, wire.Unreadable):
                    raise records
                if "refusal" in records.config_records:
                    wire.read_reply(records)
                self._introduce(node, wire.Introduction.read(records))
            except wire.Unreadable as error:
                self._refused[node] = str(error)
        strangers = {
            node: RecordDict()
            for node in self._here - self._known.keys()
            if now - self._asked_at.get(node, -np.inf) > GREETING
        }
        if strangers:
            self._asked_at |= dict.fromkeys(strangers, now)
            self._greeted |= self.post.send(strangers, wire.HELLO, GREETING)
        for node, introduction in self._known.items():
            if node in self._here and node not in self._refused:
                self._settle(node, introduction.id)

    def _introduce(self, node: int, introduction: wire.Introduction) -> None:
        self._known[node] = introduction
        self._refused.pop(node, None)
        theirs, ours = introduction.spec, self.spec
        if ours is None:
            self.spec = theirs
            return
        alike = replace(theirs, classes=None) == replace(ours, classes=None)
        if not alike or (theirs.classes is None) != (ours.classes is None):
            self._refused[node] = (
                f"client {introduction.id!r} has examples of {_shape(theirs)}, the others of {_shape(ours)}"
            )
        elif (theirs.classes or 0) > (ours.classes or 0):
            if self.ids:
                self._refused[node] = (
                    f"client {introduction.id!r} has {theirs.classes} classes, but training began with "
                    f"{ours.classes}"
                )
            else:
                self.spec = theirs

    def _settle(self, node: int, client: str) -> None:
        """Let a node stand for its client, unless another one that is connected does already."""
        holder = self._node_of.get(client)
        if holder is None or holder not in self._here:
            self._node_of[client] = node

    def node(self, position: int) -> int | None:
        """The node of a client, if it is connected."""
        node = self._node_of.get(self.ids[position])
        return node if node in self._here else None

    def position(self, node: int) -> int:
        """The client for which a node stands."""
        return self.ids.index(self._known[node].id)

    def admit(self) -> None:
        """Give positions to the clients that have none yet."""
        self.look()
        self.ids += sorted(self._node_of.keys() - set(self.ids), key=_natural)

    def recall(self, ids: Iterable[object]) -> None:
        """Clients of an interrupted run: they keep their positions, connected or not."""
        self.ids = [str(name) for name in ids]

    def gather(self) -> None:
        """Wait for enough clients to begin with, and for all that are connected to introduce themselves."""
        began = time.monotonic()
        while True:
            self.look()
            present = [c for c, node in self._node_of.items() if node in self._here]
            waited = time.monotonic() - began
            if len(present) >= self.min_clients and (not self._greeted or waited > GREETING):
                break
            if waited > self.wait:
                raise FederationError(
                    f"only {len(present)} of the {self.min_clients} clients needed to begin were there after "
                    f"{self.wait:g} s{self.complaints()}: start more SuperNodes, or lower min_clients."
                )
            time.sleep(self.post.every)
        if not self.ids:
            self.admit()

    def complaints(self) -> str:
        """What is wrong with nodes that are connected but cannot take part, in words."""
        refused = [reason for node, reason in self._refused.items() if node in self._here]
        taken = [
            f"two nodes say that they are client {known.id!r}"
            for node, known in self._known.items()
            if node in self._here and node not in self._refused and self._node_of.get(known.id) != node
        ]
        complaints = list(dict.fromkeys(refused + taken))
        return f" ({'; '.join(complaints)})" if complaints else ""


def _shape(spec: Spec) -> str:
    labels = "real targets" if spec.classes is None else "class labels"
    return f"shape {spec.x_shape} ({spec.x_dtype}) with {labels} of shape {spec.y_shape} ({spec.y_dtype})"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """client-2 before client-10."""
    return [
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)
    ]
