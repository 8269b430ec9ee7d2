"""Models that a client can train; any object with `init(key, x)` and `apply(params, x)` is one too."""

from coterie.models.cnn import CNN
from coterie.models.layers import Layers, Model
from coterie.models.linear import Linear
from coterie.models.lstm import LSTM
from coterie.models.mlp import MLP
from coterie.models.resnet import ResNet9

__all__ = ["CNN", "LSTM", "MLP", "Layers", "Linear", "Model", "ResNet9"]
