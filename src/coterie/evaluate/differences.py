"""What distinguishes groups: whose inputs differ, and in which features' effects their models differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from coterie.clustering.predict import outputs_of
from coterie.clustering.result import Clustering
from coterie.data.shards import Shards, places
from coterie.learn.losses import CLASSIFYING, named

SAMPLE = 256  # examples, over which an effect is averaged
MOST = 512  # features; with more, no single one tells much
SHOWN = 3  # features that are named
NOTABLE = 0.25  # of the largest difference, that others have to have to be named beside it
FAR, SURE = 0.2, 3.0  # deviations, and standard errors, by which means of inputs are to differ to be named


@dataclass(frozen=True)
class Differences:
    """How groups differ, feature by feature.

    Attributes
    ----------
    features
        What they are called.
    groups
        The clusters that have clients.
    effects
        By how much the output of a group's model rises, on average over the same examples of all groups, when
        the feature goes from a deviation below its mean to one above it and all else stays as it is. Of a
        classifier: the probability of a class, that in which groups differ most.
    of
        For each feature, of what that is: the class, or what is foretold.
    means
        The mean of a group's clients, in deviations of the feature from the mean of all clients.
    errors
        The standard error of the largest difference of these means.
    """

    features: tuple[str, ...]
    groups: tuple[int, ...]
    effects: Float[np.ndarray, "groups features"]
    of: tuple[str, ...]
    means: Float[np.ndarray, "groups features"]
    errors: Float[np.ndarray, " features"]
    probabilities: bool

    def order(self) -> list[int]:
        """The features by how much their effects differ."""
        spread = np.ptp(self.effects, axis=0)
        return [int(j) for j in np.argsort(-spread, kind="stable")]

    def __str__(self) -> str:
        return " ".join([self._of_effects(), self._of_inputs()])

    def _of_effects(self) -> str:
        spread = np.ptp(self.effects, axis=0)
        said = []
        for j in [j for j in self.order()[:SHOWN] if spread[j] >= NOTABLE * spread.max() and spread[j] > 0]:
            low, high = int(self.effects[:, j].argmin()), int(self.effects[:, j].argmax())
            each = [f"{self._shown(self.effects[g, j])} in group {self.groups[g]}" for g in (high, low)]
            said.append(f"{self.features[j]} ({self.of[j]}: {' and '.join(each)})")
        if not said:
            return "No feature has another effect in one group than in another."
        return f"From low to high values, groups differ most in what these do: {'; '.join(said)}."

    def _of_inputs(self) -> str:
        spread = np.ptp(self.means, axis=0)
        far = (spread > FAR) & (spread > SURE * self.errors)
        if not far.any():
            return "Their inputs are alike in the mean."
        said = []
        for j in [j for j in np.argsort(-spread, kind="stable")[:SHOWN] if far[j]]:
            low, high = int(self.means[:, j].argmin()), int(self.means[:, j].argmax())
            said.append(
                f"{self.features[j]} ({self.means[high, j]:+.1f} deviations in group {self.groups[high]}, "
                f"{self.means[low, j]:+.1f} in group {self.groups[low]})"
            )
        return f"Their inputs differ in {'; '.join(said)}."

    def _shown(self, effect: float) -> str:
        return f"{100 * effect:+.0f} points" if self.probabilities else f"{effect:+.3g}"


def differences(found: Clustering, clients: Shards, seed: int = 0) -> Differences | None:
    """What distinguishes the groups of a clustering; None where that cannot be told feature by feature.

    Parameters
    ----------
    found
        Groups of some of these clients, whose features are one row of numbers.
    clients
        Whose examples are looked at.
    seed
        Which of them.
    """
    groups = np.flatnonzero(found.sizes)
    group = found.assignment[places(clients.ids, found.ids)]
    if len(groups) < 2 or len(clients.spec.x_shape) != 1 or clients.spec.x_shape[0] > MOST:
        return None
    each, deviation = _means(clients)
    mine = [each[group == g] for g in groups]
    if min(map(len, mine)) == 0:
        return None
    means = np.stack([one.mean(0) for one in mine]) - each.mean(0)
    variances = np.stack([one.var(0, ddof=1) / len(one) if len(one) > 1 else one.var(0) for one in mine])
    at = np.arange(means.shape[1])
    errors = np.sqrt(variances[means.argmin(0), at] + variances[means.argmax(0), at])
    some = _some(clients, group, groups, seed)
    effects, of, probabilities = _effects(found, groups, some, each.mean(0), deviation)
    prepared = found.preparation
    names = [f"feature {j}" for j in at] if prepared is None else prepared.features
    scale = np.where(deviation > 0, deviation, 1)
    return Differences(
        tuple(names), tuple(groups.tolist()), effects, of, means / scale, errors / scale, probabilities
    )


def _means(clients: Shards) -> tuple[Float[np.ndarray, "clients features"], Float[np.ndarray, " features"]]:
    """The mean of each client, and the deviation of all examples."""
    means = np.zeros((len(clients), *clients.spec.x_shape))
    total, squares = np.zeros(clients.spec.x_shape), np.zeros(clients.spec.x_shape)
    for bucket in clients.buckets:
        own = np.arange(bucket.capacity) < bucket.sizes[:, None]
        x = np.asarray(clients.spec.seen(bucket.x), float) * own[..., None]
        means[bucket.clients] = x.sum(1) / bucket.sizes[:, None]
        total += x.sum((0, 1))
        squares += (x**2).sum((0, 1))
    mean = total / clients.examples
    return means, np.sqrt(np.maximum(squares / clients.examples - mean**2, 0))


def _some(
    clients: Shards, group: Int[np.ndarray, " clients"], groups: Int[np.ndarray, " groups"], seed: int
) -> Float[np.ndarray, "examples features"]:
    """Examples of clients of all groups alike."""
    rng, rows = np.random.default_rng(seed), []
    for g in groups:
        own = np.flatnonzero(group == g)
        for client in rng.choice(own, -(-SAMPLE // len(groups))):
            x, _ = clients.client(int(client))
            rows.append(x[rng.integers(len(x))])
    return np.asarray(clients.spec.seen(np.stack(rows)), np.float32)


def _effects(
    found: Clustering,
    groups: Int[np.ndarray, " groups"],
    x: Float[np.ndarray, "examples features"],
    mean: Float[np.ndarray, " features"],
    deviation: Float[np.ndarray, " features"],
) -> tuple[Float[np.ndarray, "groups features"], tuple[str, ...], bool]:
    """See `Differences.effects` and `of`."""
    d, label = x.shape[1], None if found.preparation is None else found.preparation.label
    probabilities = named(found.learner.loss) in CLASSIFYING
    moved = np.repeat(np.stack([x, x])[:, None], d, axis=1)  # low and high, feature, example, all features
    for side, sign in enumerate((-1, 1)):
        moved[side, np.arange(d), :, np.arange(d)] = (mean + sign * deviation)[:, None]
    rows = moved.reshape(-1, d)
    each = []
    for g in groups:
        out = outputs_of(found.learner, found.models, np.full(len(rows), g), rows)
        if probabilities:
            out = np.asarray(jax.nn.softmax(jnp.asarray(out[:, : found.spec.classes]), axis=1))
        elif label is not None and not label.classes:
            out = label.read(out)
        low, high = out.reshape(2, d, len(x), -1).mean(2)
        each.append(high - low)
    effects = np.stack(each).astype(float)  # group, feature, class or output
    which = np.ptp(effects, axis=0).argmax(-1)
    of = _called(found, which.tolist())
    return effects[:, np.arange(d), which], of, probabilities


def _called(found: Clustering, which: Sequence[int]) -> tuple[str, ...]:
    """What an output is called."""
    label = None if found.preparation is None else found.preparation.label
    if label is None:
        named_ = "class" if found.spec.classes is not None else "output"
        return tuple(f"{named_} {number}" for number in which)
    if not label.classes:
        return tuple(label.name for _ in which)
    return tuple(f"{label.name} = {label.classes[number]}" for number in which)
