"""A client's examples in batches: a `DataLoader`, read with care."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from coterie.data.shards import Shards, Spec
from coterie.errors import DataError, SettingError
from coterie.learn.local import Steps
from coterie.torch.seeds import seeded

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Examples:
    """What a client trains on, or what it holds out.

    `spec` is the shape that every batch must have; None while nobody has said.
    """

    client: str
    split: str
    loader: Any  # a DataLoader; its type parameter is of no use here
    spec: Spec | None = None

    @classmethod
    def of(cls, client: str, split: str, source: Any, batch_size: int | None) -> Examples:
        """The examples of a loader, or of a data set in shuffled batches (or whole, without a size)."""
        if not isinstance(source, DataLoader):
            source = _loader(client, split, source, batch_size)
        return cls(client, split, source)

    def every(self) -> Iterator[Batch]:
        """Every example once, also those that `drop_last` leaves out of training."""
        return self._checked(_whole(self.loader))

    def training(self, local: Steps) -> Iterator[Batch]:
        """The batches of a local update: whole passes, or as many steps, going round and round the loader."""
        passes = count() if local.epochs is None else range(local.epochs)
        return islice(chain.from_iterable(self._checked(self.loader) for _ in passes), local.steps)

    def first(self) -> Iterator[Batch]:
        """The first batch alone."""
        return islice(self._checked(self.loader), 1)

    def check(self, local: Steps) -> None:
        """See that a loader gives what the local update counts on."""
        size = self.loader.batch_size
        if local.batch_size is not None and size not in (None, local.batch_size):
            raise SettingError(
                f"the {self.split} loader of client {self.client!r} makes batches of {size} but local has "
                f"batch_size={local.batch_size}: the loader decides, so give the same number."
            )
        batches = self.loader.batch_sampler
        ordered = type(batches) is BatchSampler and isinstance(batches.sampler, SequentialSampler)
        if ordered and local.steps is not None and local.steps < len(self.loader):
            raise SettingError(
                f"the {self.split} loader of client {self.client!r} does not shuffle, so that every round "
                f"would be on the first {local.steps} of its {len(self.loader)} batches: use shuffle=True."
            )

    def of_shape(self, spec: Spec) -> Examples:
        """These examples, checked to have that shape wherever they are used."""
        return replace(self, spec=spec)

    def look(self, classes: int | None) -> Spec:
        """The shape of an example; all are looked at for the largest label, unless `classes` is given."""
        found: Spec | None = None
        with seeded(0, self.generators):
            for x, y in self._checked(_whole(self.loader)):
                spec = Shards.from_lists([_array(x)], [_array(y)], [self.client], classes=classes).spec
                found = found or spec
                if spec.kind != found.kind:
                    raise DataError(f"client {self.client!r} has examples of {found} and of {spec}.")
                if classes is not None or spec.classes is None:
                    break
                found = replace(found, classes=max(spec.classes, found.classes or 0))
        assert found is not None
        return found

    @property
    def generators(self) -> list[torch.Generator]:
        """The random generators that the loader was given, beside PyTorch's own."""
        batches = self.loader.batch_sampler
        holders = self.loader, self.loader.sampler, batches, getattr(batches, "sampler", None)
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    def _checked(self, loader: Any) -> Iterator[Batch]:
        nothing = True
        for batch in loader:
            nothing = False
            yield self._batch(batch)
        if nothing:
            hint = ": with drop_last it needs at least one full batch" if loader.drop_last else ""
            raise DataError(f"the {self.split} loader of client {self.client!r} gives no examples{hint}.")

    def _batch(self, batch: Any) -> Batch:
        pair = isinstance(batch, list | tuple) and len(batch) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in batch):
            raise DataError(
                f"the {self.split} loader of client {self.client!r} gives {_described(batch)}: a batch must "
                "be (x, y), two tensors, which a collate_fn can see to."
            )
        x, y = batch
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"the {self.split} loader of client {self.client!r} gives features of shape {tuple(x.shape)} "
                f"with targets of shape {tuple(y.shape)}: they need one row per example each."
            )
        if self.spec is not None:
            self._see_that_it_fits(x, y, self.spec)
        return x, y

    def _see_that_it_fits(self, x: torch.Tensor, y: torch.Tensor, spec: Spec) -> None:
        labels = np.dtype(_dtype(y)).kind in "iu"  # as in `Shards`
        lowest, highest = (int(y.min()), int(y.max())) if labels else (0, -1)
        classes = highest + 1 if labels else None
        mine = Spec(tuple(x.shape[1:]), _dtype(x), tuple(y.shape[1:]), _dtype(y), classes)
        if mine.kind != spec.kind:
            raise DataError(f"client {self.client!r} has examples of {mine}, the federation {spec}.")
        if lowest < 0 or not mine.fits(spec):
            raise DataError(
                f"client {self.client!r}: label {lowest if lowest < 0 else highest} is outside the "
                f"classes 0 to {(spec.classes or 0) - 1}."
            )


def _loader(client: str, split: str, source: Any, batch_size: int | None) -> Any:
    sized = isinstance(source, Dataset) and not isinstance(source, IterableDataset)
    if not sized:
        raise SettingError(
            f"the {split} examples of client {client!r} must be a DataLoader or a Dataset with a length, not "
            f"{type(source).__name__}."
        )
    size = len(source)
    if size == 0:
        raise DataError(f"client {client!r} is empty: its {split} data set has no examples.")
    return DataLoader(source, batch_size or size, shuffle=split == "train" and batch_size is not None)


def _whole(loader: Any) -> Any:
    """The loader without `drop_last`."""
    if not loader.drop_last or isinstance(loader.dataset, IterableDataset):
        return loader
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(loader.sampler, loader.batch_size, drop_last=False),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
    )


def _array(values: torch.Tensor) -> np.ndarray:
    values = values.detach().cpu()
    array: np.ndarray = (values.float() if values.is_floating_point() else values).numpy()
    return array


def _dtype(values: torch.Tensor) -> str:
    """The name of the dtype as in `Shards`, which keep numbers in at most 32 bits."""
    if values.is_floating_point():
        return "float32"
    name = str(values.dtype).removeprefix("torch.")
    return "int32" if name in ("int64", "uint64") else name


def _described(batch: Any) -> str:
    if isinstance(batch, list | tuple):
        return f"{type(batch).__name__} of {', '.join(type(part).__name__ for part in batch)}"
    return type(batch).__name__
