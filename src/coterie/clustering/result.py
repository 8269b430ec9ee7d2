"""The result: who belongs together, one model per group, and how it came about."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from coterie import registry, storage
from coterie.clustering.confidence import Confidence
from coterie.clustering.history import History, from_line
from coterie.clustering.inputs import Inputs, check_noise, describing, draw_of
from coterie.data.preparation import Preparation
from coterie.data.shards import Shards, Spec, places
from coterie.errors import DataError, RunFolderError, SettingError
from coterie.federation.protocol import Answers, Federation, as_federation
from coterie.learn.learner import Learner
from coterie.learn.task import Task
from coterie.learn.tasks import Evaluate, MeasureLosses, lowest
from coterie.models import stacked

if TYPE_CHECKING:
    import pandas as pd

ChosenBy = Literal["train", "shard"]
TABLES = ("losses", "shares")  # saved beside the models
FILE, MODELS, ROUNDS = "clustering.json", "models.safetensors", "rounds.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """How well each client is served by the model of its cluster.

    Attributes
    ----------
    accuracy, loss
        Means over clients; accuracy is NaN for a regression.
    per_client
        One row per client: id, cluster, examples, loss, accuracy.
    per_cluster
        The same per cluster: clients, examples, and means over its clients.
    chosen_by
        Which split chose the clusters: `"train"`, the clustering itself, or `"shard"`, the lowest loss on the
        very examples that are evaluated.
    """

    accuracy: float
    loss: float
    per_client: pd.DataFrame
    per_cluster: pd.DataFrame
    chosen_by: ChosenBy

    def __repr__(self) -> str:
        return f"Evaluation(accuracy={self.accuracy:.4f}, loss={self.loss:.4f}, chosen_by={self.chosen_by!r})"


@dataclass(frozen=True)
class Clustering:
    """What an algorithm found.

    Attributes
    ----------
    ids, assignment
        The training clients and the cluster of each; -1 for one that never answered.
    models
        The cluster models: one pytree with a leading cluster axis.
    learner, spec
        What the models are applied with, and the shape of the data.
    history
        One record per round.
    losses
        Training loss of every client under every model, shape (clients, k), where it was computed.
    shares
        How much of each client belongs to each cluster, where the algorithm finds that out: `FedSoft`.
    personal
        A model of each client's own (a leading client axis), where the algorithm trains such: `FedSoft`.
    confidence
        How sure it is, where the algorithm finds that out: `Discover`.
    algorithm, seed
        The settings that led here.
    provenance
        On what it was computed, in which precision.
    inputs
        What the inputs of each group's clients look like, once they were asked: see `describe`.
    preparation
        What was done to the table that the clients came from, if they did.
    """

    ids: np.ndarray
    assignment: Int[np.ndarray, " clients"]
    models: PyTree
    learner: Learner
    spec: Spec
    history: History
    losses: Float[np.ndarray, "clients k"] | None = None
    shares: Float[np.ndarray, "clients k"] | None = None
    personal: PyTree = None
    confidence: Confidence | None = None
    algorithm: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)
    inputs: Inputs | None = None
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        # a result is used with other clients than those it was found with: not bound to their devices
        for name in ("models", "personal"):
            here = jax.tree.map(jnp.asarray, jax.device_get(getattr(self, name)))
            object.__setattr__(self, name, here)

    @property
    def k(self) -> int:
        """The number of clusters found: those that have clients. `models` may hold further, empty ones."""
        return int(np.count_nonzero(self.sizes))

    @property
    def sizes(self) -> Int[np.ndarray, " models"]:
        """Clients per cluster model."""
        return np.bincount(self.assignment[self.assignment >= 0], minlength=stacked.count(self.models))

    def assign(self, clients: Shards | Federation, labels: bool = True) -> Int[np.ndarray, " clients"]:
        """The cluster of each given client: the model of lowest loss on its shard, -1 if unanswered.

        Without `labels`, which are then not looked at and may be anything: the cluster whose clients' inputs
        its own are most like. It has to be known what those look like: see `describe`.
        """
        if labels:
            answers = self._ask(clients, MeasureLosses(self.models))
            return np.where(answers.answered, lowest(answers.report.losses), -1)
        if self.inputs is None:
            raise SettingError(
                "nobody has said yet what the inputs of these clusters look like: ask their clients with "
                "found = found.describe(data.train)."
            )
        answers = self._ask(clients, self.inputs.task())
        moments = np.asarray(answers.report.moments, float)
        return np.where(answers.answered, self.inputs.nearest(moments), -1)

    def describe(self, train: Shards | Federation, noise: float = 0.0) -> Clustering:
        """The same clustering, which also knows what the inputs of each cluster's clients look like.

        Every training client is asked, once, for means and products of random features of its inputs: some
        2,000 numbers, for which no label is needed. `assign(clients, labels=False)` compares with them.

        Parameters
        ----------
        train
            The training clients, or some of each cluster.
        noise
            Standard deviation of Gaussian noise on each of these numbers, here and in `assign`. What it
            protects: `docs/unlabelled.md`.
        """
        check_noise(noise)
        draw, federation = draw_of(self.seed), as_federation(train)
        answers = self._ask(federation, describing(draw, noise))
        mine = places(federation.ids, self.ids)
        groups = np.where((mine >= 0) & np.asarray(answers.answered), self.assignment[mine], -1)
        known = groups >= 0
        if not known.any():
            raise DataError("none of these clients belongs to a cluster: describe asks those of training.")
        sent = np.asarray(answers.report.moments, float)
        k = stacked.count(self.models)
        return replace(self, inputs=Inputs.of(sent[known], groups[known], k, draw, noise))

    def evaluate(
        self, clients: Shards | Federation, chosen_by: ChosenBy | None = None, *, personal: bool = False
    ) -> Evaluation:
        """Loss and accuracy of every client under the model of its cluster, which it alone is sent.

        Parameters
        ----------
        clients
            `data.test` (the training clients' held-out examples) or clients never seen in training.
        chosen_by
            `"train"`: each client keeps the cluster it has in this clustering; one that has none is left
            out. `"shard"`: it takes the model
            of lowest loss on the very examples given (labels included), as the IFCA paper does for test
            clients. When not given: `"train"` for the training clients, `"shard"` for others.
        personal
            Evaluate the model of its own that a training client has, where the algorithm trains such models.
        """
        import pandas as pd  # slow to import, and only results need it

        federation = as_federation(clients)
        if personal and self.personal is None:
            raise SettingError(f"{self.algorithm.get('name', 'this algorithm')} trains no personal models.")
        ids = federation.ids
        mine = places(ids, self.ids)
        chosen_by = "train" if personal else chosen_by or self._chosen_by(ids, mine)
        if chosen_by == "train":
            if (mine < 0).any():
                raise DataError(
                    f"client {ids[mine < 0][0]} took no part in training: evaluate it with chosen_by='shard'."
                )
            clusters = self.assignment[mine]
            if (clusters < 0).all():
                raise DataError("no client has a cluster from training: evaluate with chosen_by='shard'.")
        elif chosen_by == "shard":
            clusters = self.assign(federation)
        else:
            raise SettingError(f"chosen_by must be 'train' or 'shard', not {chosen_by!r}.")
        which, models = np.maximum(clusters, 0), self.models
        if personal:
            which, models = mine, self.personal
        answers = self._ask(federation, Evaluate(models), only=jnp.asarray(which, jnp.int32))
        rows = pd.DataFrame(
            {
                "id": ids,
                "cluster": clusters,
                "examples": np.asarray(answers.report.examples),
                "loss": np.asarray(answers.report.loss, float),
                "accuracy": np.asarray(answers.report.accuracy, float),
            }
        )[np.asarray(answers.answered) & (clusters >= 0)]
        groups = rows.groupby("cluster")
        per_cluster = groups[["loss", "accuracy"]].mean()
        per_cluster.insert(0, "clients", groups.size())
        per_cluster.insert(1, "examples", groups["examples"].sum())
        return Evaluation(rows["accuracy"].mean(), rows["loss"].mean(), rows, per_cluster, chosen_by)

    def predict(self, rows: Any, client: Any = None, *, cluster: int | None = None) -> pd.DataFrame:
        """What the models say of further examples: for each the client, its cluster and the prediction.

        Parameters
        ----------
        rows
            Where the clients came from a table: a table like it (a file or a frame; no label is needed). Else
            an array of features.
        client
            Whose examples they are: a column of the table (that of training, when not given), or one client.
        cluster
            The cluster whose model is to be taken, for clients that took no part in training.

        Returns
        -------
        pandas.DataFrame
            `client`, `cluster`, the probability `p(...)` of each class where models give any, and
            `prediction`: a class by its name, or a number.
        """
        from coterie.clustering.predict import predict  # pandas is slow to import

        return predict(self, rows, client, cluster)

    def _chosen_by(self, ids: np.ndarray, mine: Int[np.ndarray, " clients"]) -> ChosenBy:
        known = int((mine >= 0).sum())
        if known == 0:
            return "shard"
        # numbers are also what clients are called who were given no ids: the same numbers in a population
        # of another size are no evidence that these are the same clients
        numbered = ids.dtype.kind in "iu" and len(ids) != len(self.ids)
        if known < len(ids) or numbered:
            raise DataError(
                f"{known} of these {len(ids)} clients have ids of training clients: say "
                "chosen_by='train' if they are the same clients, or chosen_by='shard' if they are others."
            )
        return "train"

    def _ask(self, clients: Shards | Federation, task: Task, only: Any = None) -> Answers:
        federation = as_federation(clients)
        if federation.spec.x_shape != self.spec.x_shape:
            raise DataError(
                f"these clients' features have shape {federation.spec.x_shape}; the models were trained on "
                f"{self.spec.x_shape}."
            )
        federation = federation.with_learner(self.learner, trains=False)
        return federation.ask(task, only=only)

    # -- disk --------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write to a folder: models as safetensors, the rest as JSON."""
        folder = Path(folder)
        arrays: dict[str, Any] = {f"models.{name}": leaf for name, leaf in stacked.named(self.models).items()}
        arrays |= {f"personal.{name}": leaf for name, leaf in stacked.named(self.personal).items()}
        if self.confidence is not None:
            arrays |= self.confidence.arrays("confidence.")
        arrays |= {name: values for name in TABLES if (values := getattr(self, name)) is not None}
        plain = None
        if self.inputs is not None:
            plain = {name: value for name, value in asdict(self.inputs).items() if name != "moments"}
            arrays["inputs"] = self.inputs.moments
        lines = "".join(record.to_line() + "\n" for record in self.history.records)
        storage.write_text(folder / ROUNDS, lines)
        storage.write_arrays(folder / MODELS, arrays)
        content = {
            "ids": self.ids.tolist(),
            "assignment": self.assignment.tolist(),
            "restart": self.history.restart,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "learner": registry.describe_learner(self.learner),
            "spec": asdict(self.spec),
            "provenance": self.provenance,
            "inputs": plain,
            "preparation": None if self.preparation is None else self.preparation.to_json(),
        }
        content["rounds"] = storage.digest(lines.encode())
        content[storage.DIGEST] = storage.digest(_text(content).encode())
        storage.write_text(folder / FILE, _text(content) + "\n")

    def __repr__(self) -> str:
        name = self.algorithm.get("name", "clustering")
        return f"Clustering({name}: {self.k} clusters of {', '.join(map(str, self.sizes))} clients)"


def _text(content: dict[str, Any]) -> str:
    # not indented, which takes ten times as long: there may be a million clients
    return json.dumps(content, allow_nan=False)


def _stack(arrays: dict[str, np.ndarray], prefix: str, one: PyTree) -> PyTree:
    """The stacked models that were saved with a prefix to their names."""
    like = stacked.repeated(one, next(iter(arrays.values())).shape[0])
    return stacked.from_named({name.removeprefix(prefix): a for name, a in arrays.items()}, like)


def load(folder: str | Path, learner: Learner | None = None) -> Clustering:
    """The clustering saved in a folder, or found by the run in it.

    `learner` is needed only where it was made of parts that cannot be written down: a model or a loss of
    your own, an Optax optimiser.
    """
    folder = Path(folder)
    if not (folder / FILE).exists():
        raise RunFolderError(f"{folder} holds no finished clustering ({FILE} is missing).")
    content = storage.read_json(folder / FILE)
    try:
        written = (folder / ROUNDS).read_text()
        spec = Spec.from_json(content["spec"])
        arrays = storage.read_arrays(folder / MODELS)
        tables = {name: arrays.pop(name, None) for name in TABLES}
        moments, described = arrays.pop("inputs", None), content.get("inputs")
        done = content.get("preparation")
        known = (learner or registry.learner_from(content["learner"])).for_data(spec)
        own = {name: arrays.pop(name) for name in list(arrays) if name.startswith("personal.")}
        trained = {name: a for name, a in arrays.items() if name.startswith("models.")}
        models = _stack(trained, "models.", known.shapes(spec))
        personal = _stack(own, "personal.", known.shapes(spec)) if own else None
        found = Clustering(
            ids=np.array(content["ids"]),
            assignment=np.array(content["assignment"], np.int32),
            models=models,
            learner=known,
            spec=spec,
            history=History(
                list(map(from_line, written.splitlines())), len(content["ids"]), content["restart"]
            ),
            personal=personal,
            confidence=Confidence.from_arrays(arrays, "confidence."),
            **tables,
            algorithm=content["algorithm"],
            seed=content["seed"],
            provenance=content["provenance"],
            inputs=None if moments is None else Inputs(moments, **described),
            preparation=None if done is None else Preparation.from_json(done),
        )
        told = content.pop(storage.DIGEST)
        for name, digest, text in ((FILE, told, _text(content)), (ROUNDS, content["rounds"], written)):
            if digest != storage.digest(text.encode()):
                raise RunFolderError(f"{folder / name} is damaged: it does not hold what was written to it.")
        return found
    except (LookupError, AttributeError, TypeError, ValueError, OSError, StopIteration) as error:
        raise RunFolderError(f"{folder} is damaged: {type(error).__name__}: {error}.") from error
