"""A round of IFCA in plain PyTorch, one client after another, as the paper's released code carries it out.

Each client finds the best of k networks by its loss under each, trains a copy of that by steps of gradient
descent on all of its examples, and the server takes the mean of the copies of each cluster. What slows the
released code down without need is left out: gradients where losses are only compared, and rotating the same
images in every round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from measure import fastest

import coterie as ct

Plain = Sequence[Sequence[np.ndarray]]  # of each model, the weights and biases of its layers in turn
Round = Callable[[], tuple[Any, Plain]]  # gives the cluster of each client, and the new models


def torch_round(shards: ct.Shards, models: Plain, lr: float, steps: int, precision: str = "float32") -> Round:
    """A round with as many threads as are fastest: all that PyTorch would take, or one."""
    import torch
    from torch.nn.functional import cross_entropy

    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = [
        (torch.from_numpy(np.array(x)).to(device), torch.from_numpy(np.array(y)).long().to(device))
        for x, y in shards
    ]
    nets = [_network(model).to(device) for model in models]

    def trained(start: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
        net = copy.deepcopy(start)
        optimiser = torch.optim.SGD(net.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            cross_entropy(net(x), y).backward()
            optimiser.step()
        return net

    def once(threads: int) -> tuple[list[int], Plain]:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        chosen, own = [], []
        for x, y in data:
            with torch.no_grad():
                losses = torch.stack([cross_entropy(net(x), y) for net in nets])
            chosen.append(int(losses.argmin()))
            own.append(trained(nets[chosen[-1]], x, y))
        new = []
        for number, net in enumerate(nets):
            members = [o for o, j in zip(own, chosen, strict=True) if j == number] or [net]
            each = zip(*(member.parameters() for member in members), strict=True)
            new.append([torch.stack(same).detach().mean(0).cpu().numpy() for same in each])
        return chosen, new

    every = torch.get_num_threads()
    if device == "cuda":
        return partial(once, every)
    # threads that wait for each other lose more than they gain where products are small or cores are taken
    return min((partial(once, n) for n in (1, every)), key=lambda round_: fastest(round_, repeats=1))


def _network(arrays: Sequence[np.ndarray]) -> torch.nn.Module:
    """A network of dense layers with ReLU between them."""
    import torch

    widths = [arrays[0].shape[1], *(len(bias) for bias in arrays[1::2])]
    layers: list[torch.nn.Module] = []
    for a, b in pairwise(widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, array in zip(net.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.array(array)))
    return net
