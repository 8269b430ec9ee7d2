"""Randomness derived from (seed, purpose, round, client id)."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import keys

CLIENTS = keys.tokens([f"client-{i}" for i in range(40)])


def numbers(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def drawn(seed=0, round_=0, clients=CLIENTS, count=10):
    return keys.participants(seed, round_, clients, count)


@pytest.mark.parametrize("identity, value", [("client-0", 10934081112718469909), ("7", 9407870976149377255)])
def test_tokens_are_the_same_in_every_process(identity, value):
    assert keys.token(identity) == np.uint64(value)
    assert keys.token(7) == keys.token("7") == keys.token(np.int64(7))  # a number is its text


def test_tokens_are_distinct_64_bit_words_in_order():
    tokens = keys.tokens(range(5000))
    assert tokens.dtype == np.uint64 and tokens.shape == (5000,)
    assert len(np.unique(tokens)) == 5000
    assert tokens[123] == keys.token(123)
    assert tokens.max() > 2**63 and tokens.min() < 2**60
    words = keys.words(CLIENTS)  # all bits of a token
    assert words.dtype == np.uint32 and words.shape == (40, 2)
    assert (words[:, 0].astype(np.uint64) + (words[:, 1].astype(np.uint64) << np.uint64(32)) == CLIENTS).all()


def test_purposes_and_seeds_have_keys_of_their_own():
    cases = [(seed, name) for seed in (0, 1, 2) for name in ("init", "rounds", "data")]
    assert len({tuple(numbers(keys.purpose(*case))) for case in cases}) == 9
    assert numbers(keys.purpose(1, "init")) == numbers(keys.purpose(1, "init"))


def test_clients_have_keys_of_their_own():
    words = keys.words(keys.tokens(range(500)))
    words[:2] = [[3, 5], [4, 5]]  # both words of a token count
    words[2] = [3, 6]
    ours = jax.vmap(keys.of_client, (None, 0))(jax.random.key(0), words)
    assert len({tuple(key) for key in numbers(ours)}) == 500
    others = jax.vmap(keys.of_client, (None, 0))(jax.random.key(1), words)
    assert not (np.array(numbers(ours)) == np.array(numbers(others))).all(axis=1).any()


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_participants_are_so_many_distinct_positions_in_order(seed, round_, count):
    chosen = drawn(seed, round_, count=count)
    assert len(chosen) == count
    assert (np.diff(chosen) > 0).all()
    assert chosen.min() >= 0 and chosen.max() < 40


@given(st.permutations(range(40)), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_who_takes_part_does_not_depend_on_the_order_of_clients(order, round_):
    chosen = drawn(round_=round_)
    permuted = drawn(round_=round_, clients=CLIENTS[order])
    assert set(CLIENTS[chosen].tolist()) == set(CLIENTS[order][permuted].tolist())


def test_participants_change_with_round_and_seed_only():
    assert (drawn(3, 5) == drawn(3, 5)).all()
    by_round = {tuple(drawn(0, t)) for t in range(100)}
    by_seed = {tuple(drawn(s, 0)) for s in range(100)}
    assert len(by_round) == len(by_seed) == 100
    assert tuple(drawn(1, 11)) != tuple(drawn(11, 1))


def test_a_larger_draw_of_a_round_contains_the_smaller_up_to_everybody():
    assert set(drawn(count=5)) < set(drawn(count=6))
    for count in (40, 41, 1000):
        assert drawn(count=count).tolist() == list(range(40))


@pytest.mark.slow
def test_everybody_is_drawn_about_equally_often_and_pairs_too():
    rounds, count = 4000, 10
    rows = np.zeros((rounds, 40))
    for t in range(rounds):
        rows[t, drawn(round_=t)] = 1
    p = count / 40
    assert np.abs(rows.sum(0) - rounds * p).max() < 4.5 * np.sqrt(rounds * p * (1 - p))
    pairs = (rows.T @ rows)[np.triu_indices(40, 1)]
    q = p * (count - 1) / 39
    assert np.abs(pairs - rounds * q).max() < 5 * np.sqrt(rounds * q * (1 - q))
