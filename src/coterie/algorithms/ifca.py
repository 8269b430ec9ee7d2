"""IFCA: the Iterative Federated Clustering Algorithm of Ghosh, Chung, Yin and Ramchandran.

"An Efficient Framework for Clustered Federated Learning". Its Algorithm 1 is `Alternating.round`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from coterie.algorithms.alternating import Clustered, one_of
from coterie.errors import SettingError


@dataclasses.dataclass(frozen=True)
class IFCA(Clustered):
    """The Iterative Federated Clustering Algorithm: model averaging (option II) or gradient averaging (I).

    Parameters
    ----------
    k
        Number of clusters to look for.
    n_init
        Restarts from different initial models, run side by side; the one with the lowest training loss after
        the last round is kept.
    init
        How the k models start: an initialiser such as `Random()`, or k models given as a stacked pytree or
        as a (k, d) matrix.
    empty
        What becomes of a cluster that no client belongs to: its model stays as it is (`"keep"`), or it
        begins anew from a client that its own cluster fits badly (`"revive"`).
    share
        Arrays that all clusters have in common (section 4.1): they are averaged over all participants in
        every round, while the others are clustered, and only one copy of them is sent. `"all but last"`
        layer, names of layers such as `["layers.0"]`, or a function of an array's name.
    settle, recheck
        A client whose cluster has stayed the same for `settle` of its rounds is sent only its own model
        (section 4.1), and all of them every `recheck`-th time, to see whether that is still right. What is
        not sent for this reason is `bytes_spared` in the history.
    resample
        In every round find the cluster on one slice of the shard and train on another, all of them disjoint:
        the assumption of the theory in section 5, of no use in practice.
    preset
        `"authors"`: what is shared is not trained at all, as in the released code, where it comes from a
        model trained before; give it as `init`.
    weight, average, normalise, aggregate, rounds, participation
        See `Alternating` and `RoundAlgorithm`. Line 14 divides gradients by the number of all participants,
        line 15 models by that of the cluster.

    A client takes the model of lowest loss, the first of them in a tie.
    """

    preset: Literal["authors"] | None = dataclasses.field(default=None, kw_only=True)

    __hash__ = Clustered.__hash__

    @property
    def frozen(self) -> bool:
        return self.preset == "authors"

    def check(self, clients: int) -> None:
        super().check(clients)
        one_of("preset", self.preset, None, "authors")
        if self.preset == "authors" and self.share is None:
            raise SettingError("preset='authors' is about shared layers: say with share which they are.")
