"""What a client knows how to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie.data.shards import Spec
from coterie.errors import LearnerError
from coterie.learn import losses, on_chip, sample_space
from coterie.learn.augment import Augment, check_augment
from coterie.learn.local import SGD, LocalUpdate, Objective, PerExample, Pull
from coterie.learn.shard import Shard
from coterie.models import stacked
from coterie.models.layers import Model, Sized

AT_ONCE = 25  # models of which a client computes the losses at once, so that what they make stays in a cache
Within = Callable[[PyTree], PyTree]


def itself(model: PyTree) -> PyTree:
    """A model that is whole already."""
    return model


@partial(jax.tree_util.register_dataclass, data_fields=["local"], meta_fields=["model", "loss", "augment"])
@dataclass(frozen=True)
class Learner:
    """A model, a loss, and a local update rule.

    Parameters
    ----------
    model
        One of `coterie.models`, or any object with `init(key, x)` and `apply(params, x)`, `x` a batch.
    loss
        `"cross_entropy"`, `"smoothed_cross_entropy"`, `"squared"`, `"half_squared"`, or a function
        (outputs, y) -> one per example.
    local
        How a client trains: `SGD(...)`, `Optax(...)` or `Proximal(...)`.
    augment
        How the images of a local step are changed at random: `Crop(...)`, `Distort(...)`, or any object with
        the methods of `coterie.learn.augment.Augment`. Losses and accuracies are measured on what its `look`
        gives.
    """

    model: Model
    loss: str | losses.Loss = "cross_entropy"
    local: LocalUpdate = field(default_factory=lambda: SGD(lr=0.1, steps=10))
    augment: Augment | None = None

    def __post_init__(self) -> None:
        losses.named(self.loss)
        if not isinstance(self.model, Model):
            name = type(self.model).__name__
            raise LearnerError(
                f"{name} is no model: a model has init(key, x), which makes parameters, and "
                "apply(params, x), which gives the outputs of a batch. docs/extending.md shows one."
            )
        if not isinstance(self.local, LocalUpdate):
            raise LearnerError(
                f"local must be a local update, such as SGD(lr=0.1, steps=10), not {self.local!r}."
            )

    def for_data(self, spec: Spec) -> Learner:
        """The learner with its model's outputs decided by the data, checked to fit it."""
        loss = losses.named(self.loss)
        self._check_augment(spec)
        learner = (
            self if not isinstance(self.model, Sized) else replace(self, model=self.model.for_data(spec))
        )
        if loss in losses.CLASSIFYING and spec.classes is None:
            raise LearnerError(
                f"{loss.__name__} needs integer class labels but the targets are {spec.y_dtype}: "
                "use loss='squared' for real numbers."
            )
        try:
            params = learner.shapes(spec)
            outputs = jax.eval_shape(learner.model.apply, params, learner.sees(spec).example()).shape[1:]
        except (AttributeError, TypeError, ValueError) as error:
            shape = learner.sees(spec).x_shape
            raise LearnerError(
                f"the model {self.model} cannot be applied to features of shape {shape}: {error}"
            ) from error
        self.local.check_model(params)
        if loss in losses.CLASSIFYING:
            if outputs[:-1] != spec.y_shape or not outputs or outputs[-1] < (spec.classes or 0):
                raise LearnerError(
                    f"the model gives outputs of shape {outputs} but the labels need "
                    f"{(*spec.y_shape, spec.classes)}: one output per class."
                )
        elif loss in losses.NAMED.values() and outputs != spec.y_shape:
            raise LearnerError(
                f"the model gives outputs of shape {outputs} but the targets have shape {spec.y_shape}."
            )
        # a mean over the batch would let padding count
        y = jax.ShapeDtypeStruct((1, *spec.y_shape), spec.y_dtype)
        shape = jax.eval_shape(learner.per_example, params, spec.example(), y).shape
        if shape != (1,):
            raise LearnerError(
                f"the loss must give one number per example; for one example it gives shape {shape}."
            )
        return learner

    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree:
        """Fresh parameters for data of that shape."""
        return self.model.init(key, self.sees(spec).example())

    def shapes(self, spec: Spec) -> PyTree:
        """The shapes of the parameters for data of that shape."""
        return self.shapes_for(spec.example())

    def shapes_for(self, x: Array | np.ndarray) -> PyTree:
        """The shapes of the parameters for such features."""
        # a key outside starts JAX
        return jax.eval_shape(lambda: self.model.init(jax.random.key(0), self.look(x[:1])))

    def sees(self, spec: Spec) -> Spec:
        """What examples look like to the model, given what they look like to the client."""
        if self.augment is None:
            return spec
        seen = str(spec.example().dtype)
        return replace(spec, x_shape=tuple(self.augment.shape(spec.x_shape)), x_dtype=seen, scale=None)

    def look(self, x: Any) -> Any:
        """Features as the model sees them wherever it does not train."""
        return x if self.augment is None else self.augment.look(x)

    def per_example(self, params: PyTree, x: Array, y: Array) -> Float[Array, " examples"]:
        """The loss of every example of a batch."""
        return self._losses(params, self.look(x), y)

    def _losses(self, params: PyTree, seen: Array, y: Array) -> Float[Array, " examples"]:
        return losses.named(self.loss)(self.model.apply(params, seen), y)

    def shard_loss(self, params: PyTree, shard: Shard) -> Float[Array, ""]:
        """F_i: the mean loss over a client's examples."""
        return shard.mean(self.per_example(params, shard.x, shard.y))

    def shard_losses(self, models: PyTree, shard: Shard, within: Within = itself) -> Float[Array, " k"]:
        """F_i of each of k stacked models, or of parts that `within` makes whole models of."""

        def loss(part: PyTree) -> Float[Array, ""]:
            return self.shard_loss(within(part), shard)

        if stacked.count(models) <= AT_ONCE:
            return jax.vmap(loss)(models)
        together = _examples_together(self.per_example)

        def loss_of_whole(model: PyTree) -> Float[Array, ""]:
            return shard.mean(together(model, shard.x, shard.y))

        # what more models make of all examples would neither stay in a cache nor, in the end, fit in memory
        one_by_one = loss_of_whole if within is itself else loss
        losses: Array = jax.lax.map(one_by_one, models, batch_size=AT_ONCE)
        return losses

    def shard_accuracy(self, params: PyTree, shard: Shard) -> Float[Array, ""]:
        """The fraction of a client's examples that are classified right; NaN where y is not a label."""
        if losses.named(self.loss) not in losses.CLASSIFYING:
            return jnp.asarray(jnp.nan)
        return shard.mean(losses.correct(self.model.apply(params, self.look(shard.x)), shard.y))

    def gradient(self, start: PyTree, shard: Shard, key: Key[Array, ""], within: Within = itself) -> PyTree:
        """The gradient of F_i; of a random batch where the local update has a batch size.

        `start` are the parameters, or a part of them that `within` makes a whole of.
        """
        return self.local.gradient(self._objective(within), start, shard, key)

    def train(
        self,
        start: PyTree | stacked.OneOf,
        shard: Shard,
        key: Key[Array, ""],
        round_: Int[Array, ""],
        within: Within = itself,
        label: Any = 1.0,
        pull: Pull | None = None,
    ) -> PyTree:
        """The local update rule, applied to one client's shard.

        Its loss counts `label` times; with `pull` the model is drawn towards another one as well.
        """
        if shard.gram is not None and within is itself and sample_space.possible(self):
            return sample_space.train(self, start, shard, key, round_, label, pull)
        start = start.taken() if isinstance(start, stacked.OneOf) else start
        few = shard.x.shape[0], math.prod(shard.x.shape[1:])
        if within is itself and pull is None and on_chip.possible(self, *few):
            return on_chip.train(self, start, shard, round_, label)
        return self.local.run(self._objective(within, label, pull), start, shard, key, round_)

    def _objective(self, within: Within, label: Any = 1.0, pull: Pull | None = None) -> Objective:
        curvature = losses.CURVATURE.get(losses.named(self.loss))
        linear = getattr(self.model, "linear_in_parameters", False) and curvature is not None
        return Objective(
            per_example=lambda part, seen, y: self._losses(within(part), seen, y),
            weight=label,
            outputs=(lambda part, x: self.model.apply(within(part), x)) if linear else None,
            curvature=curvature or 1.0,
            pull=pull,
            augment=None if self.augment is None else self.augment.train,
        )

    def _check_augment(self, spec: Spec) -> None:
        """Refuse an augmentation that these examples, this model or this local update have no use for."""
        if self.augment is None:
            return
        name = type(self.augment).__name__
        if getattr(self.model, "in_torch", False):
            raise LearnerError(
                f"{name} is for models in JAX: clients with a PyTorch module augment in their DataLoader."
            )
        if not self.local.augments:
            raise LearnerError(
                f"{name} draws anew for every step, and {type(self.local).__name__} takes no such steps: "
                "give local=SGD(...) or Optax(...)."
            )
        check_augment(self.augment, spec)


def _examples_together(per_example: PerExample) -> PerExample:
    """The same losses, with the examples of a batch of clients as if they were those of one.

    Nothing else changes, but XLA then sees larger and simpler products.
    """

    @custom_vmap
    def of_stacked(models: PyTree, x: Array, y: Array) -> Float[Array, "k examples"]:
        return jax.vmap(lambda model: per_example(model, x, y))(models)

    @of_stacked.def_vmap
    def _(size: int, batched: Any, models: PyTree, x: Array, y: Array) -> tuple[Array, bool]:
        of_models, of_x, of_y = batched
        if all(jax.tree.leaves(of_models)) and not of_x and not of_y:
            flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), models)
            return of_stacked(flat, x, y).reshape(size, -1, len(x)), True
        if not any(jax.tree.leaves(of_models)) and of_x and of_y:
            flat = of_stacked(models, *(a.reshape(-1, *a.shape[2:]) for a in (x, y)))
            return flat.reshape(len(flat), size, -1).swapaxes(0, 1), True
        axes = jax.tree.map(lambda whether: 0 if whether else None, batched)
        return jax.vmap(of_stacked.fun, in_axes=tuple(axes))(models, x, y), True

    return lambda model, x, y: of_stacked(stacked.stack([model]), x, y)[0]
