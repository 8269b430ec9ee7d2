"""A slow, obvious NumPy version of Discover, for linear regression with squared loss.

A group is a list of clients, and has a pair of models, of which each has been trained on one half of its
clients' examples.
"""

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from support.references import local_update, loss

BY_CHANCE, SPREAD, COLLUSION = np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi), 1.5264


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


def statistic(d):
    squares = np.sum(np.square(d))
    return np.sum(d) / np.sqrt(squares) if squares > 0 else 0.0


def chance(d):
    """How probable so low a statistic is: a one-sided t-test whose mean is 0, by its usual formula."""
    d = np.asarray(d)
    spread = np.sqrt(np.sum((d - d.mean()) ** 2) / (len(d) - 1))
    return student.cdf(d.mean() / (spread / np.sqrt(len(d))), len(d) - 1)


def rejected(chances, error):
    """The procedure of Benjamini and Hochberg, step by step."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    most = 0
    for rank, i in enumerate(order, 1):
        if chances[i] <= error * rank / len(chances):
            most = rank
    return set(order[:most])


def unit(values):
    length = np.linalg.norm(values)
    return values / length if length > 1e-9 else np.zeros_like(values)


class Reference:
    def __init__(self, clients, tokens, w0, gamma, tau, rounds, alone, sweep, error=0.01):
        self.clients, self.tokens, self.gamma, self.tau = clients, tokens, gamma, tau
        self.rounds, self.sweep, self.error = rounds, sweep, error
        self.w0, self.rounds_alone = w0, alone
        self.assignments = []  # after every pause
        self.stretches = set()  # the first of the rounds between two pauses, and the one after the last
        self.done, self.left, self.merges, self.refused, self.waited = 0, set(), 0, 0, 0

    def trained_alone(self, data):
        theta = self.w0.copy()
        for _ in range(self.rounds_alone):
            theta = local_update(theta, *data, self.gamma, self.tau)
        return theta

    def judged_alone(self, i, parts=5):
        x, y = self.clients[i]
        part, found = np.arange(len(y)) % parts, np.zeros(len(y))
        for p in range(parts):
            theta = self.trained_alone((x[part != p], y[part != p])) if (part != p).any() else self.w0
            found[part == p] = errors(theta, x[part == p], y[part == p])
        return found

    def train(self, rounds):
        self.note()
        self.stretches.add((self.done, self.done + rounds))
        for _ in range(rounds):
            self.done += 1
            for g, members in enumerate(self.groups):
                for h in (0, 1):
                    sent = [
                        local_update(self.pairs[g][h], *halves(self.clients[i])[h], self.gamma, self.tau)
                        for i in members
                    ]
                    self.pairs[g][h] = np.mean(sent, axis=0)

    def fit(self):
        everybody = list(range(len(self.clients)))
        self.groups, self.pairs, before = [everybody], [[self.w0.copy(), self.w0.copy()]], 0
        self.train(self.sweep)
        pulls = self.pulls()
        self.differ = self.alike([pulls[i] for i in everybody])
        while True:  # SPLIT, settle, MERGE
            before = len(self.groups)
            if self.split():
                for turn in range(3):
                    self.train(2)
                    moved = self.judge()
                    if not moved or turn == 2:
                        break
            else:
                self.waited += 1
                self.train(max(self.sweep, (self.rounds_alone - self.done) // 2))
                moved = self.judge()
            while pairs := self.mergers(strict=False):
                self.merge(pairs)
                self.train(2)
                moved = self.judge()
            more = len(self.groups) > 1.5 * before and self.differ >= norm.isf(np.sqrt(self.error))
            if self.done >= (2 if more else 1) * self.rounds_alone:
                break
        if moved:
            self.train(self.sweep)
            self.judge()
        while pairs := self.mergers(strict=True):  # PRUNE
            self.merge(pairs)
            self.train(self.sweep)
            self.judge()
        self.leave()
        return self.final()

    def pulls(self):
        found = {}
        for g, members in enumerate(self.groups):
            for i in members:
                rows = []
                for x, y in halves(self.clients[i]):
                    both = [-2 * x.T @ (y - x @ theta) / len(y) for theta in self.pairs[g]]
                    rows.append(unit(np.concatenate(both)))
                found[i] = rows
        return found

    def alike(self, pulls):
        mean = [np.mean([rows[h] for rows in pulls], axis=0) for h in (0, 1)]
        cosines = [unit(rows[0] - mean[0]) @ unit(rows[1] - mean[1]) for rows in pulls]
        spread = np.std(cosines, ddof=1)
        return np.mean(cosines) / (spread / np.sqrt(len(cosines)))

    def split(self):
        pulls, parts = self.pulls(), []
        for g, members in enumerate(self.groups):
            if len(members) < 4:
                continue
            as_all = self.differ * np.sqrt(len(members) / len(self.clients))
            z = norm.isf(self.error)
            if self.alike([pulls[i] for i in members]) <= min(as_all / 2 - z, z):
                self.refused += 1
                continue
            rows = np.array([unit(pulls[i][0] + pulls[i][1]) for i in members])
            rows -= rows.mean(0)
            side = np.linalg.svd(rows)[0][:, 0] > 0
            first = int(np.argmin([self.tokens[i] for i in members]))
            part = [i for i, s in zip(members, side, strict=True) if s != side[first]]
            if part:
                parts.append((g, part))
        for g, part in parts:
            self.groups[g] = [i for i in self.groups[g] if i not in part]
            self.groups.append(part)
            self.pairs.append([theta.copy() for theta in self.pairs[g]])
        return parts

    def judge(self):
        """Every client goes to the group that fits it best; groups that nobody is left in are gone."""
        losses = [[unseen(pair, client) for pair in self.pairs] for client in self.clients]
        home = {i: g for g, members in enumerate(self.groups) for i in members}
        goes = {i: int(np.argmin([values.sum() for values in losses[i]])) for i in home}
        names = sorted(set(goes.values()))
        self.groups = [[i for i in sorted(home) if goes[i] == g] for g in names]
        self.pairs = [self.pairs[g] for g in names]
        self.losses = [[losses[i][g] for g in names] for i in range(len(self.clients))]
        return sum(goes[i] != home[i] for i in home)

    def lost(self, i, a, b):
        """What a client of group a would lose by the models of group b."""
        return self.losses[i][b] - self.losses[i][a]

    def side(self, a, b, by_chance):
        more = [
            statistic(self.lost(i, a, b)) - (by_chance + max(0, 1 - by_chance) / len(self.clients[i][1]))
            for i in self.groups[a]
        ]
        return np.array(more)

    def prefers(self, a, b, by_chance=BY_CHANCE):
        one, other = self.side(a, b, by_chance), self.side(b, a, by_chance)
        each = [values.sum() / (SPREAD * np.sqrt(len(values))) for values in (one, other)]
        return min(each), (one.sum() + other.sum()) / (SPREAD * np.sqrt(len(one) + len(other)))

    def agreement(self, a, b):
        members = self.groups[a] + self.groups[b]
        product = np.ones(len(members))
        for h in (0, 1):
            away = [(self.losses[i][b] - self.losses[i][a])[h::2] for i in members]
            mean = np.concatenate(away).mean()
            product *= [statistic(d - mean) for d in away]
        return product.sum() / np.sqrt(len(members))

    def mergers(self, strict):
        k, m = len(self.groups), len(self.clients)
        near = np.full((k, k), np.inf)
        for a in range(k):
            for b in range(k):
                if a == b:
                    continue
                sure, both = self.prefers(a, b)
                sizes = len(self.groups[a]) + len(self.groups[b])
                mean = BY_CHANCE + both * SPREAD / np.sqrt(sizes)
                merge = sure < 1 or mean < ((BY_CHANCE + COLLUSION) / 2 if strict else 0.9)
                if strict:
                    if self.differ < norm.isf(np.sqrt(self.error)):
                        both = self.prefers(a, b, COLLUSION)[1]
                    merge |= both < norm.isf(self.error / (2 * m))
                    merge |= self.agreement(a, b) < norm.isf(self.error / (k * (k - 1) / 2))
                if merge:
                    near[a, b] = sure
        nearest = near.argmin(1)
        return [
            (a, int(b))
            for a, b in enumerate(nearest)
            if a < b and nearest[b] == a and np.isfinite(near[a, b])
        ]

    def merge(self, pairs):
        self.merges += len(pairs)
        for a, b in pairs:
            share = len(self.groups[a]) / (len(self.groups[a]) + len(self.groups[b]))
            self.pairs[a] = [share * self.pairs[a][h] + (1 - share) * self.pairs[b][h] for h in (0, 1)]
            self.groups[a] = sorted(self.groups[a] + self.groups[b])
        gone = {b for _, b in pairs}
        self.groups = [members for g, members in enumerate(self.groups) if g not in gone]
        self.pairs = [pair for g, pair in enumerate(self.pairs) if g not in gone]

    def worth_it(self, chances):
        sure = rejected(chances, self.error / 2)
        return rejected(chances, np.sqrt(self.error)) if sure else sure

    def leave(self):
        gains = {}
        for g, members in enumerate(self.groups):
            if len(members) > 1:
                gains[g] = {i: self.judged_alone(i) - self.losses[i][g] for i in members}
        clients = [(i, values) for one in gains.values() for i, values in one.items()]
        gone = {clients[p][0] for p in self.worth_it([chance(d) for _, d in clients])}
        whole = [chance(np.concatenate(list(one.values()))) for one in gains.values()]
        for p in self.worth_it(whole):
            gone |= set(list(gains.values())[p])
        self.left = gone
        kept = [[i for i in members if i not in gone] for members in self.groups]
        left = [(members, pair) for members, pair in zip(kept, self.pairs, strict=True) if members]
        self.groups = [members for members, _ in left] + [[i] for i in sorted(gone)]
        self.pairs = [pair for _, pair in left]
        self.pairs += [[self.trained_alone(half) for half in halves(self.clients[i])] for i in sorted(gone)]

    def confidence(self, now):
        """Margins and chances of every client, and what groups lose by each other's models."""
        k, own = len(self.judged_groups), np.full((4, len(self.clients)), np.nan)
        cost = np.zeros((k, k))
        for g, members in enumerate(self.judged_groups):
            everything = [
                [self.judged_losses[i][b] - self.judged_losses[i][g] for b in range(k)] for i in members
            ]
            for i, lost in zip(members, everything, strict=True):
                others = [b for b in range(k) if b != g]
                second = min(others, key=lambda b, lost=lost: lost[b].sum()) if others else None
                if now[i] == g and others:
                    own[:2, i] = lost[second].mean(), chance(-lost[second])
                if now[i] == second:  # it went there in the end
                    own[:2, i] = -lost[second].mean(), chance(lost[second])
                if now[i] != g:
                    continue
                alone = self.judged_alone(i) - self.judged_losses[i][g]
                own[2:, i] = alone.mean(), chance(-alone)
            for b in range(k):
                cost[g, b] = np.concatenate([lost[b] for lost in everything]).mean()
        return own, cost

    def final(self):
        self.judged_groups = [list(members) for members in self.groups]
        self.judged_losses = [[unseen(pair, client) for pair in self.pairs] for client in self.clients]
        groups, models = self.groups, [np.mean(pair, axis=0) for pair in self.pairs]
        done = 0
        while done < self.rounds:
            if done and len(groups) > 1:
                sizes = [len(members) for members in groups]
                home = {i: g for g, members in enumerate(groups) for i in members}
                for i, g in home.items():
                    if sizes[g] > 1:
                        home[i] = int(np.argmin([loss(theta, *self.clients[i]) for theta in models]))
                groups = [sorted(i for i in home if home[i] == g) for g in range(len(groups))]
            self.groups = groups
            self.note()
            stretch = max(self.sweep, done) if len(groups) > 1 or not done else self.rounds
            stretch = min(stretch, self.rounds - done)
            self.stretches.add((self.done + done, self.done + done + stretch))
            for _ in range(stretch):
                done += 1
                for g, members in enumerate(groups):
                    if members:
                        sent = [
                            local_update(models[g], *self.clients[i], self.gamma, self.tau) for i in members
                        ]
                        models[g] = np.mean(sent, axis=0)
        return groups, models

    def note(self):
        home = np.full(len(self.clients), -1)
        for g, members in enumerate(self.groups):
            home[members] = g
        self.assignments.append(home)
