"""A Flower grid whose nodes live in this process: each message is serialised, carried over, and answered."""

import time
from dataclasses import dataclass, field

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coterie.flower import JaxClient, Own, client_app


def carried_over(content):
    """What is left of a message's content on the other side."""
    return recorddict_from_proto(recorddict_to_proto(content))


@dataclass
class Node:
    """A node: its app, its configuration, and how it misbehaves."""

    app: object
    config: dict = field(default_factory=dict)
    online: bool = True
    silent: bool = False  # takes messages and never answers
    unheard: bool = False  # the SuperLink takes no messages to it
    late: float = 0.0  # seconds until an answer can be collected
    twist: object = None  # changes the content of its answers
    heard: list = field(default_factory=list)  # every message it was sent
    said: list = field(default_factory=list)  # the content of every answer it gave
    state: RecordDict = field(default_factory=RecordDict)  # what Flower keeps on the node for the run


class InProcessGrid(Grid):
    """Nodes 1, 2, 3, ... whose apps are called when a message is pushed."""

    def __init__(self, apps, configs=None, run_config=None):
        configs = configs or [{} for _ in apps]
        self.nodes = {}
        for app, config in zip(apps, configs, strict=True):
            self.join(app, config)
        self.run_config = run_config or {}
        # a process that Flower starts knows which task it is; here we are every one of them
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
        self.exchanges = []  # (message type, nodes) of every push
        self.before_push = lambda kind: None
        self._answers = {}
        self._sent = 0

    def join(self, app, config=None):
        """Connect one more node; its number."""
        number = max(self.nodes, default=0) + 1
        self.nodes[number] = Node(app, config or {})
        return number

    def asks(self):
        """How often something was asked so far."""
        return sum(kind == "query.ask" for kind, _ in self.exchanges)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return [node for node, state in self.nodes.items() if state.online]

    def push_messages(self, messages):
        messages = list(messages)
        self.before_push(messages[0].metadata.message_type)
        self.exchanges.append(
            (messages[0].metadata.message_type, sorted(m.metadata.dst_node_id for m in messages))
        )
        # as Flower does: None in place of a message that was not taken
        return [self._deliver(message) for message in messages]

    def _deliver(self, message):
        self._sent += 1
        message.metadata.__dict__["_message_id"] = f"message-{self._sent}"
        node = self.nodes[message.metadata.dst_node_id]
        if node.unheard:
            return None
        if not node.online:
            return message.metadata.message_id
        arrived = Message(
            carried_over(message.content),
            message.metadata.dst_node_id,
            message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        node.heard.append(arrived)
        if node.silent:
            return message.metadata.message_id
        context = Context(1, message.metadata.dst_node_id, node.config, node.state, self.run_config)
        try:
            answer = node.app(arrived, context)
            content = answer.content if node.twist is None else node.twist(answer.content)
            node.said.append(carried_over(content))
            answer = Message(node.said[-1], reply_to=arrived)
        except Exception as error:  # as Flower does
            answer = Message(Error(code=2, reason=f"{type(error).__name__}: {error}"), reply_to=arrived)
        self._answers[message.metadata.message_id] = time.monotonic() + node.late, answer
        return message.metadata.message_id

    def pull_messages(self, message_ids):
        ready = [i for i in message_ids if i in self._answers and self._answers[i][0] <= time.monotonic()]
        return [self._answers.pop(i)[1] for i in ready]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def app_of(learner, train, test=None, name=None):
    """The app of a node that holds the shards of one client."""
    own = Own(str(train.ids[0]) if name is None else name, train, test)
    return client_app(lambda context: JaxClient(learner, own))


def apps_of(learner, data):
    """An app for every client of a data set."""
    return [
        app_of(learner, data.train[[i]], None if data.test is None else data.test[[i]])
        for i in range(len(data.train))
    ]
