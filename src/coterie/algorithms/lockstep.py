"""Several starts that ask in step share each exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from coterie.algorithms.records import Count
from coterie.federation.exchange import Exchange, T
from coterie.federation.protocol import Answers, Ask, Federation
from coterie.models import stacked


def in_step(
    federation: Federation, exchanges: Sequence[Exchange[T]], key: Key[Array, ""], count: Count
) -> list[T]:
    """What each start's exchange returns.

    All that ask the same kind of thing at the same time do so in one exchange, whose key is that of the
    first: clients derive one for each start from it. Asks without a key get one derived from `key`, so that
    not always the same clients drop out.
    """
    results: dict[int, T] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(exchanges)))
    while answers:
        asks: dict[int, Ask] = {}
        for start, answer in answers.items():
            try:
                asks[start] = exchanges[start].send(answer)
            except StopIteration as stop:
                results[start] = stop.value
        answers = {}
        for together in _alike(asks):
            own = jax.random.fold_in(key, count.asks)
            given = _asked(federation, [asks[start] for start in together], own, count)
            answers |= dict(zip(together, given, strict=True))
    return [results[start] for start in range(len(exchanges))]


def carried_out(federation: Federation, exchange: Exchange[T], key: Key[Array, ""]) -> T:
    """What a single exchange returns."""
    return in_step(federation, [exchange], key, Count())[0]


def _alike(asks: dict[int, Ask]) -> list[list[int]]:
    """The starts whose asks can be one exchange."""
    groups: dict[Any, list[int]] = {}
    for start, ask in asks.items():
        kind, everybody, each = ask.task.split()
        # of what is summed on the way, no start could leave out the clients of another
        who = None if ask.clients is None else ask.clients.tobytes() if ask.reduce is not None else "some"
        shapes = _shapes(everybody), _shapes(each, of_rows=True)
        sort = kind, shapes, ask.only is None, who, ask.reduce, ask.least
        groups.setdefault(sort, []).append(start)
    return list(groups.values())


def _shapes(tree: PyTree, of_rows: bool = False) -> Any:
    """The structure and shapes of arrays, or of their rows: equal where arrays can be stacked."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(a)[of_rows:], str(jnp.result_type(a))) for a in leaves)


def _asked(federation: Federation, asks: Sequence[Ask], key: Key[Array, ""], count: Count) -> list[Answers]:
    """The answers to several asks of one kind."""
    first = asks[0]
    if first.remind is not None:
        _remind(federation, asks, key, count)
    some = [ask.clients for ask in asks if ask.clients is not None]
    union = np.unique(np.concatenate(some)) if some else None
    together = [ask if union is None else _spread(ask, union) for ask in asks]
    task, only = stacked.stack([(ask.task, ask.only) for ask in together])
    answers = federation.ask(
        task,
        only=only,
        clients=None if union is None else federation.select(union),
        key=key if first.key is None else first.key,
        reduce=first.reduce,
        starts=len(asks),
        least=first.least,
    )
    # what follows runs on the host, but values may be large, and stay where they are
    small = jax.device_get(dataclasses.replace(answers, value=None))
    count.add(small, task, only)
    answers = dataclasses.replace(small, value=answers.value)
    each = [answers.of_start(r) for r in range(len(asks))]
    return [_of(answers, ask, union) for answers, ask in zip(each, asks, strict=True)]


def _remind(federation: Federation, asks: Sequence[Ask], key: Key[Array, ""], count: Count) -> None:
    """Ask clients first for what they have to keep, where they do not have it."""
    wanted = asks[0].clients
    lacks = np.zeros(federation.clients, bool)
    for name in asks[0].task.needs:
        lacks |= ~federation.keeping(name)
    lacking = np.flatnonzero(lacks) if wanted is None else wanted[lacks[wanted]]
    if len(lacking):
        some = lacking if len(lacking) < federation.clients else None
        again = [_of_some(ask.remind, some) for ask in asks if ask.remind is not None]
        _asked(federation, again, key, count)


def _of_some(ask: Ask, clients: np.ndarray | None) -> Ask:
    """An ask of everybody, for these clients only."""
    if clients is None:
        return ask
    kind, everybody, each = ask.task.split()
    each, only = jax.tree.map(lambda rows: np.asarray(rows)[clients], (each, ask.only))
    return dataclasses.replace(ask, task=kind.with_content(everybody, each), only=only, clients=clients)


def _spread(ask: Ask, union: np.ndarray) -> Ask:
    """An ask of all these clients: those that it does not want are sent zeros."""
    assert ask.clients is not None
    kind, everybody, each = ask.task.split()
    place = np.searchsorted(union, ask.clients)

    def rows(own: Any) -> np.ndarray:
        own = np.asarray(own)
        whole = np.zeros((len(union), *own.shape[1:]), own.dtype)
        whole[place] = own
        return whole

    each, only = jax.tree.map(rows, (each, ask.only))
    return dataclasses.replace(ask, task=kind.with_content(everybody, each), only=only)


def _of(answers: Answers, ask: Ask, asked: np.ndarray | None) -> Answers:
    """The answers of those whom one of the asks wanted, in its order."""
    if ask.clients is None or asked is None:
        return answers
    place = np.searchsorted(asked, ask.clients)
    return Answers(
        clients=answers.clients[place],
        answered=answers.answered[place],
        report=stacked.take(answers.report, place),
        cluster=answers.cluster[place],
        weight=answers.weight[place],
        value=answers.value if ask.reduce is not None else stacked.take(answers.value, place),
        traffic=answers.traffic[place],
        failures=answers.failures,
    )
