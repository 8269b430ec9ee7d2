"""A slow, obvious NumPy version of MERGE on held-out examples, for linear regression with squared loss.

A cluster is a list of clients, and has a pair of models, each trained on one half of their examples.
"""

import numpy as np
from scipy.stats import norm

from support.references import local_update
from support.references_discover import halves, unseen


def statistic(differences):
    """Of the differences of all examples of some clients, their sum over the root of the sum of squares."""
    d = np.concatenate(differences)
    squares = np.sum(d**2)
    return np.sum(d) / np.sqrt(squares) if squares > 0 else 0.0


def trained(clusters, pairs, clients, gamma, tau, rounds, by_examples):
    pairs = [list(pair) for pair in pairs]
    for _ in range(rounds):
        for members, pair in zip(clusters, pairs, strict=True):
            counts = [len(clients[i][1]) if by_examples else 1 for i in members]
            for h in (0, 1):
                sent = [local_update(pair[h], *halves(clients[i])[h], gamma, tau) for i in members]
                pair[h] = np.average(sent, axis=0, weights=counts)
    return pairs


def merged(clients, clusters, w0, gamma, tau, rounds, by_examples=False, sweep=5):
    """The clusters in the end, and how many merges were tried, and undone."""

    def train(clusters, pairs, rounds):
        return trained(clusters, pairs, clients, gamma, tau, rounds, by_examples)

    z = norm.isf(0.01 / (2 * len(clients)))
    pairs = train(clusters, [[w0, w0] for _ in clusters], rounds)
    refused, tried, undone, last = [], 0, 0, False
    for number in range(30):
        if len(clusters) == 1:
            break
        # clients go where their unseen examples fit better, by a standard error
        new = [[] for _ in clusters]
        for c, members in enumerate(clusters):
            for i in members:
                more = [unseen(pair, clients[i]) - unseen(pairs[c], clients[i]) for pair in pairs]
                best = int(np.argmin([np.sum(d) for d in more]))
                new[best if number < 10 and not last and statistic([more[best]]) < -1 else c].append(i)
        moved = list(map(sorted, new)) != list(map(sorted, clusters))
        pairs = [pair for pair, members in zip(pairs, new, strict=True) if members]
        clusters = [sorted(members) for members in new if members]

        def lost(members, pair, own):
            return [unseen(pair, clients[i]) - unseen(own, clients[i]) for i in members]

        # each other's nearest
        k = len(clusters)
        near = np.full((k, k), np.inf)
        for a in range(k):
            for b in range(k):
                one, other = lost(clusters[a], pairs[b], pairs[a]), lost(clusters[b], pairs[a], pairs[b])
                fits = last or min(statistic(one), statistic(other)) < z
                if a != b and fits and {tuple(clusters[a]), tuple(clusters[b])} not in refused:
                    near[a, b] = statistic(one + other)
        partner = [int(np.argmin(row)) if np.isfinite(row).any() else None for row in near]
        couples = [(a, b) for a, b in enumerate(partner) if b is not None and a < b and partner[b] == a]
        if not couples and not moved:
            if last:
                break
            last, refused = True, []
            continue
        # all of them train for a while, the merged ones from the mean of both sides
        sides = [[a] for a in range(k) if not any(a in couple for couple in couples)]
        sides += [list(couple) for couple in couples]
        sides.sort()
        together = [sorted(i for a in side for i in clusters[a]) for side in sides]
        starts = [
            [
                np.average([pairs[a][h] for a in side], axis=0, weights=[len(clusters[a]) for a in side])
                for h in (0, 1)
            ]
            for side in sides
        ]
        after, pairs = train(together, starts, sweep), train(clusters, pairs, sweep)
        clusters_after, pairs_after, before = [], [], undone
        for side, members, pair in zip(sides, together, after, strict=True):
            each = [lost(clusters[a], pair, pairs[a]) for a in side]
            if len(side) == 2:
                tried += 1
                worse = sum(np.sum(d) for d in each[0] + each[1]) > 0
                if max(map(statistic, each)) >= (2 if worse and not last else z):
                    undone += 1
                    refused.append({tuple(clusters[a]) for a in side})
                    clusters_after += [clusters[a] for a in side]
                    pairs_after += [pairs[a] for a in side]
                    continue
            clusters_after.append(members)
            pairs_after.append(pair)
        if last and undone - before == len(couples):
            break
        order = sorted(range(len(clusters_after)), key=lambda c: clusters_after[c])
        clusters, pairs = [clusters_after[c] for c in order], [pairs_after[c] for c in order]
    return clusters, tried, undone
