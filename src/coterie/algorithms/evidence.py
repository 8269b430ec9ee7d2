"""What `Discover` makes of what clients say: who differs from whom, and how sure that is.

Everything here is NumPy, of all clients and groups at once. With T a client's statistic for one group against
its own (see `coterie.learn.halves.statistic`), the derivations are in the card of `Discover`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from coterie.federation.protocol import Answers
from coterie.learn.halves import statistic
from coterie.words import count

CHANCE = float(np.sqrt(2 / np.pi))  # the mean of |N(0, 1)|: what it gives a client to choose between equals
SPREAD = float(np.sqrt(1 - 2 / np.pi))  # and its standard deviation
# twice the ground state of the Sherrington-Kirkpatrick model: what it gives if all clients' choices were the
# ones that together fit noise best
COLLUSION = 1.5264
BEST_OF_THREE = 0.9  # the same as CHANCE where there are three to choose from
MIDDLE = (CHANCE + COLLUSION) / 2
LEAST = 1.0  # standard errors by which a side of a split has to prefer its own models


class Told(NamedTuple):
    """What clients said of the groups, and where they go; of those that did not answer, nothing.

    Sums over a client's examples of differences between two losses (first row), and of their squares.
    """

    heard: Bool[np.ndarray, " clients"]
    group: Int[np.ndarray, " clients"]
    loss: Float[np.ndarray, "clients k"]
    others: Float[np.ndarray, "clients 2 k"]  # each group, against their own
    even: Float[np.ndarray, "clients 2 k"]  # the same of half 0 alone
    alone: Float[np.ndarray, "clients 2"]  # being alone, against their group
    examples: Int[np.ndarray, " clients"]

    @classmethod
    def of(cls, answers: Answers, group: Int[np.ndarray, " clients"]) -> Told:
        heard, report = np.asarray(answers.answered), answers.report

        def numbers(values: Any) -> np.ndarray:
            values = np.asarray(values, float)
            return np.where(heard.reshape(-1, *[1] * (values.ndim - 1)) & np.isfinite(values), values, 0.0)

        loss, others, even, alone = map(numbers, (report.loss, report.others, report.even, report.alone))
        chosen = np.where(heard, np.asarray(answers.cluster, np.int32), group)
        examples = np.where(heard, np.asarray(report.examples), 0)
        return cls(heard, chosen, loss, others, even, alone, examples)

    def only(self, group: Int[np.ndarray, " clients"], names: Int[np.ndarray, " some"]) -> Told:
        """The same of some of the groups, which have other numbers."""
        loss, others, even = (values[..., names] for values in (self.loss, self.others, self.even))
        return self._replace(group=group, loss=loss, others=others, even=even)

    def members(self) -> Float[np.ndarray, "k clients"]:
        """1 for the clients of each group that say something."""
        known = self.heard & (self.group >= 0) & (self.examples > 0)
        inside: np.ndarray = (self.group == np.arange(self.loss.shape[1])[:, None]) & known
        return inside.astype(float)


def prefers(
    told: Told, by_chance: float = CHANCE
) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, "k k"]]:
    """By how much more than by chance clients prefer their own group's models to each other's.

    In standard errors: of the clients of each group (row) with regard to each other (column), and of both.
    """
    member = told.members()
    sizes = np.maximum(member.sum(1), 1)
    # of a single example |T| is 1, whatever it says
    chance = by_chance + np.maximum(0, 1 - by_chance) / np.maximum(told.examples, 1)
    more = member @ (statistic(told.others[:, 0], told.others[:, 1]) - chance[:, None])
    np.fill_diagonal(more, 0)
    side = more / (SPREAD * np.sqrt(sizes))[:, None]
    return side, (more + more.T) / (SPREAD * np.sqrt(sizes[:, None] + sizes))


def agreement(told: Told) -> Float[np.ndarray, "k k"]:
    """Whether a client's two halves agree about the models of two groups, in standard errors.

    Of the clients of both groups together, and beyond what these agree about on the whole.
    """
    member = told.members()
    home = np.maximum(told.group, 0)
    number = np.stack([(told.examples + 1) // 2, told.examples // 2]).astype(float)
    total = np.maximum(member @ number.T, 0)  # examples of each group, by half
    halves = told.even, told.others - told.even
    together = np.ones_like(told.loss)
    for half, values in enumerate(halves):
        lost = member @ values[:, 0]  # what the group in the row loses by that in the column
        mean = (lost - lost.T) / np.maximum(total[:, half, None] + total[:, half], 1)
        shift, n = mean[home], number[half, :, None]
        sums = values[:, 0] - n * shift
        squares = values[:, 1] - 2 * shift * values[:, 0] + n * shift**2
        together = together * statistic(sums, squares)
    sizes = np.maximum(member.sum(1), 1)
    agree = member @ together
    return np.asarray((agree + agree.T) / np.sqrt(sizes[:, None] + sizes))


def alike(pulls: Float[np.ndarray, "clients 2 numbers"]) -> float:
    """Whether clients differ: Student's t of how far their two halves pull models the same way.

    Beyond where all of them pull on the whole. Where clients are alike, halves are independent.
    """
    away = centred(pulls)
    with_both = np.abs(away).sum(2).all(1)
    cosines = (away[with_both, 0] * away[with_both, 1]).sum(1)
    n, t = len(cosines), float(statistic(cosines.sum(), np.square(cosines).sum()))
    return float(t * np.sqrt((n - 1) / max(n - t * t, 1e-9))) if n > 1 else 0.0


def may_differ(pulls: Float[np.ndarray, "some 2 numbers"], as_all: float, error: float) -> bool:
    """Whether clients of a group may differ: `alike` says `as_all` of them if they do as all clients do.

    Those of two groups differ half as much as those of very many.
    """
    sure = quantile(error)
    return alike(pulls) > min(as_all / 2 - sure, sure)


def drift(pulls: Float[np.ndarray, "clients 2 numbers"]) -> float:
    """Whether the two halves of clients differ from each other the same way, in standard errors.

    Of models that have not been trained: of those that have, each half fits one better. If halves may as well
    be exchanged, the sign of each client's difference is a coin's.
    """
    away = pulls[:, 0] - pulls[:, 1]
    own = np.square(np.square(away).sum(1)).sum()
    together = float(np.square(away.sum(0)).sum() - np.square(away).sum())
    products = away.T @ away if len(away) > away.shape[1] else away @ away.T
    return together / float(np.sqrt(2 * max(np.square(products).sum() - own, 1e-30)))


def centred(pulls: Float[np.ndarray, "clients 2 numbers"]) -> Float[np.ndarray, "clients 2 numbers"]:
    """Where halves pull beyond where all do: of length 1, or 0."""
    away = pulls - pulls.mean(0)
    length = np.linalg.norm(away, axis=2, keepdims=True)
    return np.where(length > 1e-9, away / np.where(length > 1e-9, length, 1), 0)


def parted(pulls: Float[np.ndarray, "clients 2 numbers"], first: int) -> Bool[np.ndarray, " clients"]:
    """Clients in two parts, by the side to which they pull along the direction in which most do.

    Client `first` is not in the part that is told.
    """
    away = pulls.sum(1)
    away = away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-9)
    away = away - away.mean(0)
    products = away.T @ away if len(away) > away.shape[1] else away @ away.T
    top = np.linalg.eigh(products)[1][:, -1]
    side: np.ndarray = (away @ top if len(away) > away.shape[1] else top) > 0
    part: np.ndarray = side != side[first]
    return part


def chance(t: Any, n: Any) -> Any:
    """How probable a statistic as low as T of n independent differences is, if their mean were 0.

    T is a function of Student's t, which has n - 1 degrees of freedom.
    """
    from scipy.stats import t as student  # slow to import

    n, t = np.maximum(np.asarray(n, float), 1), np.asarray(t, float)
    left = np.maximum(n - t**2, 1e-9)
    found = student.cdf(t * np.sqrt((n - 1) / left), np.maximum(n - 1, 1))
    return np.where(n > 1, found, 0.5)


def step_up(chances: Float[np.ndarray, " some"], error: float) -> Bool[np.ndarray, " some"]:
    """Which of some hypotheses are rejected by the procedure of Benjamini and Hochberg."""
    order = np.sort(chances)
    below = np.flatnonzero(order <= error * np.arange(1, len(order) + 1) / max(1, len(order)))
    most = order[below[-1]] if len(below) else -1.0
    return np.asarray(chances <= most)


def any_then_more(chances: Float[np.ndarray, " some"], error: float) -> Bool[np.ndarray, " some"]:
    """Which are rejected at the root of `error`, if any is at half of `error`."""
    sure = step_up(chances, error / 2)
    return step_up(chances, np.sqrt(error)) if sure.any() else sure


def quantile(error: float) -> float:
    from scipy.stats import norm  # slow to import

    return float(norm.isf(error))


def need(error: float) -> float:
    """What `alike` has to say for clients to differ: two tests have to err, each with the root of `error`."""
    return quantile(np.sqrt(error))


class Verdict(NamedTuple):
    """Which pairs of groups are to be one, and how sure that is of all."""

    pairs: list[tuple[int, int]]
    text: str
    details: dict[str, Any]


def lenient(told: Told) -> Verdict:
    """Pairs of groups of which one side does not prefer its own models, or both hardly do."""
    side, both = prefers(told)
    sure = np.minimum(side, side.T)
    return _verdict(sure, (sure < LEAST) | (_mean(told, both) < BEST_OF_THREE), both)


def _mean(told: Told, both: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """The mean of T that `prefers` has found for both: of many clients, little of it is sure as well."""
    sizes = told.members().sum(1)
    return np.asarray(CHANCE + both * SPREAD / np.sqrt(np.maximum(sizes[:, None] + sizes, 1)))


def strict(told: Told, error: float, differ: float) -> Verdict:
    """The same, and those of which it is not sure that both sides do, or that halves agree about it.

    `differ` is what `alike` has said of all clients: if they need not differ, they have to prefer their
    groups by more than choices that fit noise best.
    """
    side, both = prefers(told)
    sure, pairs = np.minimum(side, side.T), max(1, len(side) * (len(side) - 1) // 2)
    doubtful = (sure < LEAST) | (_mean(told, both) < MIDDLE)
    if differ < need(error):
        both = prefers(told, COLLUSION)[1]
    doubtful |= both < quantile(error / (2 * max(1, len(told.group))))
    doubtful |= agreement(told) < quantile(error / pairs)
    return _verdict(sure, doubtful, both)


def _verdict(
    sure: Float[np.ndarray, "k k"], near: Bool[np.ndarray, "k k"], both: Float[np.ndarray, "k k"]
) -> Verdict:
    """Of pairs that are near: those that are each other's nearest."""
    apart = np.where(near & ~np.eye(len(sure), dtype=bool), sure, np.inf)
    nearest = apart.argmin(1) if len(sure) else np.zeros(0, int)
    pairs = [
        (a, int(b)) for a, b in enumerate(nearest) if a < b and nearest[b] == a and np.isfinite(apart[a, b])
    ]
    kept = np.sort(both[np.triu_indices(len(both), 1)][~near[np.triu_indices(len(both), 1)]])
    text = f"{count(len(pairs), 'pair')} to be merged" if pairs else "no pair to be merged"
    if pairs:
        a, b = pairs[0]
        text += f": clients of groups {a} and {b} prefer their own by {both[a, b]:.1f} standard errors"
    if len(kept):
        text += f"; the least that keeps two apart is {kept[0]:.1f}"
    return Verdict(pairs, f"{text}.", {"apart": np.round(both, 3).tolist()})


def better_alone(told: Told, error: float) -> Bool[np.ndarray, " clients"]:
    """Clients that lose less by being alone, and those of groups that do on the whole.

    Each has a p-value. Where it is sure that any client does, or any group, others need less for it.
    """
    known = told.heard & (told.group >= 0) & (told.examples > 0)
    sizes = np.bincount(told.group[known], minlength=told.loss.shape[1])
    may = known & (sizes[np.maximum(told.group, 0)] > 1)
    leaves = np.zeros(len(may), bool)
    own = chance(statistic(*told.alone[may].T), told.examples[may])
    leaves[may] = any_then_more(own, error)
    member = told.members()
    large = np.flatnonzero(sizes > 1)
    whole = chance(statistic(*(member @ told.alone)[large].T), (member @ told.examples)[large])
    return np.asarray(leaves | (may & np.isin(told.group, large[any_then_more(whole, error)])))
