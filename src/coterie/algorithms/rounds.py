"""One round of all starts, as a pure function: asked, answered, and what the algorithm makes of it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from coterie.algorithms.algorithm import Algorithm, Round, State, clusters_of
from coterie.algorithms.records import Outcome
from coterie.federation.protocol import Answers, Ask
from coterie.learn.learner import Learner
from coterie.learn.task import Task


class Step(eqx.Module):
    """A round, as the driver has it: its number, the key of all rounds, who was drawn, and what else was."""

    number: Int[Any, ""]
    key: Key[Array, ""]
    clients: Any = None
    more: Any = None


def one_round(
    algorithm: Algorithm[Any], federation: Any, learner: Learner, states: State, step: Step
) -> tuple[State, Outcome]:
    """One round of all starts; pure, so that it compiles over a traceable federation."""
    starts = states.assignment.shape[0]
    asks = _asks(algorithm, learner, states, step)
    task, only = asks.task, asks.only
    key = jax.random.fold_in(step.key, step.number)
    answers = federation.ask(
        task, only=only, clients=step.clients, key=key, reduce=asks.reduce, starts=starts
    )
    # why clients failed is words, and not for a compiled program
    heard = dataclasses.replace(answers, failures=())
    after, outcome = _updates(algorithm, learner, states, step, task, only, heard)
    return after, dataclasses.replace(outcome, failures=answers.failures)


@partial(jax.jit, static_argnums=0, inline=True)
def _asks(algorithm: Algorithm[Any], learner: Learner, states: State, step: Step) -> Ask:
    """What every start asks of the clients that are drawn."""

    def ask(state: State, rate: Any) -> Ask:
        return algorithm.ask(state, Round(step.number, rate[0], rate[1], step.more))

    asks: Ask = jax.vmap(ask)(states, _rates(learner, states))
    if step.clients is None:
        return asks
    # what is each client's own, of those that are drawn
    kind, everybody, each = asks.task.split()
    each, only = jax.tree.map(lambda rows: rows[:, step.clients.clients], (each, asks.only))
    return dataclasses.replace(asks, task=kind.with_content(everybody, each), only=only)


@partial(jax.jit, static_argnums=0, inline=True)
def _updates(
    algorithm: Algorithm[Any],
    learner: Learner,
    states: State,
    step: Step,
    task: Task,
    only: Any,
    answers: Answers,
) -> tuple[State, Outcome]:
    """Every start's state after the answers, and what the round tells the history."""

    def update(state: State, rate: Any, answers: Answers) -> State:
        after: State = algorithm.update(state, answers, Round(step.number, rate[0], rate[1], step.more))
        return after

    axes = Answers(None, 0, 0, 0, 0, 0, None)  # type: ignore[arg-type]
    after = jax.vmap(update, in_axes=(0, 0, axes))(states, _rates(learner, states), answers)
    return after, Outcome.of(answers, task, only, after.assignment, clusters_of(after))


def _rates(learner: Learner, states: State) -> Any:
    """The step size of every start, and the factor on it per round: there may be one for each start."""
    starts = states.assignment.shape[0]
    return jax.tree.map(lambda rate: jnp.broadcast_to(rate, starts), learner.local.step_size())


compiled_round = partial(jax.jit, static_argnums=0, donate_argnums=3)(one_round)


def rounds_of_everybody(
    algorithm: Algorithm[Any],
    federation: Any,
    learner: Learner,
    states: State,
    key: Key[Array, ""],
    rounds: int,
) -> State:
    """The states after so many rounds in which everybody takes part, as a part of a larger program."""

    def once(states: State, number: Int[Array, ""]) -> tuple[State, None]:
        return one_round(algorithm, federation, learner, states, Step(number, key))[0], None

    return jax.lax.scan(once, states, jnp.arange(rounds))[0]
