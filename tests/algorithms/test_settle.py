"""Stable identities: a client whose cluster no longer changes is sent its own model alone."""

import numpy as np
import pytest

import coterie as ct
from coterie.errors import SettingError
from coterie.models import stacked

DIM, K, CLIENTS = 5, 3, 12
MODEL, NUMBER = DIM * 4, 4  # bytes
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=3))


def population(seed=0, noise=0.1):
    return ct.data.mixed_regression(
        k=K, clients=CLIENTS, examples=20, dim=DIM, noise=noise, scale=3.0, seed=seed
    )


def near(data):
    return (data.models + 0.1).astype(np.float32)


def test_bytes_are_those_counted_by_hand():
    data = population()
    found = ct.IFCA(k=K, rounds=9, init=near(data), settle=2, recheck=3).fit(data.train, LEARNER)
    assert [round_.changed for round_ in found.history] == [CLIENTS] + [0] * 8
    # the first identity in round 0 has stayed the same twice after round 2; then alone twice, all once
    alone = [False, False, False, True, True, False, True, True, False]
    whole = K * MODEL + NUMBER + NUMBER  # models, round, only
    for round_, one in zip(found.history, alone, strict=True):
        assert round_.bytes_down == CLIENTS * (whole - (K - 1) * MODEL * one)
        assert round_.bytes_spared == CLIENTS * (K - 1) * MODEL * one
        assert round_.bytes_up == CLIENTS * (MODEL + NUMBER + NUMBER)  # model, cluster, loss
    assert found.history.total("bytes_spared") == 4 * CLIENTS * (K - 1) * MODEL


def test_changes_nothing_where_identities_are_stable():
    data = population()
    settings = {"k": K, "rounds": 12, "init": near(data)}
    always = ct.IFCA(**settings).fit(data.train, LEARNER, seed=1)
    settled = ct.IFCA(**settings, settle=1, recheck=5).fit(data.train, LEARNER, seed=1)
    np.testing.assert_array_equal(always.assignment, settled.assignment)
    np.testing.assert_array_equal(stacked.to_matrix(always.models), stacked.to_matrix(settled.models))
    assert all(round_.bytes_spared == 0 for round_ in always.history)


def test_restarts_share_a_message_so_all_must_be_stable():
    data = population(noise=1.0)
    found = ct.IFCA(k=K, rounds=15, n_init=4, settle=2, recheck=4).fit(data.train, LEARNER, seed=3)
    seen = np.array([log.moved for log in found.history.logs], object)
    stable = np.zeros((15, 4, CLIENTS), int)  # for how many rounds each identity had stayed before a round
    now = np.zeros((4, CLIENTS), int)
    for t in range(15):
        stable[t] = now
        now = now + 1
        for r in range(4):
            for client, _ in seen[t][r]:
                now[r, client] = 0
    least = stable.min(axis=1)
    alone = (least >= 2) & ((least - 2) % 4 != 3)
    spared = [round_.bytes_spared for round_ in found.history]
    assert spared == (alone.sum(axis=1) * 4 * (K - 1) * MODEL).tolist()
    assert any(spared)


def test_a_client_in_the_wrong_place_is_found_by_looking_again():
    data = population()
    # two clusters start in each other's place, and settle there before the third round
    wrong = near(data)[[1, 0, 2]]
    found = ct.IFCA(k=K, rounds=30, init=wrong, settle=1, recheck=2).fit(data.train, LEARNER, seed=0)
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


@pytest.mark.parametrize("participation", [1.0, 5])
def test_counts_a_clients_own_rounds(participation):
    data = population()
    found = ct.IFCA(k=K, rounds=20, init=near(data), settle=3, recheck=100, participation=participation).fit(
        data.train, LEARNER, seed=2
    )
    assert sum(round_.changed for round_ in found.history) == CLIENTS
    took_part = np.zeros(CLIENTS, int)
    from coterie import keys

    tokens = keys.tokens(data.train.ids)
    for t, round_ in enumerate(found.history):
        drawn = np.arange(CLIENTS) if participation == 1.0 else keys.participants(2, t, tokens, 5)
        assert round_.bytes_spared == (took_part[drawn] > 3).sum() * (K - 1) * MODEL
        took_part[drawn] += 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"settle": 0}, "settle must be a number of rounds from 1 up"),
        ({"settle": 2, "recheck": 1}, "recheck must be a number of rounds from 2 up"),
        ({"settle": 2, "resample": True}, "leave settle out"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        ct.IFCA(k=2, rounds=1, **settings).fit(population().train, LEARNER)
