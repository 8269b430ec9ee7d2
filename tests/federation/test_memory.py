"""What clients keep between the asks of a run: per example, in any federation, asked for anew when lost."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from support.buckets import many_buckets
from support.in_process import InProcessGrid

import coterie as ct
from coterie.algorithms.lockstep import in_step
from coterie.algorithms.records import Count
from coterie.errors import SettingError
from coterie.federation.protocol import Ask
from coterie.flower import FlowerFederation, JaxClient, Own, client_app
from coterie.learn.task import Reply, Task

SIZES = [3, 9, 4, 17, 5]  # in three buckets
with many_buckets:
    DATA = ct.data.mixed_regression(k=2, clients=len(SIZES), examples=SIZES, dim=3, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=1))
SUMS = np.array([x.sum() for x, _ in DATA.train])


class KeepSums(Task):
    """Keep the sum of each example's features, some times over."""

    times: Array
    keeps: ClassVar[bool] = True

    class Report(eqx.Module):
        examples: Array

    def __call__(self, client):
        return Reply(self.Report(client.shard.size), keep={"sums": self.times * client.shard.x.sum(1)})


class AddUp(Task):
    """Add up what was kept."""

    factor: Array
    needs: ClassVar[tuple[str, ...]] = ("sums",)

    class Report(eqx.Module):
        total: Array

    def __call__(self, client):
        kept = jnp.where(client.shard.mask, client.kept["sums"], 0)
        return Reply(self.Report(self.factor * kept.sum()))


def over_flower():
    def app(i):
        own = Own(str(i), DATA.train[[i]])
        return client_app(lambda context: JaxClient(LEARNER, own, others=(KeepSums, AddUp)))

    grid = InProcessGrid([app(i) for i in range(len(SIZES))])
    return FlowerFederation(grid, min_clients=len(SIZES), poll=0.001), grid


FEDERATIONS = {
    "compiled": lambda: ct.Simulation(DATA.train, batch=2),
    "flower": lambda: over_flower()[0],
}


def twice(times):
    remind = Ask(KeepSums(jnp.asarray(times)))
    everybody = yield Ask(AddUp(jnp.asarray(2.0)), remind=remind)
    some = yield Ask(AddUp(jnp.asarray(3.0)), clients=np.array([3, 1]), remind=remind)
    return np.asarray(everybody.report.total), np.asarray(some.report.total)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_clients_keep_what_they_need_for_later_asks(name):
    federation = FEDERATIONS[name]().with_learner(LEARNER)
    assert not federation.keeping("sums").any()
    count = Count()
    results = in_step(federation, [twice(1.0), twice(10.0)], jax.random.key(0), count)
    for times, (everybody, some) in zip((1, 10), results, strict=True):
        np.testing.assert_allclose(everybody, 2 * times * SUMS, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(some, 3 * times * SUMS[[3, 1]], rtol=1e-4, atol=1e-4)
    assert count.asks == 3  # they were reminded once, by both starts together
    assert federation.keeping("sums").all()
    assert not federation.with_learner(LEARNER).keeping("sums").any()  # another run


def test_a_node_that_has_lost_it_is_asked_anew():
    federation, grid = over_flower()
    federation = federation.with_learner(LEARNER)
    in_step(federation, [twice(1.0)], jax.random.key(0), Count())
    for node in grid.nodes.values():
        sent = [name for content in node.said for record in content.array_records.values() for name in record]
        assert set(sent) == {"report/examples", "report/total"}  # what is kept does not travel
    grid.nodes[2].state.clear()

    def again():
        remind = Ask(KeepSums(jnp.asarray(1.0)))
        first = yield Ask(AddUp(jnp.asarray(1.0)), remind=remind)
        second = yield Ask(AddUp(jnp.asarray(1.0)), remind=remind)
        return first, second

    count = Count()
    [(first, second)] = in_step(federation, [again()], jax.random.key(0), count)
    assert np.asarray(first.answered).tolist() == [True, False, True, True, True]
    assert first.failures == ((1, "it has not kept 'sums'"),)
    assert np.asarray(second.answered).all() and count.asks == 3
    np.testing.assert_allclose(second.report.total, SUMS, rtol=1e-4, atol=1e-4)
    assert grid.exchanges[-2] == ("query.ask", [2])


def test_a_client_that_did_not_answer_has_not_kept_it():
    simulation = ct.Simulation(DATA.train, drop=0.5).with_learner(LEARNER)
    answers = simulation.ask(KeepSums(jnp.asarray(1.0)), key=jax.random.key(1))
    answered = np.asarray(answers.answered)
    assert 0 < answered.sum() < len(SIZES)
    np.testing.assert_array_equal(simulation.keeping("sums"), answered)


@pytest.mark.parametrize(
    "ask, words",
    [
        (lambda: ct.Simulation(DATA.train).with_learner(LEARNER).ask(AddUp(1.0)), "no client has kept"),
        (lambda: over_flower()[0].with_learner(LEARNER).ask(AddUp(1.0)), "no client has kept"),
        (
            lambda: ct.Simulation(DATA.train, resident=False).with_learner(LEARNER).ask(KeepSums(1.0)),
            "data lives on the devices",
        ),
        (
            lambda: jax.jit(lambda clients: clients.ask(KeepSums(1.0)).report)(
                ct.Simulation(DATA.train).with_learner(LEARNER)
            ),
            "ask it in a pause",
        ),
    ],
    ids=["simulation", "flower", "streamed", "compiled round"],
)
def test_what_cannot_be_kept_or_was_not_is_refused(ask, words):
    with pytest.raises(SettingError, match=words):
        ask()
