"""The tasks of `coterie.learn.tasks`, as a PyTorch client carries them out.

Each gives the tree of what travels, as `wire.reply_tree` does for a JAX client: a `report`, and a `value`, a
`cluster` and a `weight` where the task has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.torch import modules
from coterie.torch.examples import Examples
from coterie.torch.learner import TorchLearner
from coterie.torch.seeds import seed_of

Tree = dict[str, Any]
Task = Callable[[TorchLearner, Any, Any, Examples, int], Tree]


def choose_and_train(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    measured = learner.measure(models, examples, seed)
    cluster = lowest(measured.losses)
    chosen = {name: tensor[cluster] for name, tensor in models.items()}
    model = learner.train(chosen, examples, seed, int(broadcast["round"]))
    tree = {
        "report": {"loss": np.float32(measured.losses[cluster])},
        "value": modules.arrays(model),
        "cluster": np.int32(cluster),
    }
    return tree | ({"weight": np.float32(measured.examples)} if "by_examples" in broadcast else {})


def choose_and_gradient(
    learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int
) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    measured = learner.measure(models, examples, seed)
    cluster = lowest(measured.losses)
    chosen = {name: tensor[cluster] for name, tensor in models.items()}
    tree = {
        "report": {"loss": np.float32(measured.losses[cluster])},
        "value": modules.arrays(learner.gradient(chosen, examples, seed)),
        "cluster": np.int32(cluster),
    }
    return tree | ({"weight": np.float32(measured.examples)} if "by_examples" in broadcast else {})


def train(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    model = modules.fitting(learner.module, each["model"])
    losses = []
    for number, takes_part in zip(broadcast["rounds"].tolist(), each["takes_part"].tolist(), strict=True):
        alone = {name: tensor[None] for name, tensor in model.items()}
        losses.append(learner.measure(alone, examples, seed).losses[0])
        if takes_part:
            model = learner.train(model, examples, seed_of(seed, number), number)
    return {"report": {"loss": np.array(losses, np.float32)}, "value": modules.arrays(model)}


def losses(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    return {"report": {"losses": learner.measure(models, examples, seed).losses.astype(np.float32)}}


def evaluate(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    own = {name: tensor[int(each)][None] for name, tensor in models.items()}
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


_TASKS = (choose_and_train, choose_and_gradient, train, losses, evaluate)
TASKS: dict[str, Task] = {task.__name__: task for task in _TASKS}
