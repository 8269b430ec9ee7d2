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
