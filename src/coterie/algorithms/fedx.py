"""FedX: Phase 2 of Su, Xu and Yang, "Global Convergence of Federated Learning for Mixed Regression".

The box "Phase 2 FedX+clustering" is `Alternating.round`; here is what it has that IFCA has not.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import PyTree

from coterie.aggregate import Mean, Normalise, SoftSumming
from coterie.algorithms.alternating import Clustered
from coterie.algorithms.state import Step
from coterie.errors import SettingError
from coterie.federation.protocol import Reduction
from coterie.learn import tasks


@dataclasses.dataclass(frozen=True)
class FedX(Clustered):
    """FedAvg or FedProx with clustering: Phase 2 of the mixed-regression paper.

    The local update decides which: `SGD(lr=eta, steps=s)` is FedAvg's, s steps of gradient descent, and
    `Proximal(lr=eta)` is FedProx's. The paper's loss is `"half_squared"`; Phase 1 is `init=MomentDescent()`.

    Parameters
    ----------
    temperature
        0: hard labels, (7) of the paper, and a client trains one model. Above 0: soft labels, lambda =
        softmax(-loss / temperature), and a client trains and sends all k, each as far as it belongs to it.
    weight, normalise
        As printed, theta_t = sum over clients of w_i theta_{i,t} with w_i = n_i / N, where a client leaves
        the models of other clusters as they are: `weight="examples"` and `normalise="all"`.
    k, n_init, init, empty, share, settle, recheck, resample, average, aggregate, rounds,
    participation
        As for `IFCA`.
    """

    weight: Literal["clients", "examples"] = dataclasses.field(default="examples", kw_only=True)
    temperature: float = dataclasses.field(default=0.0, kw_only=True)

    __hash__ = Clustered.__hash__

    @property
    def printed(self) -> Normalise:
        return "all"  # FedX 9

    @property
    def soft(self) -> bool:
        return self.temperature > 0

    def check(self, clients: int) -> None:
        super().check(clients)
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"temperature must be 0 or a positive number, not {self.temperature}.")
        others = {
            "average='gradients'": self.average == "gradients",
            "share": self.share is not None,
            "settle": self.settle is not None,
            "resample": self.resample,
            "empty='revive'": self.empty == "revive",
            "aggregate": not isinstance(self.aggregate, Mean),
        }
        clash = [name for name, given in others.items() if given]
        if self.soft and clash:
            raise SettingError(f"with soft labels clients train every model: leave {clash[0]} out.")

    @property
    def task(self) -> tasks.Task:
        return tasks.weigh_and_train if self.soft else super().task

    def reduction(self, k: int) -> Reduction | None:
        return SoftSumming(k) if self.soft else super().reduction(k)

    def broadcast(self, models: PyTree, step: Step) -> dict[str, Any]:
        content = super().broadcast(models, step)
        return content | ({"temperature": jnp.full(self.restarts, self.temperature)} if self.soft else {})
