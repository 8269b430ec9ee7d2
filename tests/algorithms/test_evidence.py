"""What Discover makes of what clients say: what chance does is no evidence, and what differs is."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from coterie.algorithms import evidence


def told(differences, group, examples):
    """Clients that have lost so much on each of their examples by each group's models."""
    d, group = np.asarray(differences, float), np.asarray(group)  # (clients, k, examples)
    first = d * (np.arange(d.shape[2]) % 2 == 0)
    others, half = (np.stack([x.sum(2), (x**2).sum(2)], 1) for x in (d, first))
    nothing = np.zeros((len(group), 2))
    return evidence.Told(
        np.ones(len(group), bool), group, d.sum(2), others, half, nothing, np.full(len(group), examples)
    )


def coins(clients, examples, rng, by=0.0):
    """Clients that chose the better of two groups, of which the models of neither are better for all."""
    d = rng.standard_normal((clients, examples)) + by
    group = (d.sum(1) < 0).astype(int)
    other = np.where(group[:, None] == 0, d, -d)
    both = np.zeros((clients, 2, examples))
    both[np.arange(clients), 1 - group] = other
    return told(both, group, examples)


def test_to_choose_between_two_that_are_equally_good_is_no_evidence():
    rng, pairs = np.random.default_rng(0), []
    for _ in range(200):
        one = coins(60, 12, rng)
        pairs.append((evidence.prefers(one)[1][0, 1], evidence.agreement(one)[0, 1]))
    mean, spread = np.mean(pairs, 0), np.std(pairs, 0)
    # for few examples |T| is a little smaller than that of a normal variable
    assert -1 < mean[0] < 0.2 and abs(mean[1]) < 0.3
    np.testing.assert_allclose(spread, 1, atol=0.2)
    assert max(evidence.strict(coins(60, 12, rng), 0.01, 3.0).pairs) == (0, 1)


def test_two_groups_that_fit_their_own_clients_are_evidence():
    rng = np.random.default_rng(0)
    signs = np.repeat([1.0, -1.0], 30)[:, None]
    d = signs * 0.8 + rng.standard_normal((60, 12))
    group = (d.sum(1) < 0).astype(int)
    both = np.zeros((60, 2, 12))
    both[np.arange(60), 1 - group] = np.where(group[:, None] == 0, d, -d)
    verdict = evidence.strict(told(both, group, 12), 0.01, 3.0)
    assert verdict.pairs == [] and verdict.details["apart"][0][1] > 8
    # where clients need not differ at all, more is asked for: all of it may be choice
    strict = evidence.prefers(told(both, group, 12), evidence.COLLUSION)[1][0, 1]
    assert strict < verdict.details["apart"][0][1] - 8


def test_halves_that_agree_beyond_chance_tell_that_clients_differ():
    rng = np.random.default_rng(0)
    alike = rng.standard_normal((200, 40, 2, 20)) + 1.0  # all of them pull one way on the whole
    found = [evidence.alike(pulls) for pulls in alike]
    assert abs(np.mean(found)) < 0.3 and np.std(found) == pytest.approx(1, abs=0.2)
    signs = np.repeat([1.0, -1.0], 20)[:, None, None]
    differ = rng.standard_normal((40, 2, 20)) + 2.0 * signs * np.eye(20)[0]
    assert evidence.alike(differ) > 3
    part = evidence.parted(differ, 0)
    assert not part[0] and (part == (signs[:, 0, 0] < 0)).mean() > 0.8


def test_a_group_is_split_unless_it_is_seen_that_its_clients_are_alike():
    rng = np.random.default_rng(0)
    alike = [rng.standard_normal((40, 2, 20)) for _ in range(200)]
    signs = np.repeat([1.0, -1.0], 20)[:, None, None]
    differ = [pulls + 2.0 * signs * np.eye(20)[0] for pulls in alike]

    def split(groups, as_all):
        return np.mean([evidence.may_differ(pulls, as_all, 0.01) for pulls in groups])

    # where all clients differ by much, as many that are alike are split as may be by chance
    assert split(alike, 20.0) < 0.05 and split(differ, 20.0) > 0.9
    # where little is known of all, nothing is known of a group
    assert split(alike, 0.0) > 0.95
    # of groups that differ half as much as all do, as few are missed
    half = np.mean([evidence.alike(pulls) for pulls in differ])
    assert split(differ, 2 * half) > 0.95


def test_a_chance_is_that_of_student():
    d = np.random.default_rng(0).standard_normal(9) - 0.7
    statistic = d.sum() / np.sqrt((d**2).sum())
    assert evidence.chance(statistic, 9) == pytest.approx(ttest_1samp(d, 0, alternative="less").pvalue)
    assert evidence.chance(-1.0, 1) == 0.5  # one example is no evidence


def test_who_leaves_is_decided_for_all_together():
    chances = np.array([0.001, 0.02, 0.03, 0.2, 0.9])
    assert evidence.step_up(chances, 0.04).tolist() == [True, False, False, False, False]
    assert evidence.step_up(chances, 0.06).tolist() == [True, True, True, False, False]
    assert not evidence.step_up(np.array([]), 0.05).any()
    # if it is sure that one leaves, others need less for it
    assert evidence.any_then_more(chances, 0.01).tolist() == [True, True, True, False, False]
    assert not evidence.any_then_more(chances[1:], 0.01).any()
