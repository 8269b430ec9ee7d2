"""When a cluster is split in two, and how: the criteria of CFL.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
under Privacy Constraints", IEEE TNNLS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from coterie.errors import SettingError, whole_number
from coterie.words import is_number, percent

# what "auto" stands for: eps1, eps2 in proportion to eps1, and by how much clients part more than by noise
AUTO, BEYOND, MARGIN = "20%", 1.5, 1.5
ROUNDING = 1e-3  # how far apart rounding may put updates of one direction


@dataclass(frozen=True)
class Rule:
    """When a cluster is split, and how: see `CFL`."""

    eps1: float | str = "auto"
    eps2: float | str = "auto"
    gamma: float | str = "auto"
    min_size: int = 2
    warmup: int = 0
    more_than: int = 1  # a cluster of so many clients, or fewer, is not split
    linkage: Literal["single", "complete"] = "single"

    def check(self) -> None:
        """Refuse settings that make no sense."""
        for name, length in (("eps1", self.eps1), ("eps2", self.eps2)):
            positive = is_number(length) and 0 < float(length) < np.inf
            if length != "auto" and not positive and not percent(length):
                raise SettingError(
                    f"{name} must be 'auto', a positive length, or a share of the longest mean update such "
                    f"as '10%', not {length!r}."
                )
        if self.gamma != "auto" and not (is_number(self.gamma) and 0 <= float(self.gamma) < 1):
            raise SettingError(f"gamma must be 'auto', or at least 0 and below 1, not {self.gamma!r}.")
        whole_number("min_size", self.min_size, 1)
        whole_number("warmup", self.warmup, 0)

    def lengths(self, scale: Any) -> tuple[Any, Any]:
        """eps1 and eps2, given the length of the longest mean update so far."""
        eps1 = _length(AUTO if self.eps1 == "auto" else self.eps1, scale)
        return eps1, BEYOND * eps1 if self.eps2 == "auto" else _length(self.eps2, scale)

    def ripe(self, mean: Float[Any, " k"], longest: Float[Any, " k"], scale: Any) -> Bool[Any, " k"]:
        """Criteria 1 and 2: which clusters no longer move, while some client would still move them far.

        By the lengths of the clusters' mean updates, and of the longest of a client.
        """
        eps1, eps2 = self.lengths(scale)
        return (mean < eps1) & (longest > eps2)

    def parts(self, cut: Bipartition, similarity: Float[np.ndarray, "n n"]) -> bool:
        """Criterion 3: whether the clients part well."""
        return _gap(cut.across) > self.noise(cut, similarity) + ROUNDING

    def noise(self, cut: Bipartition, similarity: Float[np.ndarray, "n n"]) -> float:
        """gamma, given the similarities of a cluster's clients and how they would be parted.

        With `"auto"` there are two ways to see that it is not noise that parts them. Either the parts explain
        more of the updates than noise has in any one direction (see `explained`): then gamma is 0. Or clients
        of different parts are farther from each other than every client is from the one most similar to it.
        """
        if self.gamma != "auto":
            return float(self.gamma)
        if explained(cut, similarity) > MARGIN:
            return 0.0
        # two clients of the same true cluster have sqrt((1 - alpha) / 2) <= gamma: so have, if nobody is
        # alone in its true cluster, each client and the one most similar to it
        alike = np.where(np.eye(len(similarity), dtype=bool), -1, similarity).max(axis=1)
        return MARGIN * _gap(alike.min())


PRESETS = {
    None: Rule(),
    "authors": Rule(0.4, 1.6, gamma=0.0, min_size=1, warmup=20, more_than=2, linkage="complete"),
}


class Bipartition(NamedTuple):
    """Two groups of clients, and the largest similarity of two that are in different ones."""

    one: Int[np.ndarray, " some"]
    other: Int[np.ndarray, " others"]
    across: float  # alpha_cross^max

    @property
    def sizes(self) -> tuple[int, int]:
        """How many clients are in each group."""
        return len(self.one), len(self.other)


def bipartition(
    similarity: Float[np.ndarray, "n n"], how: Literal["single", "complete"] = "single"
) -> Bipartition:
    """n clients in two groups such that the largest similarity of two in different groups is smallest.

    Merging the most similar ones first until two groups are left finds it: single linkage. The first client
    is in the first group.
    """
    from scipy.cluster.hierarchy import linkage, to_tree  # slow to import, and seldom needed
    from scipy.spatial.distance import squareform

    apart = 1 - (similarity + similarity.T) / 2
    top = to_tree(linkage(squareform(apart, checks=False), how))
    one, other = sorted((np.sort(part.pre_order()) for part in (top.left, top.right)), key=lambda p: p[0])
    return Bipartition(one, other, float(1 - apart[np.ix_(one, other)].min()))


def explained(cut: Bipartition, similarity: Float[np.ndarray, "n n"]) -> float:
    """How much two parts explain of the directions of n updates, in proportion to what noise could.

    Of updates of length 1, the means of the two parts explain a share of the variance: no more than the
    direction of the largest variance has. Of n updates that are one mean and independent noise in D
    dimensions, that direction has a share of about (1 / sqrt(n - 1) + 1 / sqrt(D))^2, the edge of the
    spectrum by Marchenko and Pastur. 1 / D is the mean square cosine of what the means leave unexplained in
    one part and in the other, where that is noise. Where nothing is left, D is unknown, and 0 is returned.
    """
    n, sizes = len(similarity), cut.sizes
    member = np.zeros((n, 2))
    member[cut.one, 0] = member[cut.other, 1] = 1
    rest = np.eye(n) - member / sizes @ member.T
    left = rest @ similarity @ rest  # the inner products of what the means leave
    whole = np.trace(similarity) - similarity.sum() / n
    lengths = np.sqrt(np.maximum(np.diag(left), 0))
    known = lengths > ROUNDING
    one, other = (part[known[part]] for part in (cut.one, cut.other))
    if not len(one) or not len(other) or whole <= 0:
        return 0.0
    square = np.square(left[np.ix_(one, other)] / np.outer(lengths[one], lengths[other])).mean()
    noise = (1 / np.sqrt(n - 1) + np.sqrt(square)) ** 2
    return float((1 - np.trace(left) / whole) / noise)


def cosines(products: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The cosine similarities of vectors, given their inner products; 0 for a vector of length 0."""
    lengths = np.sqrt(np.diag(products).astype(float))
    both = np.outer(lengths, lengths)
    return np.where(both > 0, np.clip(products / np.where(both > 0, both, 1), -1, 1), 0)


def _gap(similarity: float) -> float:
    """sqrt((1 - alpha) / 2): the sine of half the angle."""
    return float(np.sqrt((1 - similarity) / 2))


def _length(setting: float | str, scale: Any) -> Any:
    """A length that is given as such, or as a share of another."""
    share = percent(setting)
    return setting if share is None else share * scale
