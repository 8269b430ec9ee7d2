"""The tasks of `coterie.learn.tasks` and `coterie.learn.soft`, as a PyTorch client carries them out.

A task holds what was sent as NumPy arrays, its models as arrays by name.

Each gives the tree of what travels, as `wire.reply_tree` does for a JAX client: a `report`, and a `value`, a
`cluster` and a `weight` where the task has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import LearnerError
from coterie.learn import tasks
from coterie.learn.local import Pull
from coterie.torch import modules
from coterie.torch.examples import Examples
from coterie.torch.learner import TorchLearner
from coterie.torch.modules import Weights
from coterie.torch.seeds import seed_of

Tree = dict[str, Any]
CarryOut = Callable[[TorchLearner, Any, Any, Examples, int], Tree]


def choose_and_train(
    learner: TorchLearner, task: tasks.ChooseAndTrain, only: Any, examples: Examples, seed: int
) -> Tree:
    chosen = _choose(learner, task, only, examples, seed)
    if task.send == "gradients":
        return chosen.reply(learner.gradient(chosen.model, examples, seed), task)
    pull = None if task.proximal is None else Pull(chosen.model, float(task.proximal))
    model = learner.train(chosen.model, examples, seed, int(task.round), frozen=chosen.frozen, pull=pull)
    return chosen.reply(model, task)


class _Chosen(NamedTuple):
    """The model that a client takes, and what of it is not trained."""

    cluster: int
    loss: float
    model: Weights
    frozen: frozenset[str]
    examples: int

    def reply(self, value: Weights, task: tasks.ChooseAndTrain) -> Tree:
        travelling = {name: tensor for name, tensor in value.items() if name not in self.frozen}
        tree = {
            "report": {"loss": np.float32(self.loss)},
            "value": modules.arrays(travelling),
            "cluster": np.int32(self.cluster),
        }
        return tree | _weight(task.by_examples, self.examples)


def _choose(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> _Chosen:
    if task.find_on is not None or task.train_on is not None:
        raise LearnerError("a PyTorch client cannot be asked for parts of its examples (resample=True).")
    own, shared = task.models, task.shared or {}
    k = len(next(iter(own.values())))
    whole = {**own, **{name: np.repeat(array[None], k, axis=0) for name, array in shared.items()}}
    models = modules.fitting(learner.module, whole, stacked=True)
    measured = learner.measure(models, examples, seed)
    cluster = lowest(measured.losses)
    if only is not None and int(only) >= 0:
        cluster = int(only)
    return _Chosen(
        cluster=cluster,
        loss=measured.losses[cluster],
        model={name: tensor[cluster] for name, tensor in models.items()},
        frozen=frozenset(shared if task.frozen else ()),
        examples=measured.examples,
    )


def weigh_and_train(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, task.models, stacked=True)
    measured = learner.measure(models, examples, seed)
    known = np.where(np.isnan(measured.losses), np.inf, measured.losses)
    labels = np.exp(-(known - known.min()) / float(task.temperature))
    labels /= labels.sum()
    trained = [
        modules.arrays(
            learner.train(
                {name: tensor[j] for name, tensor in models.items()},
                examples,
                seed,
                int(task.round),
                label=float(label),
            )
        )
        for j, label in enumerate(labels)
    ]
    loss = np.sum(labels[labels > 0] * measured.losses[labels > 0])
    tree = {
        "report": {"loss": np.float32(loss), "labels": labels.astype(np.float32)},
        "value": {name: np.stack([model[name] for model in trained]) for name in trained[0]},
        "cluster": np.int32(lowest(measured.losses)),
    }
    return tree | _weight(task.by_examples, measured.examples)


def _weight(by_examples: bool, examples: int) -> Tree:
    return {"weight": np.float32(examples)} if by_examples else {}


def train_alone(
    learner: TorchLearner, task: tasks.TrainAlone, only: Any, examples: Examples, seed: int
) -> Tree:
    if task.part is not None:
        raise LearnerError("a PyTorch client cannot be asked for parts of its examples (resample=True).")
    model = modules.fitting(learner.module, task.start)
    takes_part = np.ones(task.rounds, bool) if task.takes_part is None else np.asarray(task.takes_part)
    losses = []
    for number, active in enumerate(takes_part.tolist()):
        alone = {name: tensor[None] for name, tensor in model.items()}
        losses.append(learner.measure(alone, examples, seed).losses[0])
        if active:
            model = learner.train(model, examples, seed_of(seed, number), number)
    return {"report": {"loss": np.array(losses, np.float32)}, "value": modules.arrays(model)}


def count_nearest(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, task.models, stacked=True)
    measured = learner.measure(models, examples, seed)
    report = {"counts": measured.nearest.astype(np.int32), "losses": measured.losses.astype(np.float32)}
    return {"report": report}


def train_between(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, task.models, stacked=True)
    model = modules.fitting(learner.module, task.model)
    pulls, strength = task.pulls, float(task.pulls.sum())
    share = pulls / (strength if strength > 0 else 1.0)
    anchor = {
        name: sum(float(part) * tensor[s] for s, part in enumerate(share)) for name, tensor in models.items()
    }
    alone = {name: tensor[None] for name, tensor in model.items()}
    loss = learner.measure(alone, examples, seed).losses[0]
    pull = Pull(anchor, strength)
    trained = learner.train(model, examples, seed, int(task.round), pull=pull)
    return {"report": {"loss": np.float32(loss)}, "value": modules.arrays(trained)}


def count_examples(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    return {"report": {"examples": np.int32(sum(len(x) for x, _ in examples.every()))}}


def measure_losses(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, task.models, stacked=True)
    if task.part is not None:
        raise LearnerError("a PyTorch client cannot be asked for parts of its examples (resample=True).")
    return {"report": {"losses": learner.measure(models, examples, seed).losses.astype(np.float32)}}


def evaluate(learner: TorchLearner, task: Any, only: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, task.models, stacked=True)
    own = {name: tensor[int(only)][None] for name, tensor in models.items()}
    measured = learner.measure(own, examples, seed)
    return {
        "report": {
            "loss": np.float32(measured.losses[0]),
            "accuracy": np.float32(measured.accuracy[0]),
            "examples": np.int32(measured.examples),
        }
    }


def lowest(losses: np.ndarray) -> int:
    """The model with the lowest loss; the first of them in a tie, never a NaN."""
    return int(np.argmin(np.where(np.isnan(losses), np.inf, losses)))


TASKS: dict[str, CarryOut] = {
    "ChooseAndTrain": choose_and_train,
    "WeighAndTrain": weigh_and_train,
    "TrainAlone": train_alone,
    "MeasureLosses": measure_losses,
    "CountExamples": count_examples,
    "Evaluate": evaluate,
    "CountNearest": count_nearest,
    "TrainBetween": train_between,
}
