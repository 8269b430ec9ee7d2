"""Rounds, and what happens between them, as the history has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from coterie.algorithms.algorithm import Alone, Note
from coterie.clustering.history import Event, Moves, RoundLog
from coterie.federation.protocol import Answers, Traffic
from coterie.learn.task import Task

NO_ANSWER = "no answer"
R = TypeVar("R", RoundLog, Event)


class Outcome(eqx.Module):
    """What a round tells the history; of all starts."""

    loss: Float[Array, " starts"]  # mean over the clients that answered
    assignment: Int[Array, "starts clients"]
    sizes: Int[Array, "starts clusters"]
    clients: Int[Array, " asked"]
    answered: Bool[Array, " asked"]
    traffic: Traffic
    work: tuple[Int[Array, ""], Int[Array, ""]]
    failures: tuple[tuple[int, str], ...] = eqx.field(static=True, default=())  # position and reason

    @classmethod
    def of(cls, answers: Answers, task: Task, only: Any, assignment: Array, clusters: int) -> Outcome:
        """The outcome of a round in which this was asked and answered."""
        loss, answered = answers.report.loss, answers.answered
        count = answered.sum(1)
        # a round in which nobody answered tells nothing of the loss
        mean = jnp.where(count > 0, jnp.where(answered, loss, 0).sum(1) / jnp.maximum(count, 1), jnp.nan)
        return cls(
            loss=mean,
            assignment=assignment,
            sizes=(assignment[..., None] == jnp.arange(clusters)).sum(1),
            clients=answers.clients,
            answered=answered.any(0),
            traffic=answers.traffic,
            work=work_of(task, only, answered),
            failures=answers.failures,
        )


def work_of(task: Task, only: Any, answered: Bool[Any, "starts asked"]) -> tuple[Any, Any]:
    """How many losses clients computed to compare models, and how many local updates they carried out."""
    models = jax.tree.leaves(getattr(task, "models", None))
    each = task.compared(models[0].shape[1]) if models else 0
    losses = each * (answered if only is None else answered & (only < 0)).sum()
    return losses, (task.updates() * answered).sum()


@dataclass
class Count:
    """Exchanges with clients, and what they took."""

    asks: int = 0
    bytes_down: int = 0
    bytes_spared: int = 0
    bytes_up: int = 0
    losses: int = 0
    updates: int = 0
    failures: dict[int, str] = field(default_factory=dict)  # the last of each client: position, reason

    def add(self, answers: Answers, task: Task, only: Any) -> None:
        """One exchange more, of all starts."""
        down, spared, up = answers.traffic.total(np.asarray(np.any(answers.answered, axis=0)))
        losses, updates = work_of(task, jax.device_get(only), answers.answered)
        self.asks += 1
        self.bytes_down += down
        self.bytes_spared += spared
        self.bytes_up += up
        self.losses += int(losses)
        self.updates += int(updates)
        self.failures |= dict(answers.failures)


def among_all(record: R, going: Sequence[int], starts: int) -> R:
    """A record of the starts that still go on, as one of all of them: nothing happens to the others."""
    if len(going) == starts:
        return record
    blank = {"loss": np.nan, "changed": 0, "sizes": [], "moved": Moves([])}
    own = {name: getattr(record, name) for name in blank if hasattr(record, name)}
    spread: dict[str, Any] = {
        name: [values[going.index(s)] if s in going else blank[name] for s in range(starts)]
        for name, values in own.items()
    }
    return replace(record, **spread)


def _moves(before: Int[np.ndarray, "starts clients"], now: Int[np.ndarray, "starts clients"]) -> list[Moves]:
    """For each start, who moved where."""
    return [
        Moves(np.stack([np.flatnonzero(changed), row[changed]], axis=1))
        for changed, row in zip(now != before, now, strict=True)
    ]


def _sizes(now: Int[np.ndarray, "starts clients"], clusters: int) -> list[list[int]]:
    """For each start, how many clients each cluster has."""
    return [np.bincount(row[row >= 0], minlength=clusters).tolist() for row in now]


def event(
    done: int,
    note: Note,
    before: Int[np.ndarray, "starts clients"],
    now: Int[np.ndarray, "starts clients"],
    clusters: int,
    count: Count,
    seconds: float,
) -> Event:
    """What happened after so many rounds, given what clients were known to belong to before and after it."""
    cost = {name: value for name, value in asdict(count).items() if name != "failures"}
    return Event(
        after=done,
        name=note.name,
        text=note.text,
        details=note.details,
        moved=_moves(before, now),
        sizes=_sizes(now, clusters),
        seconds=seconds,
        **cost,
    )


def log(
    number: int,
    outcome: Outcome,
    before: Int[np.ndarray, "starts clients"],
    seconds: float,
    ids: np.ndarray,
) -> RoundLog:
    """A round, given what clients were known to belong to before it."""
    moved = _moves(before, np.asarray(outcome.assignment))
    answered = np.asarray(outcome.answered)
    down, spared, up = outcome.traffic.total(answered)
    reasons = dict(outcome.failures)
    asked = np.asarray(outcome.clients)
    real = asked < len(ids)  # a place may be blank
    for client in asked[real & ~answered].tolist():
        reasons.setdefault(client, NO_ANSWER)
    missing: dict[str, list[str]] = {}
    for client, reason in sorted(reasons.items()):
        missing.setdefault(reason, []).append(str(ids[client]))
    return RoundLog(
        round=number,
        loss=[float(value) for value in outcome.loss],
        changed=[len(moves) for moves in moved],
        sizes=np.asarray(outcome.sizes).tolist(),
        moved=moved,
        asked=int(real.sum()),
        answered=int(answered.sum()),
        bytes_down=down,
        bytes_spared=spared,
        bytes_up=up,
        losses=int(outcome.work[0]),
        updates=int(outcome.work[1]),
        seconds=seconds,
        missing=missing,
    )


def logs_alone(
    first: int,
    alone: Alone,
    before: Int[np.ndarray, "starts clients"],
    now: Int[np.ndarray, "starts clients"],
    count: Count,
    seconds: float,
    ids: np.ndarray,
) -> list[RoundLog]:
    """Rounds that clients carried out by themselves, in one exchange, which counts in the first of them."""
    rounds, known, logs = alone.drawn.shape[1], before, []
    for t, drawn in enumerate(alone.drawn.T):
        heard = drawn & alone.heard
        missing: dict[str, list[str]] = {}
        for client in np.flatnonzero(drawn & ~alone.heard).tolist():
            missing.setdefault(count.failures.get(client, NO_ANSWER), []).append(str(ids[client]))
        was, known = known, np.where(drawn, now, known)  # a client has a model from its first round on
        moved = _moves(was, known)
        logs.append(
            RoundLog(
                round=first + t,
                loss=[float(alone.losses[heard, t].mean()) if heard.any() else np.nan],
                changed=[len(moves) for moves in moved],
                sizes=_sizes(known, now.shape[1]),
                moved=moved,
                asked=int(drawn.sum()),
                answered=int(heard.sum()),
                bytes_down=count.bytes_down if t == 0 else 0,
                bytes_spared=0,
                bytes_up=count.bytes_up if t == 0 else 0,
                losses=0,
                updates=count.updates if t == 0 else 0,
                seconds=seconds / rounds,
                missing=missing,
            )
        )
    return logs
