"""A slow, obvious NumPy version of Discover, for linear regression with squared loss.

A group is a list of clients, and has a pair of models, of which each has been trained on one half of its
clients' examples.
"""

import numpy as np
from scipy.stats import norm

from support.references import local_update, loss


def errors(theta, x, y):
    return (y - x @ theta) ** 2


def halves(client):
    x, y = client
    n = len(y) // 2
    return [(x[h::2][:n], y[h::2][:n]) for h in (0, 1)]


def unseen(pair, client):
    """The loss of every example under the model that has not seen it."""
    x, y = client
    return np.where(np.arange(len(y)) % 2 == 0, errors(pair[1], x, y), errors(pair[0], x, y))


def statistic(differences):
    d = np.concatenate(differences)
    squares = np.sum(d**2)
    return np.sum(d) / np.sqrt(squares) if squares > 0 else 0.0


class Reference:
    def __init__(self, clients, w0, gamma, tau, rounds, alone, sweep, error=0.01, objection=2.0, margin=1.0):
        self.clients, self.gamma, self.tau = clients, gamma, tau
        self.rounds, self.sweep = rounds, sweep
        self.z, self.objection, self.margin = norm.isf(error / (2 * len(clients))), objection, margin
        self.w0, self.rounds_alone = w0, alone
        self.assignments = []  # after every pause
        self.had, self.closed, self.limits, self.dissolved, self.prunes = {}, set(), {}, set(), False

    def trained_alone(self, data):
        theta = self.w0.copy()
        for _ in range(self.rounds_alone):
            theta = local_update(theta, *data, self.gamma, self.tau)
        return theta

    def alone_pair(self, i):
        return [self.trained_alone(half) for half in halves(self.clients[i])]

    def judged_alone(self, i, parts=5):
        x, y = self.clients[i]
        part, found = np.arange(len(y)) % parts, np.zeros(len(y))
        for p in range(parts):
            theta = self.trained_alone((x[part != p], y[part != p])) if (part != p).any() else self.w0
            found[part == p] = errors(theta, x[part == p], y[part == p])
        return found

    def train(self, groups, pairs):
        for _ in range(self.sweep):
            for g, members in enumerate(groups):
                for h in (0, 1):
                    sent = [
                        local_update(pairs[g][h], *halves(self.clients[i])[h], self.gamma, self.tau)
                        for i in members
                    ]
                    pairs[g][h] = np.mean(sent, axis=0)

    def fit(self):
        m = len(self.clients)
        self.alone = [self.judged_alone(i) for i in range(m)]
        groups, pairs = [[i] for i in range(m)], [self.alone_pair(i) for i in range(m)]
        groups, pairs = self.sweeps(groups, pairs, first=True)
        self.prunes, self.limits = True, {}
        groups, pairs = self.sweeps(groups, pairs)
        self.prunes, self.limits = False, {}
        groups, pairs, left = self.leave(groups, pairs)
        if left:
            groups, pairs = self.sweeps(groups, pairs)
        return self.final(groups, pairs)

    def judge(self, groups, pairs, first):
        """Losses of every client's examples under every pair; who goes where; what changed for whom."""
        losses = [[unseen(pair, client) for pair in pairs] for client in self.clients]
        home = {i: g for g, members in enumerate(groups) for i in members}
        change, chosen = {}, {}
        for i in home:
            own = losses[i][home[i]]
            best = int(np.argmin([values.sum() for values in losses[i]]))
            leaves = not first and not self.prunes and statistic([losses[i][best] - own]) < -self.margin
            if home[i] in self.closed or best in self.closed:
                leaves = False
            chosen[i] = best if leaves else home[i]
            had = self.had.get(i, own)
            before = self.alone[i] if self.alone[i].sum() < had.sum() else had
            change[i] = own - before
        self.had = {i: losses[i][chosen[i]] for i in home}
        return losses, home, chosen, change

    def sweeps(self, groups, pairs, first=False):
        tried = None
        while True:
            self.closed = {g for g, members in enumerate(groups) if self.dissolved & set(members)}
            losses, home, chosen, change = self.judge(groups, pairs, first)
            if tried is not None:
                old_groups, old_pairs, sides, near = tried
                back = []
                for g, both in sides.items():
                    lost = [statistic([change[i] for i in old_groups[p]]) for p in both]
                    worse = sum(change[i].sum() for p in both for i in old_groups[p]) > 0
                    if max(lost) >= (self.objection if worse and not self.prunes else self.z):
                        back.append(g)
                if back:
                    kept = [g for g in range(len(groups)) if g not in back]
                    again = sorted(p for g in back for p in sides[g])
                    for p in again:
                        mark = frozenset(old_groups[p])
                        self.limits[mark] = min(self.limits.get(mark, np.inf), near[p])
                    groups = [groups[g] for g in kept] + [old_groups[p] for p in again]
                    pairs = [pairs[g] for g in kept] + [old_pairs[p] for p in again]
                    self.closed = {g for g, members in enumerate(groups) if self.dissolved & set(members)}
                    losses, home, chosen, change = self.judge(groups, pairs, False)
            first = False
            moved = any(chosen[i] != home[i] for i in home)
            names = sorted(set(chosen.values()))
            groups = [[i for i in sorted(home) if chosen[i] == g] for g in names]
            pairs = [pairs[g] for g in names]
            losses = [[losses[i][g] for g in names] for i in range(len(self.clients))]
            found = self.mergers(groups, losses)
            if not found and not moved:
                return groups, pairs
            old_groups, old_pairs = groups, [[theta.copy() for theta in pair] for pair in pairs]
            into, near = {b: a for a, b, _ in found}, {}
            for a, b, d in found:
                near[a] = near[b] = d
            kept = [g for g in range(len(groups)) if g not in into]
            new_groups, new_pairs, sides = [], [], {}
            for g in kept:
                parts = [g, *[b for b, a in into.items() if a == g]]
                members = [i for p in parts for i in old_groups[p]]
                weights = np.array([len(old_groups[p]) for p in parts]) / len(members)
                mean = [sum(w * old_pairs[p][h] for w, p in zip(weights, parts, strict=True)) for h in (0, 1)]
                if len(parts) > 1:
                    sides[len(new_groups)] = parts
                new_groups.append(sorted(members))
                new_pairs.append(mean)
            groups, pairs, tried = new_groups, new_pairs, (old_groups, old_pairs, sides, near)
            self.note(groups)
            self.train(groups, pairs)

    def mergers(self, groups, losses):
        k = len(groups)

        def away(a, b):
            return [losses[i][b] - losses[i][a] for i in groups[a]]

        near = np.full((k, k), np.inf)
        for a in range(k):
            for b in range(k):
                if a == b or self.dissolved & set(groups[a]) or self.dissolved & set(groups[b]):
                    continue
                one, other = away(a, b), away(b, a)
                d = statistic(one + other)
                limit = min(self.limit(groups[a]), self.limit(groups[b]))
                if min(statistic(one), statistic(other)) < self.z and d < limit:
                    near[a, b] = d
        nearest = near.argmin(1) if k > 1 else []
        return [
            (a, int(b), near[a, b])
            for a, b in enumerate(nearest)
            if a < b and nearest[b] == a and np.isfinite(near[a, b])
        ]

    def limit(self, members):
        limit = self.limits.get(frozenset(members), np.inf)
        return limit - 0.1 * abs(limit) if np.isfinite(limit) else limit

    def leave(self, groups, pairs):
        leavers = set()
        for members in groups:
            if len(members) < 2:
                continue
            gains = {i: self.alone[i] - self.had[i] for i in members}
            leavers |= {i for i in members if statistic([gains[i]]) < -self.z}
            if statistic(list(gains.values())) < -self.z:
                leavers |= set(members)
                self.dissolved |= set(members)
        stay = [[i for i in members if i not in leavers] for members in groups]
        left = [(members, pair) for members, pair in zip(stay, pairs, strict=True) if members]
        groups = [members for members, _ in left] + [[i] for i in sorted(leavers)]
        pairs = [pair for _, pair in left] + [self.alone_pair(i) for i in sorted(leavers)]
        return groups, pairs, leavers

    def final(self, groups, pairs):
        models = [np.mean(pair, axis=0) for pair in pairs]
        done = 0
        while done < self.rounds:
            if done and len(groups) > 1:
                sizes = [len(members) for members in groups]
                home = {i: g for g, members in enumerate(groups) for i in members}
                for i, g in home.items():
                    if sizes[g] > 1:
                        home[i] = int(np.argmin([loss(theta, *self.clients[i]) for theta in models]))
                groups = [sorted(i for i in home if home[i] == g) for g in range(len(groups))]
            self.note(groups)
            for _ in range(min(self.sweep, self.rounds - done) if len(groups) > 1 else self.rounds - done):
                done += 1
                for g, members in enumerate(groups):
                    if members:
                        sent = [
                            local_update(models[g], *self.clients[i], self.gamma, self.tau) for i in members
                        ]
                        models[g] = np.mean(sent, axis=0)
        return groups, models

    def note(self, groups):
        home = np.full(len(self.clients), -1)
        for g, members in enumerate(groups):
            home[members] = g
        self.assignments.append(home)
