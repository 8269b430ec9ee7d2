"""Data sets that people made: each of them may be a client, and some are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from coterie.data.federated import Federated
from coterie.data.shards import Shards
from coterie.errors import SettingError, whole_number

Pair = tuple[np.ndarray, np.ndarray]  # features and targets of some examples


class Person(NamedTuple):
    """What somebody holds: to train on, and to be tested on."""

    train: Pair
    test: Pair

    @property
    def examples(self) -> int:
        return len(self.train[1]) + len(self.test[1])


def drawn(
    people: Mapping[str, Person],
    who: str,
    name: str,
    *,
    clients: int,
    unseen: int,
    seed: int,
    classes: int,
    scale: float | None = None,
) -> Federated:
    """Clients, and unseen clients, at random from people, who are called `who`.

    Nobody is drawn who has nothing to train or to be tested on. Unseen clients hold all that they have.
    """
    whole_number("clients", clients, 1)
    whole_number("unseen", unseen, 0)
    names = sorted(name for name, person in people.items() if len(person.train[1]) and len(person.test[1]))
    if clients + unseen > len(names):
        raise SettingError(
            f"{clients} clients and {unseen} unseen ones are more than the {len(names)} {who}: choose fewer."
        )
    order = np.random.default_rng(seed).permutation(len(names))
    own = [names[i] for i in np.sort(order[:clients])]
    others = [names[i] for i in np.sort(order[clients : clients + unseen])]

    def shards(ids: list[str], pairs: list[Pair]) -> Shards:
        xs, ys = zip(*pairs, strict=True)
        return Shards.from_lists(xs, ys, ids, classes=classes, scale=scale)

    def whole(person: Person) -> Pair:
        x, y = (np.concatenate(parts) for parts in zip(*person, strict=True))
        return x, y

    return Federated(
        train=shards(own, [people[name].train for name in own]),
        test=shards(own, [people[name].test for name in own]),
        unseen=shards(others, [whole(people[name]) for name in others]) if others else None,
        name=name,
    )
