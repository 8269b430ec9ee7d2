"""Coterie finds the groups hidden among federated clients and trains one model per group."""

from typing import TYPE_CHECKING, Any

from coterie import data, errors, models
from coterie.aggregate import FedAdam, FedAvgM, Mean, Median, TrimmedMean
from coterie.algorithms import (
    CFL,
    IFCA,
    SRFCA,
    Algorithm,
    Discover,
    FedSoft,
    FedX,
    Global,
    Local,
    OneShotKMeans,
    Oracle,
)
from coterie.clustering import Clustering, Evaluation, load
from coterie.data import Federated, Shards
from coterie.evaluate import metrics
from coterie.evaluate.compare import compare
from coterie.evaluate.comparison import Comparison
from coterie.evaluate.groups import groups
from coterie.federation import Simulation
from coterie.federation.devices import use_every_core
from coterie.initialise import Components, FarthestLoss, MomentDescent, OneShot, Random
from coterie.learn.augment import Crop, Distort
from coterie.learn.learner import Learner
from coterie.learn.local import SGD, Optax
from coterie.learn.proximal import Proximal

if TYPE_CHECKING:
    from coterie.flower import FlowerFederation

__version__ = "0.1.0.dev0"

__all__ = [
    "CFL",
    "IFCA",
    "SGD",
    "SRFCA",
    "Algorithm",
    "Clustering",
    "Comparison",
    "Components",
    "Crop",
    "Discover",
    "Distort",
    "Evaluation",
    "FarthestLoss",
    "FedAdam",
    "FedAvgM",
    "FedSoft",
    "FedX",
    "Federated",
    "FlowerFederation",
    "Global",
    "Learner",
    "Local",
    "Mean",
    "Median",
    "MomentDescent",
    "OneShot",
    "OneShotKMeans",
    "Optax",
    "Oracle",
    "Proximal",
    "Random",
    "Shards",
    "Simulation",
    "TrimmedMean",
    "compare",
    "data",
    "errors",
    "groups",
    "load",
    "metrics",
    "models",
    "use_every_core",
]


def __getattr__(name: str) -> Any:
    """What needs an extra is imported when it is asked for."""
    if name != "FlowerFederation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coterie.flower import FlowerFederation

    return FlowerFederation
