"""What clients are asked by most algorithms."""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from coterie.learn.learner import Within, itself
from coterie.learn.local import Pull
from coterie.learn.shard import Part, Shard
from coterie.learn.task import Client, Reply, Task, per_client
from coterie.models import stacked

Send = Literal["models", "gradients"]


class Loss(eqx.Module):
    """A client's report: its loss, before any training."""

    loss: Float[Array, "..."]


class Losses(eqx.Module):
    """A client's report: its loss under each of k models."""

    losses: Float[Array, " k"]


class ChooseAndTrain(Task):
    """Find the model of lowest loss among k and train it on the shard, or send its gradient.

    These are lines 6 to 11 of Algorithm 1 of the IFCA paper, and lines 6 to 8 of FedX with hard labels. A
    client that is told one model (`only`) takes that whatever the others' losses.
    """

    models: PyTree  # (k, ...); where arrays are shared, those that are not, by name
    round: Int[Array, ""]
    shared: dict[str, Array] | None = None  # arrays that all models have in common, by name
    frozen: bool = eqx.field(static=True, default=False)  # what is shared is not trained nor sent back
    send: Send = eqx.field(static=True, default="models")  # option II, or option I
    by_examples: bool = eqx.field(static=True, default=False)  # whether it counts once per example
    proximal: Float[Array, ""] | None = None  # mu of a further term mu/2 ||w - w0||^2 (FedProx)
    # where given, the model is found and trained on parts of the shard: (number, of how many)
    find_on: Part = None
    train_on: Part = None

    def compared(self, k: int) -> int:
        return k if k > 1 else 0

    def updates(self) -> int:
        return 1

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard
        looked_at, trained_on = shard.only(self.find_on), shard.only(self.train_on)
        whole = self._whole_model(client)
        losses = learner.shard_losses(self.models, looked_at, whole)
        cluster = lowest(losses)  # IFCA 6 and 7
        if client.only is not None:
            cluster = jnp.where(client.only < 0, cluster, client.only)
        model: PyTree = stacked.OneOf(self.models, cluster)
        if self.shared is not None or self.send == "gradients" or self.proximal is not None:
            model = model.taken()
        if self.shared is not None and not self.frozen:
            model, whole = whole(model), itself
        if self.send == "gradients":  # IFCA 9
            value = learner.gradient(model, trained_on, client.key, whole)
        else:  # IFCA 11
            pull = None if self.proximal is None else Pull(model, self.proximal)
            value = learner.train(model, trained_on, client.key, self.round, whole, pull=pull)
        return Reply(Loss(losses[cluster]), value, cluster, weight_of(shard, self.by_examples))

    def _whole_model(self, client: Client) -> Within:
        """How a model is made of its own arrays: with the shared ones, where there are any."""
        if self.shared is None:
            return itself
        shared, like = self.shared, client.learner.shapes_for(client.shard.x)
        return lambda own: stacked.from_named({**own, **shared}, like)


class WeighAndTrain(Task):
    """Train each of k models as far as the client belongs to it: soft labels.

    The labels lambda minimise sum_l lambda_l F_i(theta_l) + temperature * sum_l lambda_l log lambda_l over
    the simplex. The second term is ours: without it, as in (6) of the mixed-regression paper, that is the
    model of lowest loss alone.
    """

    models: PyTree  # (k, ...)
    round: Int[Array, ""]
    temperature: Float[Array, ""]
    by_examples: bool = eqx.field(static=True, default=False)

    class Report(eqx.Module):
        loss: Float[Array, ""]
        labels: Float[Array, " k"]

    def compared(self, k: int) -> int:
        return k

    def updates(self) -> int:
        return 1

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard
        losses = learner.shard_losses(self.models, shard)
        known = jnp.where(jnp.isnan(losses), jnp.inf, losses)
        labels = jax.nn.softmax(-(known - known.min()) / self.temperature)

        def trained(model: PyTree, label: Float[Array, ""]) -> PyTree:
            return learner.train(model, shard, client.key, self.round, label=label)

        return Reply(
            self.Report(jnp.sum(jnp.where(labels > 0, labels * losses, 0)), labels),
            value=jax.vmap(trained)(self.models, labels),
            cluster=lowest(losses),
            weight=weight_of(shard, self.by_examples),
        )


class TrainAlone(Task):
    """Train a model on the client's shard for some rounds, all in one exchange; the loss before each."""

    start: PyTree
    rounds: int = eqx.field(static=True)
    part: Part = None  # where given, on a part of the shard: (number, of how many)
    takes_part: Bool[Any, " rounds"] | None = per_client(default=None)  # in which rounds; None: in all

    def updates(self) -> int | Int[Array, "..."]:
        return self.rounds if self.takes_part is None else self.takes_part.sum(-1)

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard.only(self.part)
        takes_part = jnp.ones(self.rounds, bool) if self.takes_part is None else self.takes_part

        def once(model: PyTree, step: tuple[Array, Array]) -> tuple[PyTree, Array]:
            number, active = step
            loss = learner.shard_loss(model, shard)
            new = learner.train(model, shard, jax.random.fold_in(client.key, number), number)
            return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, model), loss

        model, losses = jax.lax.scan(once, self.start, (jnp.arange(self.rounds), takes_part))
        return Reply(Loss(losses), model)


class MeasureLosses(Task):
    """The loss of each of k models on the shard."""

    models: PyTree  # (k, ...)
    part: Part = None  # where given, on a part of the shard: (number, of how many)

    def compared(self, k: int) -> int:
        return k

    def __call__(self, client: Client) -> Reply:
        return Reply(Losses(client.learner.shard_losses(self.models, client.shard.only(self.part))))


class CountExamples(Task):
    """How many examples the client has."""

    class Report(eqx.Module):
        examples: Int[Array, ""]

    def __call__(self, client: Client) -> Reply:
        return Reply(self.Report(client.shard.size))


class Evaluate(Task):
    """Loss and accuracy of one of the models (`only`) on the shard."""

    models: PyTree  # (k, ...)

    class Report(eqx.Module):
        loss: Float[Array, ""]
        accuracy: Float[Array, ""]
        examples: Int[Array, ""]

    def __call__(self, client: Client) -> Reply:
        learner, shard = client.learner, client.shard
        model = stacked.take(self.models, client.only)
        loss, accuracy = learner.shard_loss(model, shard), learner.shard_accuracy(model, shard)
        return Reply(self.Report(loss, accuracy, shard.size))


def lowest(losses: Float[Any, "*batch k"]) -> Int[Array, "*batch"]:
    """The cluster identity: the model with the lowest loss; the first of them in a tie, never a NaN."""
    xp = losses.__array_namespace__()  # NumPy's on the host, where no program has to be compiled
    which: Array = xp.argmin(xp.where(xp.isnan(losses), xp.inf, losses), axis=-1).astype(xp.int32)
    return which


def weight_of(shard: Shard, by_examples: bool) -> Float[Array, ""] | float:
    """How much a client counts: as often as it has examples, or once, which it need not say."""
    return shard.size.astype(jnp.float32) if by_examples else 1.0
