"""The losses of `coterie.learn.losses`, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import LearnerError
from coterie.learn import losses
from coterie.torch.modules import first_line

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """-log softmax(outputs)[y], averaged over the positions of a sequence where y has any."""
    if y.is_floating_point() or y.dtype == torch.bool:
        raise LearnerError(
            f"cross_entropy needs integer class labels but the targets are {y.dtype}: use loss='squared' for "
            "real numbers, or y.long() for labels."
        )
    if outputs.shape[:-1] != y.shape:
        raise LearnerError(
            f"the module gives outputs of shape {tuple(outputs.shape)} for labels of shape "
            f"{tuple(y.shape)}: cross_entropy needs one output per class, in the last axis."
        )
    logits, labels = outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1).long()
    values = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return values.reshape(len(y), -1).mean(1)


def smoothed_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy where nine tenths of a label are y's class, and one is any class."""
    return cross_entropy(outputs, y, losses.SMOOTHING)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """(y - f)^2, summed over the coordinates of y where it has any."""
    if outputs.shape != y.shape:
        raise LearnerError(
            f"the module gives outputs of shape {tuple(outputs.shape)} for targets of shape "
            f"{tuple(y.shape)}: let it return them in that shape, as outputs.squeeze(-1) does for numbers."
        )
    return (y - outputs).square().reshape(len(y), -1).sum(1)


def half_squared(outputs: Tensor, y: Tensor) -> Tensor:
    """(y - f)^2 / 2."""
    return squared(outputs, y) / 2


NAMED: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "smoothed_cross_entropy": smoothed_cross_entropy,
    "squared": squared,
    "half_squared": half_squared,
}

CLASSIFYING: tuple[Loss, ...] = (cross_entropy, smoothed_cross_entropy)


def named(loss: str | Loss) -> Loss:
    """The loss of that name; a function (outputs, y) -> one number per example is returned as it is."""
    if not isinstance(loss, str):
        return loss
    losses.named(loss)  # says which there are
    return NAMED[loss]


def per_example(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """The loss of every example of a batch."""
    try:
        values = loss(outputs, y)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise LearnerError(
            f"the loss fails on outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(y.shape)}: {first_line(error)}."
        ) from error
    if values.shape != y.shape[:1]:
        raise LearnerError(
            f"the loss must give one number per example, but for {len(y)} examples it gives shape "
            f"{tuple(values.shape)}: PyTorch's losses give single numbers with reduction='none'."
        )
    return values


def correct(outputs: Tensor, y: Tensor) -> Tensor:
    """1 where the largest output is the label's (a fraction where y is a sequence)."""
    return (outputs.argmax(-1) == y).float().reshape(len(y), -1).mean(1)
