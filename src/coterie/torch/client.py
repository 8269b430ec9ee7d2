"""A client of a Flower federation that trains a PyTorch module."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from coterie.data.shards import Spec
from coterie.errors import ClientError, DataError
from coterie.flower import wire
from coterie.learn.catalogue import TASKS as KNOWN
from coterie.learn.local import SGD
from coterie.torch import modules
from coterie.torch.examples import Examples
from coterie.torch.learner import Optimiser, TorchLearner
from coterie.torch.losses import Loss
from coterie.torch.seeds import seed_of
from coterie.torch.tasks import TASKS


class TorchClient:
    """A client whose model is a `torch.nn.Module` and whose data is a `DataLoader`.

    It carries out the tasks of `coterie.learn.catalogue`, but those of moment descent, so that it can be
    asked by the same servers, and side by side with JAX clients. It computes nothing in JAX: a GPU is all
    PyTorch's.

    Parameters
    ----------
    id
        The client's stable name.
    module
        The architecture, on the device where it shall run. Its weights are overwritten by what is sent: the
        floating-point entries of its state dict, parameters and running statistics alike, whose names and
        shapes must be those of the server's model. A copy is used; the module itself is left alone.
    train, test
        `DataLoader`s of batches (x, y), or data sets, of which loaders are made: what it trains on, and what
        it holds out, if anything. A loader decides on batches and shuffling; a data set is shuffled in
        batches of `local.batch_size`, or used whole where there is none. PyTorch's random numbers (shuffling,
        dropout) follow from what is asked and the client's id; those of other libraries are not seen to.
    loss
        `"cross_entropy"`, `"smoothed_cross_entropy"`, `"squared"`, `"half_squared"`, or a function
        (outputs, y) -> one per example.
    local
        How it trains, as in a simulation: `steps` are batches drawn from the loader, round and round it, and
        `epochs` are passes over it. The settings of the server's learner are not sent.
    optimiser
        Another optimiser than SGD, made afresh for every round from parameters and step size, such as
        `torch.optim.Adam` or `lambda parameters, lr: AdamW(parameters, lr, weight_decay=0.01)`. All but
        momentum and weight decay is still as `local` says.
    classes
        Number of classes. When not given, all examples are read once to find the largest label.

    The module is in train mode while it trains and in eval mode while losses are measured.
    """

    def __init__(
        self,
        id: str,
        module: nn.Module,
        train: Any,
        *,
        test: Any = None,
        loss: str | Loss = "cross_entropy",
        local: SGD,
        optimiser: Optimiser | None = None,
        classes: int | None = None,
    ) -> None:
        self._id, self._classes = str(id), classes
        self._learner = TorchLearner(module, loss, local, optimiser)
        given = {"train": train} | ({} if test is None else {"test": test})
        self._examples = {
            split: Examples.of(self._id, split, source, local.batch_size) for split, source in given.items()
        }
        self._examples["train"].check(local)
        self._spec: Spec | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> Spec:
        if self._spec is None:
            self._spec = self._examples["train"].look(self._classes)
        return self._spec

    def needs(self, ask: wire.Request) -> tuple[str, ...]:
        return ()

    def carry_out(self, ask: wire.Request, kept: wire.Arrays | None = None) -> wire.Arrays:
        if ask.task not in TASKS:
            raise ClientError(f"client {self.id!r} does not know the task {ask.task!r}.")
        if ask.split not in self._examples:
            raise DataError(f"client {self.id!r} has no {ask.split} examples.")
        self._learner.prepare(ask.spec)
        if ask.starts is None:
            return self._once(ask, ask.everybody, ask.each, ask.only, None)
        replies = []
        for r in range(ask.starts):
            everybody, each = ({name: a[r] for name, a in of.items()} for of in (ask.everybody, ask.each))
            replies.append(self._once(ask, everybody, each, None if ask.only is None else ask.only[r], r))
        return {name: np.stack([reply[name] for reply in replies]) for name in replies[0]}

    def _once(
        self, ask: wire.Request, everybody: wire.Arrays, each: wire.Arrays, only: Any, start: int | None
    ) -> wire.Arrays:
        """The reply to an ask, or to one start of it."""
        examples = self._examples[ask.split].of_shape(ask.spec)
        seed = seed_of(ask.key.tolist(), self.id, start)
        task = ask.kind(KNOWN).with_content(wire.nested(everybody) or {}, wire.nested(each) or {})
        tree = TASKS[ask.task](self._learner, task, only, examples, seed)
        return wire.flatten(tree, modules.weights(self._learner.module))
