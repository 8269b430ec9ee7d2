"""The tasks of `coterie.learn.tasks` and `coterie.learn.soft`, as a PyTorch client carries them out.

Each gives the tree of what travels, as `wire.reply_tree` does for a JAX client: a `report`, and a `value`, a
`cluster` and a `weight` where the task has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from coterie.errors import LearnerError
from coterie.learn.local import Pull
from coterie.torch import modules
from coterie.torch.examples import Examples
from coterie.torch.learner import TorchLearner
from coterie.torch.modules import Weights
from coterie.torch.seeds import seed_of

Tree = dict[str, Any]
Task = Callable[[TorchLearner, Any, Any, Examples, int], Tree]


def choose_and_train(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    chosen = _choose(learner, broadcast, each, examples, seed)
    model = learner.train(chosen.model, examples, seed, int(broadcast["round"]), frozen=chosen.frozen)
    return chosen.reply(model, broadcast)


def choose_and_gradient(
    learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int
) -> Tree:
    chosen = _choose(learner, broadcast, each, examples, seed)
    return chosen.reply(learner.gradient(chosen.model, examples, seed), broadcast)


class _Chosen(NamedTuple):
    """The model that a client takes, and what of it is not trained."""

    cluster: int
    loss: float
    model: Weights
    frozen: frozenset[str]
    examples: int

    def reply(self, value: Weights, broadcast: Any) -> Tree:
        travelling = {name: tensor for name, tensor in value.items() if name not in self.frozen}
        tree = {
            "report": {"loss": np.float32(self.loss)},
            "value": modules.arrays(travelling),
            "cluster": np.int32(self.cluster),
        }
        return tree | _weight(broadcast, self.examples)


def _choose(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> _Chosen:
    if "slices" in broadcast:
        raise LearnerError("a PyTorch client cannot be asked for slices of its examples (resample=True).")
    own, shared = broadcast["models"], broadcast.get("shared", {})
    k = len(next(iter(own.values())))
    whole = {**own, **{name: np.repeat(array[None], k, axis=0) for name, array in shared.items()}}
    models = modules.fitting(learner.module, whole, stacked=True)
    measured = learner.measure(models, examples, seed)
    cluster = lowest(measured.losses)
    if each is not None and int(each["only"]) >= 0:
        cluster = int(each["only"])
    return _Chosen(
        cluster=cluster,
        loss=measured.losses[cluster],
        model={name: tensor[cluster] for name, tensor in models.items()},
        frozen=frozenset(shared if "frozen" in broadcast else ()),
        examples=measured.examples,
    )


def weigh_and_train(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    measured = learner.measure(models, examples, seed)
    known = np.where(np.isnan(measured.losses), np.inf, measured.losses)
    labels = np.exp(-(known - known.min()) / float(broadcast["temperature"]))
    labels /= labels.sum()
    trained = [
        modules.arrays(
            learner.train(
                {name: tensor[j] for name, tensor in models.items()},
                examples,
                seed,
                int(broadcast["round"]),
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
    return tree | _weight(broadcast, measured.examples)


def _weight(broadcast: Any, examples: int) -> Tree:
    return {"weight": np.float32(examples)} if "by_examples" in broadcast else {}


def train(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    model = modules.fitting(learner.module, each["model"])
    losses = []
    for number, takes_part in zip(broadcast["rounds"].tolist(), each["takes_part"].tolist(), strict=True):
        alone = {name: tensor[None] for name, tensor in model.items()}
        losses.append(learner.measure(alone, examples, seed).losses[0])
        if takes_part:
            model = learner.train(model, examples, seed_of(seed, number), number)
    return {"report": {"loss": np.array(losses, np.float32)}, "value": modules.arrays(model)}


def count_nearest(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    measured = learner.measure(models, examples, seed)
    report = {"counts": measured.nearest.astype(np.int32), "losses": measured.losses.astype(np.float32)}
    return {"report": report}


def train_between(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    model = modules.fitting(learner.module, each["model"])
    pulls, strength = each["pulls"], float(each["pulls"].sum())
    share = pulls / (strength if strength > 0 else 1.0)
    anchor = {
        name: sum(float(part) * tensor[s] for s, part in enumerate(share)) for name, tensor in models.items()
    }
    alone = {name: tensor[None] for name, tensor in model.items()}
    loss = learner.measure(alone, examples, seed).losses[0]
    pull = Pull(anchor, strength)
    trained = learner.train(model, examples, seed, int(broadcast["round"]), pull=pull)
    return {"report": {"loss": np.float32(loss)}, "value": modules.arrays(trained)}


def size(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    return {"report": {"examples": np.int32(sum(len(x) for x, _ in examples.every()))}}


def losses(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    return {"report": {"losses": learner.measure(models, examples, seed).losses.astype(np.float32)}}


def evaluate(learner: TorchLearner, broadcast: Any, each: Any, examples: Examples, seed: int) -> Tree:
    models = modules.fitting(learner.module, broadcast["models"], stacked=True)
    own = {name: tensor[int(each["only"])][None] for name, tensor in models.items()}
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


_TASKS = (
    choose_and_train,
    choose_and_gradient,
    weigh_and_train,
    train,
    losses,
    size,
    evaluate,
    count_nearest,
    train_between,
)
TASKS: dict[str, Task] = {task.__name__: task for task in _TASKS}
