"""A module as a client and a server need it: weights by name, and outputs for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import LearnerError

Weights = dict[str, Tensor]


def weights(module: nn.Module) -> Weights:
    """What travels, by name: the very tensors of the state dict that hold floating-point numbers.

    Parameters and running statistics, that is. Tied weights, which have several names, go by the first.
    """
    found: Weights = {}
    seen: set[int] = set()
    for name, entry in module.state_dict(keep_vars=True).items():
        if isinstance(entry, Tensor) and entry.is_floating_point() and id(entry) not in seen:
            seen.add(id(entry))
            found[name] = entry
    return found


def put(module: nn.Module, new: Mapping[str, Tensor]) -> None:
    """Overwrite the weights of a module."""
    with torch.no_grad():
        for name, tensor in weights(module).items():
            tensor.copy_(new[name])


def arrays(of: Weights) -> dict[str, np.ndarray]:
    """Weights as they travel: in 32 bits."""
    return {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in of.items()}


def fitting(module: nn.Module, sent: Any, stacked: bool = False) -> Weights:
    """The weights that were sent (of a stack of models, if so), if they are just what the module needs."""
    if not isinstance(sent, dict):
        raise LearnerError("the model that was sent is not arrays by name, which a PyTorch client needs.")
    own = weights(module)
    for name, tensor in own.items():
        if name not in sent:
            raise LearnerError(f"the model that was sent lacks {name!r}, which the client's module has.")
        shape, wanted = np.shape(sent[name])[1 if stacked else 0 :], tuple(tensor.shape)
        if shape != wanted:
            raise LearnerError(f"{name!r} was sent with shape {shape}; the client's module has {wanted}.")
    strange = [name for name in sent if name not in own]
    if strange:
        raise LearnerError(f"the model that was sent has {strange[0]!r}, which the client's module has not.")
    return {name: torch.tensor(sent[name]).to(tensor) for name, tensor in own.items()}


def converted(module: nn.Module, values: Tensor) -> Tensor:
    """Values where the module is, real numbers in its precision."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    return values.to(like) if values.is_floating_point() else values.to(like.device)


def apply(module: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a module for a batch, or one sentence on why there are none."""
    try:
        outputs = module(x)
    except (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # batch norm cannot be trained on one
        hint = " (drop_last=True leaves out a last batch of one)" if module.training and len(x) == 1 else ""
        raise LearnerError(
            f"the module {type(module).__name__} fails on features of shape {tuple(x.shape)} "
            f"({x.dtype}): {first_line(error)}{hint}."
        ) from error
    if not isinstance(outputs, Tensor):
        raise LearnerError(
            f"the module {type(module).__name__} gives a {type(outputs).__name__}: let it return its outputs "
            "alone, as one tensor."
        )
    return outputs


def materialise(module: nn.Module, blank: np.ndarray) -> None:
    """Have lazy layers find their shapes, given a batch of one blank example."""
    if any(map(nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
        module.eval()
        with torch.no_grad():
            apply(module, converted(module, torch.tensor(blank)))


def first_line(error: Exception) -> str:
    """The first line of what an error says, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
