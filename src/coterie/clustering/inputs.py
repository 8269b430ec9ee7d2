"""What the inputs of each group's clients look like, and whose a client's are most like."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from coterie import keys
from coterie.errors import SettingError
from coterie.learn.inputs import WIDTH, DescribeInputs
from coterie.words import is_number

FOLDS = 5
POOLED = 0.5  # how much of a group's covariances is those of all groups, since its clients may be few
CLEARLY = 2.0  # standard deviations, by which descriptions are to be better than always the largest group
LEAST = 0.01  # of the mean variance, that every direction has at least


@dataclass(frozen=True)
class Inputs:
    """What the inputs of each group's clients look like: moments of features, see `DescribeInputs`.

    Attributes
    ----------
    moments
        Means over a group's clients; NaN for one that nobody described.
    draw, noise
        What the features were drawn with, and the noise in what each client sent.
    agreement
        The share of the training clients that are put into their own group by descriptions of others.
    """

    moments: Float[np.ndarray, "k numbers"]
    draw: int
    noise: float
    agreement: float

    @classmethod
    def of(
        cls,
        sent: Float[np.ndarray, "clients numbers"],
        group: Int[np.ndarray, " clients"],
        k: int,
        draw: int,
        noise: float,
    ) -> Inputs:
        """The descriptions of k groups, given what their clients sent."""
        fold = np.zeros(len(group), int)  # each group's clients are dealt out to all
        for g in range(k):
            fold[group == g] = np.arange(np.count_nonzero(group == g)) % FOLDS
        right = 0
        for number in np.unique(fold):
            out = fold == number
            if not out.all():
                others = cls(_means(sent[~out], group[~out], k), draw, noise, np.nan)
                right += int((others.nearest(sent[out]) == group[out]).sum())
        agreement, share = right / len(group), float(np.bincount(group).max() / len(group))
        if len(np.unique(group)) > 1 and agreement < share + CLEARLY * np.sqrt(
            share * (1 - share) / len(group)
        ):
            warnings.warn(
                f"descriptions of inputs put {agreement:.0%} of the training clients into their own group, "
                f"and {share:.0%} are in the largest: clients without labels cannot be told apart, as where "
                "groups differ in their labels alone.",
                stacklevel=3,
            )
        return cls(_means(sent, group, k), draw, noise, agreement)

    def task(self) -> DescribeInputs:
        """What a client is asked, to be compared with these groups."""
        return describing(self.draw, self.noise)

    def nearest(self, sent: Float[np.ndarray, "clients numbers"]) -> Int[np.ndarray, " clients"]:
        """The group under which each client's features are likeliest, if those of a group are Gaussian.

        The mean log-likelihood of a client's features depends on their moments alone.
        """
        there = np.flatnonzero(np.isfinite(self.moments).all(1))
        if not len(there):
            return np.full(len(sent), -1)
        means, second = self.moments[there, :WIDTH], _square(self.moments[there, WIDTH:])
        own = second - means[:, :, None] * means[:, None, :]
        values, vectors = np.linalg.eigh((1 - POOLED) * own + POOLED * own.mean(0))
        # of noise in so many numbers the largest eigenvalue is about so large
        least = LEAST * values.mean() + 2 * self.noise * np.sqrt(WIDTH)
        values = np.maximum(values, 0) + least
        precision = np.einsum("gde,ge,gfe->gdf", vectors, 1 / values, vectors)
        towards = np.einsum("gde,ge->gd", precision, means)
        twice = np.where(_upper()[0] == _upper()[1], 1, 2)
        far = sent[:, WIDTH:] @ (twice * precision[:, *_upper()]).T - 2 * sent[:, :WIDTH] @ towards.T
        far += np.log(values).sum(1) + (means * towards).sum(1)
        nearest: np.ndarray = there[far.argmin(1)]
        return nearest


def describing(draw: int, noise: float) -> DescribeInputs:
    """What clients are asked."""
    return DescribeInputs(np.asarray(draw, np.uint32), np.asarray(noise, np.float32))  # type: ignore[arg-type]


def draw_of(seed: int) -> int:
    """What the features of a run are drawn with."""
    return int(keys.token(f"inputs/{seed}") & np.uint64(0xFFFFFFFF))


def check_noise(noise: float) -> None:
    """Refuse what is no standard deviation."""
    if not is_number(noise) or not 0 <= noise < np.inf:
        raise SettingError(f"noise must be a standard deviation from 0 up, not {noise!r}.")


def _means(
    sent: Float[np.ndarray, "clients numbers"], group: Int[np.ndarray, " clients"], k: int
) -> Float[np.ndarray, "k numbers"]:
    member = (group[:, None] == np.arange(k)).astype(float)
    sizes = member.sum(0)
    return np.where(sizes[:, None] > 0, member.T @ sent / np.maximum(sizes, 1)[:, None], np.nan)


def _upper() -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.triu_indices(WIDTH)
    return rows, columns


def _square(products: Float[np.ndarray, "k numbers"]) -> Float[np.ndarray, "k width width"]:
    rows, columns = _upper()
    whole = np.zeros((len(products), WIDTH, WIDTH))
    whole[:, rows, columns] = whole[:, columns, rows] = products
    return whole
