"""Letters to nodes and their answers, over Flower's Grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.federation.flower.wire import Unreadable


@dataclass(frozen=True)
class Post:
    """Sends messages to nodes and brings back what they answer, whoever is first.

    Parameters
    ----------
    grid
        Flower's connection to the nodes.
    every
        Seconds between two looks for answers. Flower's own `send_and_receive` looks every three seconds and
        hands over no answer before the last has come.
    """

    grid: Grid
    every: float = 0.25

    def connected(self) -> set[int]:
        """The nodes that are connected now."""
        return set(self.grid.get_node_ids())

    def send(self, letters: Mapping[int, RecordDict], kind: str, ttl: float) -> dict[str, int]:
        """Send a letter to each node; the node by the message's id, for those that went out."""
        messages = [Message(content, node, kind, ttl=ttl) for node, content in letters.items()]
        accepted = set(self.grid.push_messages(messages))
        ids = [message.metadata.message_id for message in messages]
        return {id_: node for id_, node in zip(ids, letters, strict=True) if id_ in accepted}

    def collect(self, sent: dict[str, int]) -> Iterator[tuple[int, RecordDict | Unreadable]]:
        """The answers that are there by now, by node; these are struck off `sent`."""
        if not sent:
            return
        for message in self.grid.pull_messages(list(sent)):
            node = sent.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if message.has_error():
                yield node, Unreadable(f"error at the client: {_first_line(message.error.reason)}")
            else:
                yield node, message.content

    def exchange(
        self, letters: Mapping[int, RecordDict], kind: str, deadline: float
    ) -> Iterator[tuple[int, RecordDict | Unreadable]]:
        """Send letters and yield each node's answer, or why there is none, as soon as it is known."""
        until = time.monotonic() + deadline
        sent = self.send(letters, kind, deadline)
        for node in letters.keys() - set(sent.values()):
            yield node, Unreadable("the SuperLink did not take the message")
        looked = time.monotonic()
        while sent:
            yield from self.collect(sent)
            if time.monotonic() - looked > 2:
                # no use in waiting for a node that the SuperLink has given up
                looked = time.monotonic()
                here = self.connected()
                for id_ in [id_ for id_, node in sent.items() if node not in here]:
                    yield sent.pop(id_), Unreadable("lost its connection")
            if sent and time.monotonic() > until:
                for node in sent.values():
                    yield node, Unreadable(f"no answer within {deadline:g} s")
                return
            if sent:
                time.sleep(self.every)


def _first_line(reason: str | None) -> str:
    lines = [line for line in (reason or "").splitlines() if line.strip()]
    return lines[0].strip() if lines else "no reason given"
