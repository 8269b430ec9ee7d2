"""Data that stays on the host: who is asked is read, block by block and ahead of time, and nobody else."""

import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.buckets import many_buckets

import coterie as ct
from coterie.aggregate import Summing
from coterie.data.shards import Bucket
from coterie.federation import streaming
from coterie.learn.tasks import ChooseAndTrain
from coterie.models import stacked

DIM, K = 3, 2
SIZES = [1, 7, 5, 6, 8, 1, 6, 8, 7, 5]
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))


class Recording:
    """An array of which it is known which rows were read, and whether as a view."""

    def __init__(self, array, read):
        self.array, self.read = array, read
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows):
        found = self.array[rows]
        self.read.append((np.arange(len(self.array))[rows], np.shares_memory(found, self.array)))
        return found


@pytest.fixture(scope="module")
@many_buckets
def shards():
    return ct.data.mixed_regression(k=2, clients=len(SIZES), examples=SIZES, dim=DIM, noise=0.3, seed=3).train


@pytest.fixture(params=[8, 3], ids=["one block", "several blocks"])
def block(request, monkeypatch):
    """So many of the larger clients are a block."""
    monkeypatch.setattr(streaming, "BLOCK_BYTES", request.param * 8 * (DIM + 1) * 4)


def recorded(shards):
    read = [[] for _ in shards.buckets]
    buckets = [replace(b, x=Recording(b.x, r)) for b, r in zip(shards.buckets, read, strict=True)]
    return ct.Shards(shards.ids, shards.spec, buckets), read


def told(shards, asked=None, starts=None, reduce=None, **how):
    simulation = ct.Simulation(shards, **how).with_learner(LEARNER)
    models = stacked.from_matrix(np.eye(K, DIM, dtype=np.float32), simulation._learner.shapes(shards.spec))
    task = ChooseAndTrain(jax.tree.map(jnp.asarray, models), jnp.asarray(0), by_examples=True)
    if starts is not None:
        task = jax.tree.map(lambda a: jnp.stack([a] * starts), task)
    only = None if asked is None else jnp.asarray(asked % K, jnp.int32)
    if starts is not None and only is not None:
        only = jnp.stack([only] * starts)
    clients = None if asked is None else simulation.select(asked)
    return simulation.ask(
        task, clients=clients, only=only, reduce=reduce, starts=starts, key=jax.random.key(7)
    )


@pytest.mark.parametrize("reduce", [None, Summing(K)], ids=["kept", "summed"])
@pytest.mark.parametrize("starts", [None, 2])
@pytest.mark.parametrize("asked", [None, np.array([8, 1, 5, 4, 7, 2]), np.array([6])], ids=str)
def test_it_is_the_same_as_with_data_on_the_device(shards, block, asked, starts, reduce):
    one, other = (told(shards, asked, starts, reduce, resident=resident) for resident in (True, False))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_only_those_who_are_asked_are_read(shards, block):
    asked = np.array([8, 1, 4, 2])
    kept, read = recorded(shards)
    told(kept, asked, resident=False)
    for bucket, parts in zip(shards.buckets, read, strict=True):
        rows = {row for part, _ in parts for row in part.tolist()}
        assert set(bucket.clients[sorted(rows)].tolist()) == set(asked) & set(bucket.clients.tolist())


def test_where_everybody_is_asked_nothing_is_copied_on_the_host(shards, block):
    kept, read = recorded(shards)
    told(kept, resident=False)
    for bucket, parts in zip(shards.buckets, read, strict=True):
        assert all(view for _, view in parts)
        assert {row for part, _ in parts for row in part.tolist()} == set(range(len(bucket.clients)))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_blocks_are_equal_in_size_and_everyone_is_new_once(asked, most):
    asked = np.array(asked)
    clients = 100 + np.arange(len(asked))
    x = np.stack([clients, clients], 1).astype(np.float32)  # what a client holds says whose it is
    bucket = Bucket(x, x[:, :0], np.ones(len(asked), int), clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "BLOCK_BYTES", most * 8)
        blocks = list(streaming._blocks(bucket, asked))
    assert len({len(block.clients) for block in blocks}) <= 1
    new = [client for block in blocks for client in block.clients[block.new]]
    assert new == (100 + np.flatnonzero(asked)).tolist()
    for block in blocks:
        np.testing.assert_array_equal(block.read().x[:, 0], block.clients)
        assert set(block.clients) <= set(new)
        size = len(block.clients)
        assert (block.place < size).sum() == len(block.clients[block.new])


def test_clients_that_are_drawn_again_and_again_mostly_fill_blocks_of_a_size():
    rng = np.random.default_rng(0)
    x = np.zeros((1000, 2), np.float32)
    bucket = Bucket(x, x[:, :0], np.ones(1000, int), np.arange(1000))
    sizes = {len(b.clients) for _ in range(100) for b in streaming._blocks(bucket, rng.random(1000) < 0.1)}
    assert len(sizes) <= 5


def test_few_blocks_are_on_their_way_at_once():
    begun, most, done = [], [], threading.Semaphore(0)

    def make(item):
        begun.append(item)
        done.release()
        return 10 * item

    for number, made in enumerate(streaming._ahead(make, range(8))):
        assert made == 10 * number
        most.append(len(begun) - number)
    assert max(most) <= streaming.AHEAD + 1


def test_what_cannot_be_read_is_an_error_where_it_is_asked(shards):
    class Gone(Recording):
        def __getitem__(self, rows):
            raise OSError("the disk is gone")

    buckets = [replace(b, x=Gone(b.x, [])) for b in shards.buckets]
    with pytest.raises(OSError, match="the disk is gone"):
        told(ct.Shards(shards.ids, shards.spec, buckets), resident=False)
