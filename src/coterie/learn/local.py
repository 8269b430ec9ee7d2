"""Local update rules: what a client does to a model before it sends it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from coterie import keys
from coterie.errors import SettingError
from coterie.learn.shard import Shard, masked_mean
from coterie.models import stacked
from coterie.settings import Settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PerExample = Callable[[PyTree, Array, Array], Float[Array, " examples"]]
_AUGMENT = int(keys.token("augment") & np.uint64(0x7FFFFFFF))
Rule = TypeVar("Rule", bound="DataclassInstance")


class Pull(NamedTuple):
    """A term strength/2 * ||w - anchor||^2 that draws the model towards another one."""

    anchor: PyTree
    strength: Float[Array, ""] | float

    def __call__(self, model: PyTree) -> Float[Array, ""]:
        away = jax.tree.map(jnp.subtract, model, self.anchor)
        return jnp.asarray(self.strength / 2 * optax.tree.norm(away, squared=True))


@dataclass(frozen=True)
class Objective:
    """What a client makes small: the mean over its examples of their loss, times `weight`, and the pull.

    Attributes
    ----------
    per_example
        The loss of every example of a batch, given a model.
    weight
        The client's label for the model: how much its loss counts.
    outputs, curvature
        Where the loss is curvature/2 * |outputs - y|^2 with outputs that are linear in the model, so that it
        can be made smallest in one go: what the model gives for a batch. None elsewhere.
    pull
        Where else the model is drawn to. What a rule adds to keep near the start is a matter of its own.
    augment
        How the examples of a step are changed at random before the model sees them; None: not at all.
    """

    per_example: PerExample
    weight: Any = 1.0
    outputs: Callable[[PyTree, Array], Array] | None = None
    curvature: float = 1.0
    pull: Pull | None = None
    augment: Callable[[Array, Key[Array, ""]], Array] | None = None

    def shown(self, x: Array, key: Key[Array, ""], step: Int[Array, ""]) -> Array:
        """The examples of a step as the model sees them, given the client's key."""
        if self.augment is None:
            return x
        # from a key of its own: those of epochs are for the order of examples
        return self.augment(x, jax.random.fold_in(jax.random.fold_in(key, _AUGMENT), step))

    def mean(self, model: PyTree, x: Array, y: Array, mask: Array) -> Float[Array, ""]:
        loss = jnp.asarray(self.weight * masked_mean(self.per_example(model, x, y), mask))
        return loss if self.pull is None else loss + self.pull(model)


class LocalUpdate(Settings, ABC):
    """What a client does to a model."""

    augments: ClassVar[bool] = False  # whether its steps see examples as `Objective.shown` has them

    @abstractmethod
    def run(
        self, objective: Objective, start: PyTree, shard: Shard, key: Key[Array, ""], round_: Int[Array, ""]
    ) -> PyTree:
        """Train from `start` on one shard and return the new model."""

    def gradient(self, objective: Objective, model: PyTree, shard: Shard, key: Key[Array, ""]) -> PyTree:
        """The gradient of the objective; of a random batch, where the rule has a batch size."""
        return jax.grad(objective.mean)(model, shard.x, shard.y, shard.mask)

    def linear_steps(self) -> int | None:
        """How many steps there are, where each is on all examples and linear in gradients and models.

        None for other rules.
        """
        return None

    def check_model(self, model: PyTree) -> None:
        """Refuse settings that do not fit the model, given its shapes."""

    def step_size(self) -> tuple[Any, Any]:
        """The step size, for a server that takes the steps itself, and the factor on it per round.

        (None, None) for a rule that has none.
        """
        lr = getattr(self, "lr", None)
        if lr is None:
            return None, None
        return jnp.asarray(lr, jnp.float32), jnp.asarray(getattr(self, "decay", 1.0), jnp.float32)

    def check_single_step(self) -> None:
        """Refuse what a server that takes the steps itself, of gradients that clients send, would ignore."""
        if getattr(self, "lr", None) is None:
            raise SettingError("averaging gradients needs a step size: give local=SGD(lr=..., steps=1).")
        ignored = {
            "the proximal term": bool(getattr(self, "proximal", 0)) or hasattr(self, "tolerance"),
            "more than one step": getattr(self, "steps", 1) not in (1, None),
            "epochs": getattr(self, "epochs", None) is not None,
            "momentum": bool(getattr(self, "momentum", 0)),
            "weight_decay": bool(getattr(self, "weight_decay", 0)),
            "clip": getattr(self, "clip", None) is not None,
        }
        clash = [name for name, given in ignored.items() if given]
        if clash:
            raise SettingError(
                f"with average='gradients' the server takes one plain step per round, and {clash[0]} of the "
                "local update would be ignored: give local=SGD(lr=..., steps=1)."
            )


@dataclass(frozen=True, kw_only=True)
class Steps(LocalUpdate):
    """How long and on which examples a client trains; subclasses say with which optimiser.

    Parameters
    ----------
    steps
        Number of steps. Without `batch_size` each is on the whole shard (LocalUpdate of Algorithm 1 in the
        IFCA paper); with it, on the next batch of the shuffled shard, reshuffled when it is used up.
    epochs
        Number of passes over the shard, in batches of `batch_size`; given instead of `steps`.
    batch_size
        Examples per step; the last batch of a pass may be smaller.
    decay
        Factor on the step size per round: round t uses step size * decay**t.
    clip
        Largest norm of a gradient; longer ones are scaled down.
    proximal
        mu of a term mu/2 * ||w - w0||^2 that keeps the model near the one received (FedProx).
    """

    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    decay: float = 1.0
    clip: float | None = None
    proximal: float = 0.0
    augments: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.steps is None) == (self.epochs is None):
            raise SettingError("a local update needs either steps or epochs, and not both.")
        if self.epochs is not None and self.batch_size is None:
            raise SettingError("epochs needs a batch_size; for steps on the whole shard give steps instead.")
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and (value < 1 or int(value) != value):
                raise SettingError(f"{name} must be a whole number from 1 up, not {value}.")
        if self.clip is not None and self.clip <= 0:
            raise SettingError(f"clip must be positive, not {self.clip}.")
        if self.proximal < 0:
            raise SettingError(f"proximal must not be negative, not {self.proximal}.")
        if isinstance(self.decay, int | float) and not 0 < self.decay <= 1:
            raise SettingError(f"decay must be above 0 and at most 1, not {self.decay}.")

    @abstractmethod
    def optimiser(self) -> optax.GradientTransformation:
        """The Optax optimiser of one round."""

    def run(
        self, objective: Objective, start: PyTree, shard: Shard, key: Key[Array, ""], round_: Int[Array, ""]
    ) -> PyTree:
        optimiser = self.optimiser()
        if self.clip is not None:
            optimiser = optax.chain(optax.clip_by_global_norm(self.clip), optimiser)
        scale = jnp.power(jnp.asarray(self.decay, jnp.float32), round_)

        def near_start(model: PyTree, x: Array, y: Array, mask: Array) -> Float[Array, ""]:
            loss = objective.mean(model, x, y, mask)
            return loss + Pull(start, self.proximal)(model) if self.proximal else loss

        def step(carry: tuple[PyTree, Any], s: Int[Array, ""]) -> tuple[tuple[PyTree, Any], None]:
            model, state = carry
            x, y, mask, active = self._batch(shard, key, s)
            gradient = jax.grad(near_start)(model, objective.shown(x, key, s), y, mask)
            updates, new_state = optimiser.update(gradient, state, model)
            new = optax.apply_updates(model, optax.tree.scale(scale, updates)), new_state
            if self.epochs is None:
                return new, None
            # a smaller client of the same bucket has finished its epochs: it waits, unchanged
            return jax.tree.map(lambda a, b: jnp.where(active, a, b), new, carry), None

        capacity = shard.x.shape[0]
        total = self.steps or (self.epochs or 0) * _batches(capacity, self.batch_size or capacity)
        (model, _), _ = jax.lax.scan(step, (start, optimiser.init(start)), jnp.arange(total))
        return model

    def gradient(self, objective: Objective, model: PyTree, shard: Shard, key: Key[Array, ""]) -> PyTree:
        first = jnp.asarray(0)
        x, y, mask, _ = self._batch(shard, key, first)
        return jax.grad(objective.mean)(model, objective.shown(x, key, first), y, mask)

    def _batch(
        self, shard: Shard, key: Key[Array, ""], s: Int[Array, ""]
    ) -> tuple[Array, Array, Array, Array]:
        """Features, targets and mask of step `s`, and whether the client takes that step at all."""
        if self.batch_size is None:
            return shard.x, shard.y, shard.mask, jnp.asarray(True)
        capacity = shard.x.shape[0]
        width = min(self.batch_size, capacity)
        per_epoch = _batches(shard.size, self.batch_size)
        epoch, part = s // per_epoch, s % per_epoch
        # the order of the real examples must not depend on how much padding follows them:
        # example i draws its own lot, and padding draws the last place
        epoch_key = jax.random.fold_in(key, epoch)
        lots = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(epoch_key, i)))(jnp.arange(capacity))
        order = jnp.lexsort((lots, ~shard.mask))
        place = part * width + jnp.arange(width)
        rows = order[jnp.minimum(place, capacity - 1)]
        active = jnp.asarray(True) if self.epochs is None else epoch < self.epochs
        return shard.x[rows], shard.y[rows], place < shard.size, active


def _batches(examples: Any, batch_size: int) -> Any:
    return (examples + batch_size - 1) // batch_size


def register(rule: type[Rule]) -> type[Rule]:
    """Make a rule a pytree whose `lr` and `decay` are leaves, so that step sizes can be swept at once."""
    names = [f.name for f in fields(rule)]
    leaves = [name for name in names if name in ("lr", "decay")]
    static = [name for name in names if name not in leaves]

    def flatten(of: Rule) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(of, name) for name in leaves], tuple(getattr(of, name) for name in static)

    def unflatten(settings: tuple[Any, ...], values: Iterable[Any]) -> Rule:
        # not through __init__, whose checks are for settings: JAX puts other things in the leaves' place
        new = object.__new__(rule)
        for name, value in [*zip(leaves, values, strict=True), *zip(static, settings, strict=True)]:
            object.__setattr__(new, name, value)
        return new

    jax.tree_util.register_pytree_node(rule, flatten, unflatten)
    return rule


@register
@dataclass(frozen=True)
class SGD(Steps):
    """(Stochastic) gradient descent with optional momentum and weight decay.

    Parameters
    ----------
    lr, momentum, nesterov, weight_decay
        As in PyTorch.
    decayed
        What has weight decay: names of layers or arrays, such as `("layers.2", "layers.3.weight")`; all of
        the model when None.
    """

    lr: float = 0.1
    momentum: float = field(default=0.0, kw_only=True)
    nesterov: bool = field(default=False, kw_only=True)
    weight_decay: float = field(default=0.0, kw_only=True)
    decayed: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.lr, int | float) and not 0 < self.lr < float("inf"):
            raise SettingError(f"lr must be a positive number, not {self.lr}.")
        if not 0 <= self.momentum < 1:
            raise SettingError(f"momentum must be at least 0 and below 1, not {self.momentum}.")
        if self.nesterov and not self.momentum:
            raise SettingError("nesterov needs a momentum above 0.")
        if self.weight_decay < 0:
            raise SettingError(f"weight_decay must not be negative, not {self.weight_decay}.")
        if self.decayed is not None:
            if not self.decayed:
                raise SettingError(
                    "decayed must hold names of layers or arrays, such as ('layers.2',), not "
                    f"{self.decayed!r}."
                )
            if not self.weight_decay:
                raise SettingError("decayed needs a weight_decay above 0.")

    def check_model(self, model: PyTree) -> None:
        names = stacked.named(model)
        for chosen in self.decayed or ():
            if not any(stacked.among(name, [chosen]) for name in names):
                raise SettingError(
                    f"decayed names {chosen!r}, and the model has no such layer or array: it has "
                    f"{', '.join(names)}."
                )

    def linear_steps(self) -> int | None:
        alike = self.batch_size is None and self.clip is None and self.decayed is None
        return self.steps if alike else None

    def optimiser(self) -> optax.GradientTransformation:
        sgd = optax.sgd(self.lr, momentum=self.momentum or None, nesterov=self.nesterov)
        if not self.weight_decay:
            return sgd
        where = None if self.decayed is None else self._is_decayed
        return optax.chain(optax.add_decayed_weights(self.weight_decay, where), sgd)

    def _is_decayed(self, model: PyTree) -> PyTree:
        """Whether each array of a model, or of a part of one, has weight decay."""
        chosen = self.decayed or ()
        return jax.tree_util.tree_map_with_path(
            lambda path, _: stacked.among(stacked.name_of(path), chosen), model
        )


@register
@dataclass(frozen=True)
class Optax(Steps):
    """Any Optax optimiser, such as `Optax(optax.adam(1e-3), epochs=1, batch_size=50)`.

    Its state starts afresh in every round, as a client that is asked now and then would have it.
    """

    rule: optax.GradientTransformation

    def optimiser(self) -> optax.GradientTransformation:
        return self.rule
