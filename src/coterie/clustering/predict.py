"""What the models of a clustering say of rows that come later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, PyTree

from coterie.data.shards import places
from coterie.data.table import owners, read
from coterie.errors import DataError
from coterie.learn import losses
from coterie.learn.learner import Learner
from coterie.models import stacked

if TYPE_CHECKING:
    from coterie.clustering.result import Clustering

AT_ONCE = 2**14  # rows; fewer are padded to a power of two, so that few programs are compiled


def predict(found: Clustering, rows: Any, client: Any, cluster: int | None) -> pd.DataFrame:
    """See `Clustering.predict`."""
    x, who, label = _read(found, rows, client)
    at = np.full(len(x), -1)
    if who is not None:
        at = places(who, found.ids)
    clusters = found.assignment[at] if cluster is None else np.full(len(x), cluster)
    if cluster is not None and not 0 <= cluster < stacked.count(found.models):
        raise DataError(f"there is no cluster {cluster!r}: there are 0 to {stacked.count(found.models) - 1}.")
    if cluster is None:
        unknown = np.flatnonzero((at < 0) | (clusters < 0))
        if len(unknown):
            if who is None:
                raise DataError("nothing says whose rows these are: give client=..., or cluster=....")
            raise DataError(
                f"client {who[unknown[0]]} has no cluster from training: say which with cluster=..., such as "
                "found.assign(...) gives for its labelled rows."
            )
    own = found.personal is not None and cluster is None
    which, models = (at, found.personal) if own else (clusters, found.models)
    outputs = outputs_of(found.learner, models, which, found.spec.seen(x))
    content: dict[str, Any] = {} if who is None else {"client": who}
    content |= {"cluster": clusters}
    classes = found.spec.classes
    if classes is None or found.spec.y_shape:
        values = outputs if label is None else label.read(outputs)
        content["prediction"] = values if values.ndim == 1 else list(values)
        return pd.DataFrame(content)
    names = label.classes if label is not None else tuple(range(classes))
    if losses.named(found.learner.loss) in losses.CLASSIFYING:
        shares = np.asarray(jax.nn.softmax(jnp.asarray(outputs[:, :classes]), axis=1))
        content |= {f"p({name})": shares[:, i] for i, name in enumerate(names)}
    content["prediction"] = np.array(names)[outputs[:, :classes].argmax(1)]
    return pd.DataFrame(content)


def _read(
    found: Clustering, rows: Any, client: Any
) -> tuple[Float[np.ndarray, "rows ..."], np.ndarray | None, Any]:
    """The features of the rows, whose they are if that is told, and how to read outputs."""
    prepared = found.preparation
    if prepared is None:
        x = np.asarray(rows)
        if x.shape[1:] != found.spec.x_shape:
            raise DataError(
                f"rows have features of shape {x.shape[1:]}; the models were trained on {found.spec.x_shape}."
            )
        return x, None if client is None else np.full(len(x), client), None
    table, _ = read(pd.DataFrame(rows) if isinstance(rows, dict) else rows)
    column = prepared.client if client is None else client
    if isinstance(column, str) and column in table.column_names:
        ids, owner = owners(table[column], column)
        who = ids[owner]
    elif client is None:
        who = None
    else:
        who = np.full(table.num_rows, client)
    return prepared.x(table), who, prepared.label


def outputs_of(
    learner: Learner, models: PyTree, which: Int[np.ndarray, " rows"], x: np.ndarray
) -> np.ndarray:
    """What each row's model gives for it."""
    found: np.ndarray | None = None
    for number in np.unique(which):
        model, mine = stacked.take(models, int(number)), np.flatnonzero(which == number)
        for first in range(0, len(mine), AT_ONCE):
            part = mine[first : first + AT_ONCE]
            room = 1 << (len(part) - 1).bit_length()
            outputs = np.asarray(_applied(learner, model, x[part[np.arange(room) % len(part)]]))[: len(part)]
            if found is None:
                found = np.zeros((len(x), *outputs.shape[1:]), outputs.dtype)
            found[part] = outputs
    if found is None:
        raise DataError("there are no rows.")
    return found


@jax.jit
def _applied(learner: Learner, model: PyTree, x: Array) -> Array:
    outputs: Array = learner.model.apply(model, learner.look(x))
    return outputs
