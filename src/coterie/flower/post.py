"""Messages to nodes and their answers, over Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.flower.wire import Unreadable, first_line

GONE = "lost its connection"


@dataclass
class Post:
    """Sends messages to nodes and brings back what they answer, whoever is first.

    Parameters
    ----------
    grid
        Flower's connection to the nodes.
    every
        Seconds between two looks for answers. Flower's own `send_and_receive` looks every three seconds and
        hands over no answer before the last has come.

    A node works off its messages one by one. So one that has not answered in time is not sent the next
    message on top: it is `busy` until the late answer comes, which nobody wants any more, or the message
    has expired.
    """

    grid: Grid
    every: float = 0.25
    _late: dict[str, tuple[int, float]] = field(default_factory=dict)  # by message: its node, when it expires

    def connected(self) -> set[int]:
        """The nodes that are connected now."""
        return set(self.grid.get_node_ids())

    def send(self, contents: Mapping[int, RecordDict], kind: str, ttl: float) -> dict[str, int]:
        """Send each node its content; the node by the message's id, for those that went out."""
        if not contents:
            return {}
        messages = [Message(content, node, kind, ttl=ttl) for node, content in contents.items()]
        accepted = set(self.grid.push_messages(messages))
        ids = [message.metadata.message_id for message in messages]
        return {id_: node for id_, node in zip(ids, contents, strict=True) if id_ in accepted}

    def collect(self, sent: dict[str, int]) -> Iterator[tuple[int, RecordDict | Unreadable]]:
        """The answers that are there by now, by node; these are struck off `sent`."""
        if not sent:
            return
        for message in self.grid.pull_messages(list(sent)):
            node = sent.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if message.has_error() and message.error.code == ErrorCode.NODE_UNAVAILABLE:
                yield node, Unreadable(GONE)
            elif message.has_error():
                yield node, Unreadable(f"error at the client: {first_line(message.error.reason or '')}")
            else:
                yield node, message.content

    def busy(self) -> set[int]:
        """The nodes that are still at an earlier message."""
        now = time.monotonic()
        waiting = {id_: node for id_, (node, until) in self._late.items() if now < until}
        for _ in self.collect(waiting):
            pass  # too late to count
        self._late = {id_: self._late[id_] for id_ in waiting}
        return set(waiting.values())

    def exchange(
        self, contents: Mapping[int, RecordDict], kind: str, deadline: float
    ) -> Iterator[tuple[int, RecordDict | Unreadable]]:
        """Send each node its content; yield its answer, or why there is none, as soon as it is known."""
        until = time.monotonic() + deadline
        # twice as long as we wait: the clocks of server and nodes may differ
        sent = self.send(contents, kind, 2 * deadline)
        for node in contents.keys() - set(sent.values()):
            yield node, Unreadable("the SuperLink did not take the message")
        looked = time.monotonic()
        while sent:
            yield from self.collect(sent)
            if time.monotonic() - looked > 2:
                # no use in waiting for a node that the SuperLink has given up
                looked = time.monotonic()
                here = self.connected()
                for id_ in [id_ for id_, node in sent.items() if node not in here]:
                    yield sent.pop(id_), Unreadable(GONE)
            if sent and time.monotonic() > until:
                self._late |= {id_: (node, until + deadline) for id_, node in sent.items()}
                for node in sent.values():
                    yield node, Unreadable(f"no answer within {deadline:g} s")
                return
            if sent:
                time.sleep(self.every)
