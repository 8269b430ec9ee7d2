"""How what clients send becomes the cluster models of the next round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Array, Float, Int, PyTree

from coterie.aggregate import Aggregator, Denominator, Mean, ServerOptimiser, Sums
from coterie.algorithms.parts.sharing import Sharing
from coterie.errors import SettingError
from coterie.federation.protocol import Answers, Ask
from coterie.learn.learner import Learner
from coterie.learn.task import Reply
from coterie.learn.tasks import ChooseAndTrain, Send
from coterie.models import stacked

Weight = Literal["clients", "examples"]


@dataclass(frozen=True)
class Averaging:
    """A client trains a model or sends its gradient, and the server averages what comes back, by cluster.

    Parameters
    ----------
    weight
        How much a client counts: the same as any other (`"clients"`) or as many times as it has examples
        (`"examples"`).
    send
        What clients send and the server averages: `"models"` after their local update, or `"gradients"`, of
        which the server takes a step with the step size of the local update.
    normalise
        By what a cluster's sum is divided: the weight of its own participants (`"cluster"`), so that it is
        their mean; that of all participants (`"participants"`); or the number of all clients there are,
        taking part or not (`"clients"`). With the last two a cluster moves in proportion to its share.
    aggregate
        How the replies of a cluster's clients become one.
    sharing
        Which arrays all clusters have in common.
    """

    weight: Weight = "clients"
    send: Send = "models"
    normalise: Denominator = "cluster"
    aggregate: Aggregator = field(default_factory=Mean)
    sharing: Sharing = field(default_factory=Sharing)

    def check(self, learner: Learner) -> None:
        """Refuse what makes no sense, or would be ignored."""
        if self.send == "gradients":
            learner.local.check_single_step()
        if self.normalise == "clients" and self.weight == "examples":
            raise SettingError(
                "normalise='clients' divides by the number of clients, which weight='examples' does not "
                "count: use normalise='participants'."
            )
        if self.sharing.share is not None and isinstance(self.aggregate, ServerOptimiser):
            raise SettingError(
                "a server optimiser has a state for every cluster, and shared arrays belong to none: leave "
                "share or the optimiser out."
            )

    def start(self, models: PyTree) -> Any:
        """What the server keeps from round to round beside the models."""
        return self.aggregate.start(models)

    def ask(
        self,
        models: PyTree,
        number: Int[Array, ""],
        only: Int[Array, " clients"] | None = None,
        *,
        keep_all: bool = False,
        **more: Any,
    ) -> Ask:
        """What the participants of a round are asked; `more` are further fields of `ChooseAndTrain`.

        With `keep_all` their replies are not summed on the way.
        """
        own, shared = self.sharing.parted(models)
        task = ChooseAndTrain(
            own,
            number,
            shared=shared,
            frozen=self.sharing.frozen,
            send=self.send,
            by_examples=self.weight == "examples",
            **more,
        )
        return Ask(task, only, reduce=None if keep_all else self.aggregate.reduction(stacked.count(models)))

    def update(
        self, models: PyTree, kept: Any, answers: Answers, rate: Float[Array, ""] | None, clients: int
    ) -> tuple[PyTree, Any]:
        """The models of the next round, and what the server keeps; `clients` is how many there are."""
        k = stacked.count(models)
        replies = Reply(value=answers.value, cluster=answers.cluster, weight=answers.weight)
        summed = isinstance(answers.value, Sums)
        sums = answers.value if summed else self.aggregate.sums(replies, answers.answered, k)
        own = self.sharing.own_of(models) if self.sharing.frozen else models
        target = self._moved(sums, own, rate, clients)
        if self.sharing.frozen:
            target = stacked.with_part(models, target)
        elif self.sharing.share is not None:
            # "run vanilla gradient averaging or Federated Averaging on the remaining coordinates"
            everybody = self.sharing.pooled(self.aggregate, sums, summed, replies, answers.answered)
            together = self._moved(everybody, models, rate, clients)
            target = self.sharing.with_shared(target, together)
        kept, models = self.aggregate.step(kept, models, target, sums.weight > 0)
        return models, kept

    def _moved(self, sums: Sums, old: PyTree, rate: Float[Array, ""] | None, clients: int) -> PyTree:
        if self.send == "models":
            return sums.mean(old, self.normalise, clients)
        return sums.descent(old, rate, self.normalise, clients)
