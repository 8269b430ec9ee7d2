"""Runs that are the same however many processes take part: what they tell, as plain values."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import coterie as ct
from coterie.learn.task import Reply, Task


class KeepSum(Task):
    """Keep the sum of all features."""

    times: Array
    keeps: ClassVar[bool] = True

    def __call__(self, client):
        return Reply(keep={"sum": self.times * client.shard.x.sum()})


class TellSum(Task):
    """Tell what was kept."""

    less: Array
    needs: ClassVar[tuple[str, ...]] = ("sum",)

    class Report(eqx.Module):
        total: Array

    def __call__(self, client):
        return Reply(self.Report(client.kept["sum"] - self.less))


def told():
    """What some algorithms find, and what clients have kept."""
    data = ct.data.rotated_digits(clients=11, rotations=(0, 90), unseen=0, seed=2)
    learner = ct.Learner(ct.models.Linear(), local=ct.SGD(lr=0.1, steps=1))
    drawn = {"rounds": 3, "participation": 0.5}
    runs = {
        "ifca": (ct.IFCA(k=2, n_init=2, **drawn), {}),
        "streamed": (ct.IFCA(k=2, n_init=1, **drawn), {"resident": False}),
        "srfca": (ct.SRFCA(rounds=2, threshold="50%"), {}),
        "fedsoft": (ct.FedSoft(k=2, rounds=2), {}),  # keeps what is no number yet
    }
    answers = {}
    for name, (algorithm, settings) in runs.items():
        found = algorithm.fit(ct.Simulation(data.train, **settings), learner, seed=1)
        answers[name] = [found.assignment.tolist(), *(r.loss for r in found.history)]
    answers["evaluation"] = [found.evaluate(data.test).per_client.loss.tolist()]
    clients = ct.Simulation(data.train).with_learner(learner)
    some = np.array([1, 4, 7, 10])
    clients.ask(KeepSum(jnp.asarray(2.0)), clients=clients.select(some))
    sums = clients.ask(TellSum(jnp.asarray(1.0)), clients=clients.select(some)).report.total
    answers["kept"] = [np.flatnonzero(clients.keeping("sum")).tolist(), np.asarray(sums).tolist()]
    return answers


class Recorded(np.ndarray):
    """An array that remembers which of its rows were read."""

    def __getitem__(self, rows):
        self.read.append(rows)
        return np.asarray(self)[rows]


def rows_read():
    """Which rows of the clients' examples this process reads when it makes a simulation, and how many."""
    shards = ct.data.rotated_digits(clients=12, rotations=(0,), unseen=0).train
    (bucket,) = shards.buckets
    recorded = bucket.x.view(Recorded)
    recorded.read = []
    object.__setattr__(bucket, "x", recorded)
    simulation = ct.Simulation(shards)
    held = sum(shard.data.shape[0] for shard in simulation._rows[0].x.addressable_shards)
    read = sorted({row for rows in recorded.read for row in range(12)[rows]})
    return {"read": read, "held": held, "all": jax.device_count()}
