"""Who is there: which node holds which client's data, who left, who came back, who is new."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import RecordDict

from coterie.data.shards import Spec
from coterie.errors import FederationError
from coterie.federation.flower_settings import FlowerSettings
from coterie.flower import wire
from coterie.flower.post import Post

logger = logging.getLogger(__name__)
AGAIN = 60.0  # seconds until a node that cannot take part as it is is greeted again


@dataclass
class Roster:
    """The clients of a federation by position, and the node at which each of them can be reached.

    A node is known by what it says when it is greeted: its client's id and the shape of an example. Greeting
    takes an exchange, which runs beside those of the rounds and holds nobody up. A client keeps its position
    for good; new ones are let in between rounds (`admit`).
    """

    post: Post
    settings: FlowerSettings
    ids: list[str] = field(default_factory=list)
    spec: Spec | None = None
    begun: bool = False
    _fixed: bool = False  # whether training has begun with the spec, which then holds
    _here: set[int] = field(default_factory=set)  # the nodes that are connected
    _known: dict[int, wire.Introduction] = field(default_factory=dict)  # what nodes have said of themselves
    _unclear: dict[int, str] = field(default_factory=dict)  # what is wrong with what others have said
    _node_of: dict[str, int] = field(default_factory=dict)  # the node that stands for a client
    _greeted: dict[str, int] = field(default_factory=dict)  # greetings not yet answered: message, node
    _greeted_at: dict[int, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def look(self) -> None:
        """See who is connected, greet those we do not know, and take in what the greeted have said."""
        self._here = self.post.connected()
        for node, records in self.post.collect(self._greeted):
            self._known.pop(node, None)
            self._unclear.pop(node, None)
            try:
                self._known[node] = wire.Introduction.read(records)
            except wire.Unreadable as error:
                self._unclear[node] = str(error)
        if not self._fixed:
            self.spec = self._commonest()
        self._greet()
        candidates: dict[str, list[int]] = defaultdict(list)
        for node, introduction in self._known.items():
            if node in self._here and self._misfit(introduction) is None:
                candidates[introduction.id].append(node)
        # a node stands for its client unless another one that is connected does so already
        self._node_of = {
            client: self._node_of[client] if self._node_of.get(client) in nodes else min(nodes)
            for client, nodes in candidates.items()
        }
        for complaint in self._complaints():
            if complaint not in self._told:
                self._told.add(complaint)
                logger.warning("a node cannot take part: %s", complaint)

    def _greet(self) -> None:
        """Greet nodes that we do not know, and after a while again those that cannot take part so."""
        now = time.monotonic()
        usable = {node for node, known in self._known.items() if self._misfit(known) is None}
        silent = set(self._greeted.values())  # it may have a lot of data to read
        strangers = {
            node: RecordDict()
            for node in self._here - usable
            if now - self._greeted_at.get(node, -np.inf)
            > (self.settings.deadline if node in silent else AGAIN)
        }
        if strangers:
            self._greeted = {id_: node for id_, node in self._greeted.items() if node not in strangers}
            self._greeted_at |= dict.fromkeys(strangers, now)
            self._greeted |= self.post.send(strangers, wire.HELLO, 2 * self.settings.deadline)

    def _commonest(self) -> Spec | None:
        """What most of the nodes say that an example looks like, with as many classes as any of them has."""
        specs = [known.spec for node, known in sorted(self._known.items()) if node in self._here]
        if not specs:
            return None
        (kind, _), *_ = Counter(spec.kind for spec in specs).most_common(1)
        return max((spec for spec in specs if spec.kind == kind), key=lambda spec: spec.classes or 0)

    def _misfit(self, introduction: wire.Introduction) -> str | None:
        """Why a client cannot take part, if it cannot."""
        client, theirs, ours = introduction.id, introduction.spec, self.spec
        if ours is None:
            return None
        if theirs.kind != ours.kind:
            return f"client {client!r} has examples of {_shape(theirs)}, the others of {_shape(ours)}"
        if not theirs.fits(ours):
            return f"client {client!r} has {theirs.classes} classes, but training began with {ours.classes}"
        return None

    def forget(self, node: int) -> None:
        """A node is not the client that it was: greet it again."""
        self._known.pop(node, None)
        self._greeted_at.pop(node, None)

    def node(self, position: int) -> int | None:
        """The node of a client, if it is connected."""
        return self._node_of.get(self.ids[position])

    def admit(self) -> None:
        """Give positions to the clients that have none yet."""
        self.look()
        self.ids += sorted(self._node_of.keys() - set(self.ids), key=_natural)

    def recall(self, ids: Iterable[object], spec: Spec) -> None:
        """Clients of an interrupted run: they keep their positions, connected or not, and the spec holds."""
        self.ids, self.spec, self._fixed = [str(name) for name in ids], spec, True

    def gather(self) -> None:
        """Wait for enough clients to begin with, and for all that are connected to introduce themselves."""
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began  # before looking: whoever was in time counts
            self.look()
            present = len(self._node_of)
            enough = present >= self.settings.min_clients
            if enough and (not self._greeted or waited > min(AGAIN, self.settings.wait)):
                break
            if waited > self.settings.wait:
                raise FederationError(
                    f"only {present} of the {self.settings.min_clients} clients needed to begin were there "
                    f"after {self.settings.wait:g} s{self.complaints()}: start more SuperNodes, or lower "
                    "min_clients."
                )
            time.sleep(self.post.every)
        if not self.ids:
            self.admit()
        self.begun = self._fixed = True

    def complaints(self) -> str:
        """What is wrong with nodes that are connected but cannot take part, in words."""
        found = self._complaints()
        return f" ({'; '.join(found)})" if found else ""

    def _complaints(self) -> list[str]:
        complaints = [reason for node, reason in self._unclear.items() if node in self._here]
        for node, known in self._known.items():
            if node in self._here:
                misfit = self._misfit(known)
                if misfit is not None:
                    complaints.append(misfit)
                elif self._node_of.get(known.id) != node:
                    complaints.append(f"two nodes say that they are client {known.id!r}")
        return list(dict.fromkeys(complaints))


def _shape(spec: Spec) -> str:
    labels = "real targets" if spec.classes is None else "class labels"
    return f"shape {spec.x_shape} ({spec.x_dtype}) with {labels} of shape {spec.y_shape} ({spec.y_dtype})"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """client-2 before client-10."""
    return [
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
    ]
