"""Populations of published data sets: rotated images, and people of whom nobody knows the groups.

Clients, networks and local updates are those of the papers' experiments; but no step size depends on how many
rounds follow, which a method that looks for groups does not know.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from coterie.learn.local import SGD
from coterie.papers.experiment import Scale
from coterie.papers.ifca import rotated
from coterie.papers.ours.populations import EXAMPLES, STEPS, Population
from coterie.papers.srfca import setups

PASSES = 50  # steps of a client with photographs: of 50 images each, 5 passes over 500 as in the IFCA paper
SAID = 20  # steps of a client with what a role says


def populations(scale: Scale) -> dict[str, Population]:
    """The populations of a scale; the small one has two of them, and no convolutions, for two cores."""
    if scale == "small":
        digits = _mnist(80, (200,))
        writers = _people("femnist", scale, STEPS, clients=40)
        return {"rotated MNIST": digits, "FEMNIST": replace(writers, learner=digits.learner)}
    smoke = scale == "smoke"
    return {
        "rotated MNIST": _mnist(8, (16,), examples=20) if smoke else _mnist(1200, (200,)),
        "rotated CIFAR-10": _photographs("smoke" if smoke else "paper"),
        "FEMNIST": _people("femnist", "smoke" if smoke else "paper", STEPS),
        "Shakespeare": _people("shakespeare", "smoke" if smoke else "paper", SAID),
    }


def _mnist(clients: int, hidden: tuple[int, ...], examples: int = EXAMPLES) -> Population:
    """As Table 1 of the IFCA paper has it; every client is tested on images of its own."""
    own = rotated.Population("MNIST", clients, examples, 0, 0, 1.0, (), hidden)
    return Population(partial(rotated.drawn, own), own.k, rotated.learner_of(own, "ifca", "text"))


def _photographs(scale: Scale) -> Population:
    """The clients of the SR-FCA paper's tables, with the network of the IFCA paper's."""
    own = setups.setup("rotated-cifar10", scale, "text")
    channels, hidden, steps = ((4, 4), (16,), own.local) if scale == "smoke" else ((64, 64), (384,), PASSES)
    network = rotated.Population("CIFAR", own.clients, 500, 0, 0, 1.0, channels, hidden)
    learner = rotated.learner_of(network, "ifca", "text")
    local = SGD(lr=0.1, steps=steps, batch_size=50, decay=0.99)
    make = partial(setups.clients, "rotated-cifar10", own)
    return Population(make, own.k, replace(learner, local=local))


def _people(data: str, scale: Scale, steps: int, **more: Any) -> Population:
    """As the SR-FCA paper's tables have them, all at a time, and as many groups as methods are told there."""
    own = replace(setups.setup(data, scale, "text"), **more)
    learner = setups.learner(data, own, own.rate, own.local if scale == "smoke" else steps)
    told = setups.setup(data, "paper", "text").k
    return Population(partial(setups.clients, data, own), None, learner, told=told)
