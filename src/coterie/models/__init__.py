"""Models that a client can train; any object with `init(key, x)` and `apply(params, x)` is one too."""

from coterie.models.layers import Layers, Model
from coterie.models.linear import Linear
from coterie.models.mlp import MLP

__all__ = ["MLP", "Layers", "Linear", "Model"]
