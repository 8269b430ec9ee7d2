"""What an algorithm is: what the server asks, in which order, and what it makes of the answers.

An algorithm is written for one start, for clients known by position, and never sees how they are asked. In a
round it says what is asked (`ask`) and what becomes of the answers (`update`); both are pure functions that
compile. What it does at the start, between rounds and at the end runs on the host, and may ask as often as
it needs: there it is a generator that yields an `Ask` and is sent the `Answers`. The rest (several starts
side by side, drawing participants, compiling, checkpoints, history) is the driver's: see `driver`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from coterie import keys, registry
from coterie.clustering.confidence import Confidence
from coterie.data.shards import Shards
from coterie.errors import SettingError
from coterie.federation.exchange import Exchange, Server
from coterie.federation.protocol import Answers, Ask, Federation
from coterie.learn.learner import Learner
from coterie.models import stacked
from coterie.settings import Settings

if TYPE_CHECKING:
    from coterie.algorithms.observer import Observer
    from coterie.clustering.result import Clustering


def client_rows(fill: Any = None, like: str | None = None, axes: int = 1, **settings: Any) -> Any:
    """A field of a state with one row per client: those that join later get `fill`, or the field `like`.

    With two `axes` it has a column per client as well.
    """
    return eqx.field(metadata={"fill": fill, "like": like, "client_axes": axes}, **settings)


class State(eqx.Module):
    """What an algorithm keeps from round to round, for one start; a checkpoint is this and nothing else.

    An algorithm that keeps more has a state of its own with more fields.
    """

    models: PyTree  # (k, ...)
    assignment: Int[Array, " clients"] = client_rows(fill=-1)  # the last known cluster; -1: not known


S = TypeVar("S", bound=State)


class Round(eqx.Module):
    """What is new in a round."""

    number: Int[Array, ""]
    lr: Float[Array, ""] | None = None  # the step size of the local update, where that has one,
    decay: Float[Array, ""] | None = None  # and the factor on it per round
    drawn: PyTree = None  # what else was drawn for it: see `Algorithm.draw`

    @property
    def rate(self) -> Float[Array, ""] | None:
        """The step size of this round."""
        return None if self.lr is None or self.decay is None else self.lr * self.decay**self.number


class Draw(NamedTuple):
    """Who takes part in some rounds."""

    clients: Int[np.ndarray, "rounds asked"]  # by position; the number of clients where a place is blank
    more: PyTree = None  # what else is drawn for each round, leading axis rounds


class Note(NamedTuple):
    """What an algorithm tells of a pause between rounds."""

    name: str
    text: str  # a sentence
    details: dict[str, Any] = {}  # noqa: RUF012 (never changed)


class Alone(NamedTuple):
    """Rounds that clients carried out by themselves, all of them in one exchange."""

    losses: Float[np.ndarray, "clients rounds"]  # before each of them
    drawn: Bool[np.ndarray, "clients rounds"]  # who took part
    heard: Bool[np.ndarray, " clients"]  # who told of it


class Pause(NamedTuple):
    """What came of a pause: the state, how many rounds follow until the next one, and what to tell of it.

    0 rounds end the run. Without a note nothing happened, and the history says nothing; unless clients
    carried out rounds by themselves meanwhile: then it tells of those.
    """

    state: State
    rounds: int
    note: Note | None = None
    alone: Alone | None = None


class Result(NamedTuple):
    """What one start comes to."""

    assignment: Int[np.ndarray, " clients"]
    models: PyTree  # (k, ...)
    objective: float = 0.0  # the start with the lowest is kept; infinite if it diverged
    losses: Float[np.ndarray, "clients k"] | None = None
    shares: Float[np.ndarray, "clients k"] | None = None
    personal: PyTree = None
    confidence: Confidence | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm(Settings, ABC, Generic[S]):
    """A server that asks the same question round after round.

    Parameters
    ----------
    rounds
        How many.
    participation
        Clients asked per round, drawn at random: all (1.0), a fraction of them (a float), or a number (an
        int). Who is drawn, among those that are there, depends on the seed, the round and their ids alone.
    """

    rounds: int = 60
    participation: float | int = 1.0

    least_rounds: ClassVar[int] = 1  # that the setting may ask for

    def fit(
        self,
        train: Shards | Federation,
        learner: Learner,
        *,
        seed: int = 0,
        observers: Sequence[Observer] = (),
    ) -> Clustering:
        """Run the algorithm.

        Parameters
        ----------
        train
            The clients: `Shards` (a `Simulation` is made for them) or any federation.
        learner
            What the clients know how to do.
        seed
            Everything random.
        observers
            Watch the run as it goes: show progress, keep checkpoints.
        """
        from coterie.algorithms.driver import run

        return run(self, train, learner, seed, observers)

    # -- what an algorithm says, for one start -----------------------------------------------------------

    @abstractmethod
    def start(self, server: Server, key: Key[Array, ""]) -> Exchange[S]:
        """The state before the first round; `key` is that of the start."""

    def ask(self, state: S, round: Round) -> Ask:
        """What the participants of a round are asked. Their reports have a field `loss`."""
        raise TypeError(f"{type(self).__name__} has no rounds: its pauses are all there is.")

    def update(self, state: S, answers: Answers, round: Round) -> S:
        """The state after a round."""
        raise TypeError(f"{type(self).__name__} has no rounds: its pauses are all there is.")

    def pause(self, server: Server, state: S, done: int) -> Exchange[Pause]:
        """What the server does after so many rounds, on the host, and how many rounds follow.

        It is called before the first round, and again after as many rounds as it says. It may change the
        number of models, end the run or make it longer. By default it does nothing but count.
        """
        return Pause(state, self.rounds - done)
        yield

    @abstractmethod
    def finish(self, server: Server, state: S) -> Exchange[Result]:
        """The result, given the state after the last round."""

    @abstractmethod
    def state_of(self, models: PyTree, clients: int) -> S:
        """A state with these models of which nothing else is known: its shapes are those of a checkpoint."""

    # -- what it may say besides -------------------------------------------------------------------------

    @property
    def starts(self) -> int:
        """How many starts run side by side."""
        return 1

    @property
    def contest(self) -> int:
        """After how many rounds only the best start goes on, alone; all go on if none follows, or at 0."""
        return 0

    @property
    def expected_rounds(self) -> int:
        """How many rounds there will be, as far as is known before."""
        return self.rounds

    def eligible(self, state: S) -> Bool[np.ndarray, " clients"] | None:
        """Who may be drawn for a round; None for everybody."""
        return None

    def joined(self, server: Server, state: S) -> S:
        """The state when clients have joined; their rows hold what `client_rows` says."""
        return state

    def draw(self, server: Server, state: S, rounds: range) -> Draw | None:
        """The clients asked in each of these rounds; None for everybody in all of them."""
        may = self.eligible(state)
        everybody = np.arange(server.clients) if may is None else np.flatnonzero(may)
        count = self.participants(len(everybody))
        if count == server.clients:
            return None
        if count == len(everybody):
            return Draw(np.tile(everybody, (len(rounds), 1)))
        here = np.intersect1d(server.present, everybody)
        if not len(here):
            here = everybody  # to be waited for
        tokens = server.tokens[here]
        return Draw(np.stack([here[keys.participants(server.seed, t, tokens, count)] for t in rounds]))

    def participants(self, clients: int) -> int:
        """How many of so many clients are asked in a round."""
        if isinstance(self.participation, int):
            return min(self.participation, clients)
        return max(1, round(self.participation * clients))

    def check(self, clients: int, learner: Learner) -> None:
        """Refuse settings that make no sense for that many clients, or for what they do."""
        if self.rounds < self.least_rounds:
            raise SettingError(f"rounds must be at least {self.least_rounds}, not {self.rounds}.")
        fits = self.participation >= 1 if isinstance(self.participation, int) else 0 < self.participation <= 1
        if isinstance(self.participation, bool) or not fits:
            raise SettingError(
                f"participation must be a fraction above 0 and up to 1.0, or a number of clients, "
                f"not {self.participation!r}."
            )
        if isinstance(self.participation, int) and self.participation > clients:
            raise SettingError(
                f"participation={self.participation} asks for more than the {clients} clients there are."
            )

    def settings(self) -> dict[str, Any]:
        """The algorithm's name and settings, to be recorded with its result."""
        return registry.describe_algorithm(self)


def unknown(clients: int) -> Int[Array, " clients"]:
    """An assignment of clients of which nothing is known."""
    # of NumPy: no program has to be compiled for it
    return cast(Array, np.full(clients, -1, np.int32))


def with_room_for(states: State, clients: int) -> State:
    """States (a leading axis of starts) with room for clients that have joined."""
    changed = {}
    for field in dataclasses.fields(states):
        value = getattr(states, field.name)
        if "client_axes" not in field.metadata or value is None:
            continue
        like, axes = field.metadata["like"], range(1, 1 + field.metadata["client_axes"])
        new: Any = field.metadata["fill"]
        if like is not None:
            new = jax.tree.map(lambda one: one[:, None], getattr(states, like))

        def rows(known: Array, new: Any, axes: range = axes) -> Array:
            for axis in axes:
                shape = list(known.shape)
                shape[axis] = clients - known.shape[axis]
                more = jnp.broadcast_to(new, shape).astype(known.dtype)
                known = jnp.concatenate([known, more], axis)
            return known

        if like is None:
            changed[field.name] = jax.tree.map(partial(rows, new=new), value)
        else:
            changed[field.name] = jax.tree.map(rows, value, new)
    return dataclasses.replace(states, **changed)


def clusters_of(states: State) -> int:
    """How many models each start has."""
    return int(jax.tree.leaves(states.models)[0].shape[1])


def lowest_loss(
    answers: Answers,
) -> tuple[Float[np.ndarray, "clients k"], Bool[np.ndarray, " clients"], float]:
    """What clients (all of them) tell of k models by `MeasureLosses`.

    Returns the losses (NaN in the rows of those that told nothing), who told, and the mean loss of each under
    its best model, which is infinite if most clients have no number for it.
    """
    losses, answered = np.array(answers.report.losses), np.asarray(answers.answered)
    lowest = np.where(np.isfinite(losses), losses, np.inf).min(axis=1)
    finite = answered & np.isfinite(lowest)
    # a few who have no number for it tell nothing
    sane = 2 * finite.sum() > answered.sum() or not answered.any()
    mean = float(lowest[finite].mean()) if finite.any() else 0.0
    return np.where(finite[:, None], losses, np.nan), finite, mean if sane else float("inf")


def of_one_start(states: State, start: int) -> State:
    """The state of one of several starts."""
    own: State = stacked.take(states, start)
    return own
