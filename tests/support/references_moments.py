"""Slow, obvious NumPy versions of moment descent, following the paper line by line, for linear regression.

Phase 1 and Algorithm 3 of "Global Convergence of Federated Learning for Mixed Regression". What is random
there is an argument here: Q_0 and the noise of Remark 2. What the paper prints is quoted.
"""

import itertools

import numpy as np


def eps(x, y, theta):
    """Of every example, shape (n, d): "eps(x, y, theta) = (y - <phi(x), theta>) phi(x)"."""
    return np.array([(b - a @ theta) * a for a, b in zip(x, y, strict=True)])


def pairs(first, second, estimator):
    """A client's pairs (a_ij, b_ij), given eps under two models: all of them, or the first two examples.

    As printed, the latter: "Y_{i,t} = 1/m sum_{i' in S_t} eps(x_i'1, y_i'1, theta_{i,t}) eps(x_i'2, y_i'2,
    theta_{i,t})^T".
    """
    n = len(first)
    if estimator == "two":
        return [(first[0], second[1])] if n >= 2 else []
    return [(first[j], second[m]) for j, m in itertools.permutations(range(n), 2)]


def weight(n, estimator):
    """How much a client of n examples counts: by its disjoint pairs."""
    return 0 if n < 2 else 1 if estimator == "two" else n


def orthogonal_iteration(clients, weights, q, steps):
    """Algorithm 3; `clients` has the pairs (a_ij, b_ij) of each.

    1: "PS initializes Q_0 in R^{d x k} as a random orthogonal matrix Q_0^T Q_0 = I": `q`.
    """
    total = sum(weights)
    for t in range(steps):  # 2: "for t = 0, 1, ..., T-1 do"
        mean = np.zeros_like(q)
        for own, w in zip(clients, weights, strict=True):  # 3: "PS broadcasts Q_t to all clients in S."
            if own:
                if t % 2 == 0:  # 5: "Q_{i,t} = 1/n_i sum_{j=1}^{n_i} b_ij a_ij^T Q_t"
                    update = sum(np.outer(b, a) @ q for a, b in own) / len(own)
                else:  # 8: "Q_{i,t} = 1/n_i sum_{j=1}^{n_i} a_ij b_ij^T Q_t"
                    update = sum(np.outer(a, b) @ q for a, b in own) / len(own)
                mean += w / total * update
        # 6: "Q_{t+1} = sum_{i in S} w_i Q_{i,t}, where w_i = n_i / sum_{i in S} n_i"
        # 9: "PS applies the QR decomposition to obtain Q_{t+1}: sum_{i in S} w_i Q_{i,t} = Q_{t+1} R_{t+1}"
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
    """Lines 11 to 15 at one anchor; the new model, and whether it stops.

    `rate` is alpha / (2 beta^2), and `least` what line 12 compares with.
    """
    projected = eps(x, y, theta) @ u  # U^T eps
    n = len(y)
    # (2): "A_{i,t} = 1/n_H sum_{j in D_{i,t}} (U^T eps(x_ij, y_ij, theta)) (U^T eps(x~_ij, y~_ij, theta))^T"
    if estimator == "two":  # the first half with the second half
        chosen = [(j, j + n // 2) for j in range(n // 2)]
    else:
        chosen = list(itertools.permutations(range(n), 2))
    a = np.mean([np.outer(projected[j], projected[m]) for j, m in chosen], axis=0)
    # 11: "power iteration on A A^T [...] to compute the leading eigenvector beta and sigma^2 = beta^T A beta"
    b = np.linalg.eigh(a @ a.T)[1][:, -1]
    if b @ projected.mean(axis=0) < 0:  # of the two, the one that goes down
        b = -b
    variance = b @ a @ b
    if (
        variance > 0 and np.sqrt(variance) > least
    ):  # 12: "if sigma_{i,t} > epsilon alpha Delta / sqrt(2) then"
        # 13: "theta_{i,t+1} <- theta_{i,t} + r_{i,t} eta_{i,t} [...] where r_{i,t} = U_{i,t} beta_{i,t} and
        # eta_{i,t} = alpha sigma_{i,t} / (2 beta^2)"
        return theta + u @ b * rate * np.sqrt(variance), False
    return theta, True  # 15: "Stop updating theta_{i,t}"


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
    exceed. With `parts`, an anchor uses part t of that many of its examples.

    `for_good` is line 15 of the journal's box, "let theta_{i,tau} <- theta_{i,t} for all t+1 <= tau <= T";
    otherwise that of the conference's, "theta_{i,t+1} <- theta_{i,t}", where an anchor may go on later.
    """
    # 4, 5: "for each anchor client i in H do theta_{i,0} <- theta_0"
    theta = np.repeat(start[None], len(anchors), axis=0)
    stopped = np.zeros(len(anchors), bool)
    history = []
    for t in range(len(asked)):  # 6: "for t = 0, 1, ..., T-1 do"
        new = theta.copy()
        for h, i in enumerate(anchors):
            if for_good and stopped[h]:
                continue
            content, weights = [], []
            # 8: "PS broadcasts {theta_{i,t}, i in H} to all clients i' in S_t"
            for number, c in enumerate(asked[t]):
                x, y = clients[c]
                added = np.zeros((2, len(start))) if noise is None else noise[t][number, :, h]
                both = [eps(x, y, theta[h] + copy) for copy in added]
                content.append(pairs(*both, estimator))
                weights.append(weight(len(y), estimator))
            # 9: "PS calls federated-orthogonal-iteration [...] to output U_{i,t} for each anchor client"
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
    """Line 16: who is joined to whom by a chain of distances below half the separation.

    "PS [...] assigns them in the same cluster when the pairwise distance is smaller than Delta/2".
    """
    label = list(range(len(theta)))
    for i, j in itertools.combinations(range(len(theta)), 2):
        if np.linalg.norm(theta[i] - theta[j]) < separation / 2:
            label = [label[i] if other == label[j] else other for other in label]
    return label
