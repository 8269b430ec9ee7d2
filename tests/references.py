"""Slow, obvious NumPy versions of the algorithms, following the papers line by line.

The learner is linear regression with squared loss (y - <x, theta>)^2 and full-batch gradient steps, so that
everything can be written out by hand.
"""

import numpy as np


def loss(theta, x, y):
    return np.mean((y - x @ theta) ** 2)


def gradient(theta, x, y):
    return -2 * x.T @ (y - x @ theta) / len(y)


def local_update(theta, x, y, gamma, tau):
    """LocalUpdate of Algorithm 1 in the IFCA paper, lines 18 to 21."""
    theta = theta.copy()
    for _ in range(tau):
        theta = theta - gamma * gradient(theta, x, y)
    return theta


def ifca(clients, thetas, gamma, tau, participants, decay=1.0, by_examples=False):
    """Algorithm 1 of the IFCA paper with option II; `participants` holds M_t for every round."""
    thetas = thetas.copy()
    losses, assignments = [], np.full(len(clients), -1)
    for t, members in enumerate(participants):  # line 2
        sums = np.zeros_like(thetas)  # line 15, numerator
        weights = np.zeros(len(thetas))  # line 15, denominator
        seen = []
        for i in members:  # line 5
            x, y = clients[i]
            f = [loss(theta, x, y) for theta in thetas]
            j = int(np.argmin(f))  # line 6
            w = len(y) if by_examples else 1
            sums[j] += w * local_update(thetas[j], x, y, gamma * decay**t, tau)  # line 11
            weights[j] += w
            seen.append(f[j])
            assignments[i] = j
        for j in range(len(thetas)):
            if weights[j] > 0:
                thetas[j] = sums[j] / weights[j]
        losses.append(np.mean(seen))
    return thetas, assignments, losses


def ifca_gradients(clients, thetas, gamma, participants, decay=1.0, by_examples=False, per_cluster=False):
    """Algorithm 1 of the IFCA paper with option I: divided by the weight of all participants, as printed."""
    thetas = thetas.copy()
    for t, members in enumerate(participants):  # line 2
        sums, weights = np.zeros_like(thetas), np.zeros(len(thetas))
        for i in members:  # line 5
            x, y = clients[i]
            j = int(np.argmin([loss(theta, x, y) for theta in thetas]))  # line 6
            w = len(y) if by_examples else 1
            sums[j] += w * gradient(thetas[j], x, y)  # line 9
            weights[j] += w
        for j in range(len(thetas)):
            whole = weights[j] if per_cluster else weights.sum()
            if weights[j] > 0:
                thetas[j] = thetas[j] - gamma * decay**t * sums[j] / whole  # line 14
    return thetas


def fedx(clients, thetas, eta, s, participants, by_examples=True, per_cluster=False):
    """Phase 2 of the mixed-regression paper with FedAvg's local update, on the loss |y - X theta|^2 / 2n."""
    thetas = thetas.copy()
    for members in participants:  # line 4
        each, weights, labels = [], [], []
        for i in members:
            x, y = clients[i]
            z = int(np.argmin([np.linalg.norm(y - x @ theta) for theta in thetas]))  # line 6, (7)
            local = thetas.copy()  # the client's theta_{i,t}: all k of them
            for _ in range(s):  # line 8
                local[z] = local[z] - eta * gradient(local[z], x, y) / 2
            each.append(local)
            weights.append(len(y) if by_examples else 1)
            labels.append(z)
        if not per_cluster:
            thetas = np.average(each, axis=0, weights=weights)  # line 9: theta_t = sum of w_i theta_{i,t}
            continue
        for j in set(labels):
            mine = [n for n, z in enumerate(labels) if z == j]
            thetas[j] = np.average([each[n][j] for n in mine], axis=0, weights=[weights[n] for n in mine])
    return thetas


def with_shared_weights(clients, w, b, gamma, tau, participants, gradients=False, frozen=False):
    """IFCA with weight sharing (section 4.1): y = <x, w> + b_j, w common to all clusters, b_j clustered."""
    w, b = w.copy(), b.copy()
    for members in participants:
        ws, bs, labels = [], [], []
        for i in members:
            x, y = clients[i]
            j = int(np.argmin([np.mean((y - x @ w - bias) ** 2) for bias in b]))
            local_w, local_b = w.copy(), b[j]
            for _ in range(1 if gradients else tau):
                away = y - x @ local_w - local_b
                if not frozen:
                    local_w = local_w + gamma * 2 * x.T @ away / len(y)
                local_b = local_b + gamma * 2 * away.mean()
            ws.append(local_w)
            bs.append(local_b)
            labels.append(j)
        # vanilla (federated) averaging over everybody of what is shared
        w = np.mean(ws, axis=0)
        for j in set(labels):
            mine = [local for local, label in zip(bs, labels, strict=True) if label == j]
            if gradients:  # line 14 divides by all participants
                b[j] = b[j] + sum(local - b[j] for local in mine) / len(members)
            else:
                b[j] = np.mean(mine)
    return w, b


def fedprox_step(theta, x, y, eta, label=1.0):
    """argmin of label * |y - X theta|^2 / 2n + |theta - theta_0|^2 / (2 eta), by the normal equations."""
    n, d = x.shape
    return np.linalg.solve(label * x.T @ x / n + np.eye(d) / eta, label * x.T @ y / n + theta / eta)


def fedx_soft(clients, thetas, eta, s, rounds, temperature, by_examples=True, per_cluster=False, prox=False):
    """Phase 2 with labels in the simplex: L_i(theta) = sum over l of lambda_l |y - X theta_l|^2 / 2n."""
    thetas = thetas.copy()
    for _ in range(rounds):
        each, weights, labels = [], [], []
        for x, y in clients:
            f = np.array([loss(theta, x, y) / 2 for theta in thetas])
            label = np.exp(-(f - f.min()) / temperature)
            label = label / label.sum()
            local = thetas.copy()
            for j in range(len(thetas)):
                if prox:
                    local[j] = fedprox_step(local[j], x, y, eta, label[j])
                    continue
                for _ in range(s):
                    local[j] = local[j] - eta * label[j] * gradient(local[j], x, y) / 2
            each.append(local)
            weights.append(len(y) if by_examples else 1)
            labels.append(label)
        each, weights, labels = np.array(each), np.array(weights, float), np.array(labels)
        if per_cluster:
            whole = (weights[:, None] * labels).sum(axis=0)
        else:
            whole = np.full(len(thetas), weights.sum())
        thetas = thetas + np.einsum("c,ckd->kd", weights, each - thetas) / whole[:, None]
    return thetas
