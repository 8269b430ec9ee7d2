"""Data that is where it belongs: with the nodes of a federation."""

from __future__ import annotations

from coterie.data.federated import Federated
from coterie.errors import DataError

NAME = "nodes"


def nodes(target: str = "y", classes: int | None = None) -> Federated:
    """The files that the nodes of a Flower federation hold; nobody else can read them.

    Parameters
    ----------
    target
        The column or array of targets in every node's file, unless the node says otherwise.
    classes
        Number of classes; the largest label that any node has decides when not given.
    """
    raise DataError(
        "the data of this experiment is with the nodes: run it over Flower (flwr run), or name a data set in "
        "[data] to simulate it."
    )
