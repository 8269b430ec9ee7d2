"""PyTorch modules that several tests use."""

from itertools import pairwise

import torch
from torch import nn

torch.set_num_threads(1)  # small matrices are no faster on two


class MLP(nn.Module):
    """As coterie's own, with its very names: layers.0.weight, layers.0.bias, ..."""

    def __init__(self, widths=(64, 16, 10)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x):
        h = x.flatten(1)
        for layer in self.layers[:-1]:
            h = torch.relu(layer(h))
        return self.layers[-1](h)


class Linear(nn.Module):
    def __init__(self, features=5):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(features, 1, bias=False)])

    def forward(self, x):
        return self.layers[0](x).squeeze(-1)


class ConvNet(nn.Module):
    """For the 8 x 8 digits."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(8 * 3 * 3, 10)

    def forward(self, x):
        return self.classifier(self.features(x[:, None]).flatten(1))


class Tied(nn.Module):
    """Two names for one matrix, a frozen scale, and a counter that does not travel."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        return self.second(torch.tanh(self.first(x))) * self.scale * self.calls.clamp(max=3)
