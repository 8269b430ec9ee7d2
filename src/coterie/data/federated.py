"""A data set for federated learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coterie.data.shards import Shards, places
from coterie.errors import DataError

if TYPE_CHECKING:
    from coterie.data.preparation import Preparation


@dataclass(frozen=True)
class Federated:
    """Clients' data, and what is known of the groups among them.

    Attributes
    ----------
    train
        What the clients train on.
    test
        Held-out examples of the same clients, or of those that have enough.
    unseen
        Clients that take no part in training.
    truth, unseen_truth
        Cluster labels of the training and the unseen clients, where known.
    models
        The true parameters, shape (k, d), where known.
    name
        What the data set is called in reports.
    """

    train: Shards
    test: Shards | None = None
    unseen: Shards | None = None
    truth: np.ndarray | None = None
    unseen_truth: np.ndarray | None = None
    models: np.ndarray | None = None
    name: str = "data"

    @property
    def preparation(self) -> Preparation | None:
        """What was done to a table of the user's own."""
        return self.train.preparation

    def __post_init__(self) -> None:
        if self.test is not None and not np.array_equal(self.test.ids, self.train.ids):
            place = places(self.test.ids, self.train.ids)
            if (place < 0).any() or (np.diff(place) <= 0).any():
                raise DataError("test must hold clients of train, in the same order.")
        for other, what in ((self.test, "test"), (self.unseen, "unseen")):
            if other is not None and other.spec.x_shape != self.train.spec.x_shape:
                raise DataError(
                    f"{what} has features of shape {other.spec.x_shape}, train of {self.train.spec.x_shape}."
                )
        for label, shards, what in (
            (self.truth, self.train, "truth"),
            (self.unseen_truth, self.unseen, "unseen_truth"),
        ):
            if label is not None and (shards is None or np.shape(label) != (len(shards),)):
                raise DataError(f"{what} must hold one cluster label per client.")
