"""What a PyTorch client knows how to do: `coterie.learn.learner` over a module and a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.shards import Spec
from coterie.errors import SettingError
from coterie.learn.local import SGD, Pull
from coterie.torch import losses, modules
from coterie.torch.examples import Examples
from coterie.torch.modules import Weights
from coterie.torch.seeds import seeded

Optimiser = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]


class Measured(NamedTuple):
    """Models on a shard: mean loss and accuracy of each, and the number of examples."""

    losses: np.ndarray  # (k,)
    accuracy: np.ndarray  # (k,), NaN where y is not a label
    nearest: (
        np.ndarray
    )  # (k,), for how many examples each has the lowest loss: the first of them, never a NaN
    examples: int


class TorchLearner:
    """A module, a loss, and a local update rule: see `TorchClient`.

    It works on a copy of the module. What does not travel of its state (a counter, a mask) is as it was at
    first whenever weights are put in, so that an answer depends on what was asked alone.
    """

    def __init__(
        self, module: nn.Module, loss: str | losses.Loss, local: SGD, optimiser: Optimiser | None
    ) -> None:
        _check(module, local, optimiser)
        self.module = copy.deepcopy(module)
        self.local = local
        self._loss = losses.named(loss)
        self._optimiser = optimiser or self._sgd
        self._at_first: dict[str, Tensor] | None = None

    def prepare(self, spec: Spec) -> None:
        """Get ready for data of that shape."""
        if self._at_first is None:
            with seeded(0):
                modules.materialise(self.module, spec.example())
            travelling = {id(tensor) for tensor in modules.weights(self.module).values()}
            buffers = dict(self.module.named_buffers())
            self._at_first = {name: b.clone() for name, b in buffers.items() if id(b) not in travelling}

    def measure(self, models: Weights, examples: Examples, seed: int) -> Measured:
        """Loss and accuracy of each of k stacked models, on the same batches, in eval mode."""
        k = len(next(iter(models.values())))
        total, right, nearest, size = np.zeros(k), np.zeros(k), np.zeros(k, int), 0
        labels = self._loss in losses.CLASSIFYING
        with seeded(seed, examples.generators), torch.no_grad():
            self.module.eval()
            # models in the inner loop: to read the examples may be the slow part
            for batch in examples.every():
                x, y = (modules.converted(self.module, part) for part in batch)
                each = np.empty((k, len(x)))
                for j in range(k):
                    self._put({name: tensor[j] for name, tensor in models.items()})
                    outputs = modules.apply(self.module, x)
                    loss = losses.per_example(self._loss, outputs, y)
                    total[j] += float(loss.sum())
                    right[j] += float(losses.correct(outputs, y).sum()) if labels else np.nan
                    each[j] = loss.float().cpu().numpy()
                each[np.isnan(each)] = np.inf
                nearest += np.bincount(each.argmin(axis=0), minlength=k)
                size += len(x)
        return Measured(total / size, right / size, nearest, size)

    def train(
        self,
        model: Weights,
        examples: Examples,
        seed: int,
        round_: int,
        label: float = 1.0,
        frozen: Collection[str] = (),
        pull: Pull | None = None,
    ) -> Weights:
        """The local update rule, in train mode; the loss counts `label` times, `frozen` weights stay.

        With `pull`, weights are drawn towards others as well.
        """
        with seeded(seed, examples.generators):
            self._put(model)
            self.module.train()
            fixed = {id(tensor) for name, tensor in modules.weights(self.module).items() if name in frozen}
            trained = [p for p in self.module.parameters() if p.requires_grad and id(p) not in fixed]
            pulls = [([p.detach().clone() for p in trained], self.local.proximal)]
            if pull is not None:
                name_of = {id(tensor): name for name, tensor in modules.weights(self.module).items()}
                pulls.append(([pull.anchor[name_of[id(p)]] for p in trained], float(pull.strength)))
            optimiser = self._optimiser(trained, float(self.local.lr) * float(self.local.decay) ** round_)
            for batch in examples.training(self.local):
                x, y = (modules.converted(self.module, part) for part in batch)
                self.module.zero_grad()
                loss = losses.per_example(self._loss, modules.apply(self.module, x), y).mean()
                torch.autograd.backward(label * loss)
                with torch.no_grad():
                    self._adjust(trained, pulls)
                optimiser.step()
            return {name: tensor.detach().clone() for name, tensor in modules.weights(self.module).items()}

    def gradient(self, model: Weights, examples: Examples, seed: int) -> Weights:
        """The gradient of the first batch, or of all examples where there is no batch size, in train mode."""
        size = 0
        with seeded(seed, examples.generators):
            self._put(model)
            self.module.train()
            self.module.zero_grad()
            for batch in examples.every() if self.local.batch_size is None else examples.first():
                x, y = (modules.converted(self.module, part) for part in batch)
                torch.autograd.backward(
                    losses.per_example(self._loss, modules.apply(self.module, x), y).sum()
                )
                size += len(x)
            own = modules.weights(self.module)
            # statistics and frozen weights are moved by no gradient
            found = {name: tensor.grad for name, tensor in own.items()}
            return {
                name: torch.zeros_like(own[name]) if gradient is None else gradient / size
                for name, gradient in found.items()
            }

    def _adjust(self, trained: list[nn.Parameter], pulls: list[tuple[list[Tensor], float]]) -> None:
        """The terms that draw to the start and elsewhere, then the clipping: as before JAX's optimiser."""
        for anchor, strength in pulls:
            for p, a in zip(trained, anchor, strict=True):
                if strength and p.grad is not None:
                    p.grad += strength * (p - a)
        gradients = [p.grad for p in trained if p.grad is not None]
        if self.local.clip is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
            if norm > self.local.clip:
                for gradient in gradients:
                    gradient *= self.local.clip / norm

    def _sgd(self, trained: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        of = self.local
        return torch.optim.SGD(
            trained, lr, momentum=of.momentum, nesterov=of.nesterov, weight_decay=of.weight_decay
        )

    def _put(self, model: Weights) -> None:
        modules.put(self.module, model)
        with torch.no_grad():
            for name, before in (self._at_first or {}).items():
                self.module.get_buffer(name).copy_(before)


def _check(module: Any, local: Any, optimiser: Optimiser | None) -> None:
    if not isinstance(module, nn.Module):
        what = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
        raise SettingError(f"module must be a torch.nn.Module, such as Net(), not {what}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise SettingError(f"the module {type(module).__name__} has no parameters that require a gradient.")
    if not isinstance(local, SGD):
        raise SettingError(
            f"local must be SGD(...) for a PyTorch client, not {type(local).__name__}: another optimiser is "
            "given as optimiser=torch.optim.Adam, say."
        )
    if local.decayed is not None:
        raise SettingError(
            "decayed is for models in JAX: give a PyTorch client optimiser=..., with groups of parameters."
        )
    if optimiser is not None and (local.momentum or local.weight_decay):
        raise SettingError("momentum and weight_decay are for SGD: give them to the optimiser itself.")
