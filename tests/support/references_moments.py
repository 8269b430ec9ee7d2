"""Slow, obvious NumPy versions of moment descent, following the paper line by line, for linear regression.

Phase 1 and Algorithm 3 of "Global Convergence of Federated Learning for Mixed Regression". What is random
there is an argument here: Q_0 and the noise of Remark 2.
"""

import itertools

import numpy as np


def eps(x, y, theta):
    """(y - <x, theta>) x of every example, shape (n, d)."""
    return np.array([(b - a @ theta) * a for a, b in zip(x, y, strict=True)])


def pairs(first, second, estimator):
    """A client's pairs (a_ij, b_ij), given eps under two models: all of them, or the first two examples."""
    n = len(first)
    if estimator == "two":
        return [(first[0], second[1])] if n >= 2 else []
    return [(first[j], second[m]) for j, m in itertools.permutations(range(n), 2)]


def weight(n, estimator):
    """How much a client of n examples counts: by its disjoint pairs."""
    return 0 if n < 2 else 1 if estimator == "two" else n


def orthogonal_iteration(clients, weights, q, steps):
    """Algorithm 3; `clients` has the pairs (a_ij, b_ij) of each, `q` is Q_0."""
    total = sum(weights)
    for t in range(steps):  # line 2
        mean = np.zeros_like(q)
        for own, w in zip(clients, weights, strict=True):
            if own:
                if t % 2 == 0:
                    update = sum(np.outer(b, a) @ q for a, b in own) / len(own)  # line 5
                else:
                    update = sum(np.outer(a, b) @ q for a, b in own) / len(own)  # line 8
                mean += w / total * update  # lines 6 and 9
        q = mean if t % 2 == 0 else np.linalg.qr(mean)[0]
    return q


def moment(clients, weights):
    """Y: the mean of a b^T over clients."""
    total = sum(weights)
    return sum(
        w / total * np.mean([np.outer(a, b) for a, b in own], axis=0)
        for own, w in zip(clients, weights, strict=True)
        if own
    )


def anchor_step(x, y, theta, u, estimator, rate, least):
    """Lines 11 to 15 at one anchor; the new model, and whether it stops."""
    projected = eps(x, y, theta) @ u  # U^T eps
    n = len(y)
    if estimator == "two":  # (2): the first half with the second half
        chosen = [(j, j + n // 2) for j in range(n // 2)]
    else:
        chosen = list(itertools.permutations(range(n), 2))
    a = np.mean([np.outer(projected[j], projected[m]) for j, m in chosen], axis=0)
    b = np.linalg.eigh(a @ a.T)[1][:, -1]  # line 11
    if b @ projected.mean(axis=0) < 0:
        b = -b
    variance = b @ a @ b
    if variance > 0 and np.sqrt(variance) > least:  # line 12
        return theta + u @ b * rate * np.sqrt(variance), False  # line 13
    return theta, True  # line 15


def phase_1(
    clients,
    anchors,
    start,
    asked,
    bases,
    steps,
    estimator,
    alpha,
    beta,
    least,
    noise=None,
    parts=None,
    anchor_estimator=None,
    for_good=True,
):
    """Lines 4 to 15: the anchors' models after every iteration.

    `clients` are pairs (x, y), `anchors` positions. For every iteration, `asked` has S_t, `bases` Q_0 of
    each anchor, `noise` (asked, 2, anchors, d) what is added to the models, and `least` what sigma has to
    exceed. With `parts`, an anchor uses part t of that many of its examples. `for_good`: line 15 of the
    journal's box; otherwise that of the conference's, where an anchor may go on later.
    """
    theta = np.repeat(start[None], len(anchors), axis=0)  # lines 4 and 5
    stopped = np.zeros(len(anchors), bool)
    history = []
    for t in range(len(asked)):  # line 6
        new = theta.copy()
        for h, i in enumerate(anchors):
            if for_good and stopped[h]:
                continue
            content, weights = [], []
            for number, c in enumerate(asked[t]):  # lines 8 and 9
                x, y = clients[c]
                added = np.zeros((2, len(start))) if noise is None else noise[t][number, :, h]
                both = [eps(x, y, theta[h] + copy) for copy in added]
                content.append(pairs(*both, estimator))
                weights.append(weight(len(y), estimator))
            u = orthogonal_iteration(content, weights, bases[t][h], steps)
            if steps % 2:
                raise ValueError("an even number of steps")
            x, y = clients[i]
            if parts is not None:
                mine = slice(t, len(y) // parts * parts, parts)  # dealt out in turn, all of one size
                x, y = x[mine], y[mine]
            rate = alpha / (2 * beta**2)
            own = anchor_estimator or estimator
            new[h], stopped[h] = anchor_step(x, y, theta[h], u, own, rate, least)
        theta = new
        history.append(theta.copy())
    return history


def groups(theta, separation):
    """Line 16: who is joined to whom by a chain of distances below half the separation."""
    label = list(range(len(theta)))
    for i, j in itertools.combinations(range(len(theta)), 2):
        if np.linalg.norm(theta[i] - theta[j]) < separation / 2:
            label = [label[i] if other == label[j] else other for other in label]
    return label
