"""Slow, obvious NumPy versions of the algorithms; beside each line is the one of the paper that it follows.

The learner is linear regression with squared loss (y - <x, theta>)^2 and full-batch gradient steps, so that
everything can be written out by hand.
"""

import numpy as np


def loss(theta, x, y):
    return np.mean((y - x @ theta) ** 2)


def gradient(theta, x, y):
    return -2 * x.T @ (y - x @ theta) / len(y)


# -- IFCA: Algorithm 1 of the paper -----------------------------------------------------------------------


def local_update(theta, x, y, gamma, tau):
    """LocalUpdate(theta~^(0), gamma, tau) at the i-th worker machine."""
    theta = theta.copy()
    for _ in range(tau):  # 18: for q = 0, ..., tau - 1 do
        theta = theta - gamma * gradient(theta, x, y)  # 19: theta~^(q+1) = theta~^(q) - gamma grad F_i(...)
    return theta  # 21: return theta~^(tau)


def ifca(clients, thetas, gamma, tau, participants, decay=1.0, by_examples=False):
    """Algorithm 1 with option II; `participants` holds M_t for every round.

    Not in the paper: a step size that decays, and clients that count once per example.
    """
    thetas = thetas.copy()
    losses, assignments = [], np.full(len(clients), -1)
    for t, members in enumerate(participants):  # 2: for t = 0, 1, ..., T - 1 do
        sums = np.zeros_like(thetas)
        weights = np.zeros(len(thetas))
        seen = []
        for i in members:  # 5: for worker machine i in M_t in parallel do
            x, y = clients[i]
            f = [loss(theta, x, y) for theta in thetas]
            j = int(np.argmin(f))  # 6: cluster identity estimate j^ = argmin_{j in [k]} F_i(theta_j^(t))
            # 11: theta~_i = LocalUpdate(theta_{j^}^(t), gamma, tau)
            local = local_update(thetas[j], x, y, gamma * decay**t, tau)
            w = len(y) if by_examples else 1
            sums[j] += w * local
            weights[j] += w
            seen.append(f[j])
            assignments[i] = j
        for j in range(len(thetas)):
            if weights[j] > 0:  # a sum over nobody, divided by nobody, is no model: the old one stays
                # 15: theta_j^(t+1) = sum_{i in M_t} s_{i,j} theta~_i / sum_{i in M_t} s_{i,j}
                thetas[j] = sums[j] / weights[j]
        losses.append(np.mean(seen))
    return thetas, assignments, losses


def ifca_gradients(clients, thetas, gamma, participants, decay=1.0, by_examples=False, divide_by="clients"):
    """Algorithm 1 with option I, where m is the number of all worker machines, in M_t or not.

    Not in the paper: a step size that decays, clients that count once per example, and division by the
    weight of the participants, or of those of the cluster.
    """
    thetas, m = thetas.copy(), len(clients)
    for t, members in enumerate(participants):  # 2: for t = 0, 1, ..., T - 1 do
        sums, weights = np.zeros_like(thetas), np.zeros(len(thetas))
        for i in members:  # 5: for worker machine i in M_t in parallel do
            x, y = clients[i]
            # 6: cluster identity estimate j^ = argmin_{j in [k]} F_i(theta_j^(t))
            j = int(np.argmin([loss(theta, x, y) for theta in thetas]))
            w = len(y) if by_examples else 1
            sums[j] += w * gradient(thetas[j], x, y)  # 9: g_i = grad F_i(theta_{j^}^(t))
            weights[j] += w
        for j in range(len(thetas)):
            whole = {"clients": m, "participants": weights.sum(), "cluster": weights[j] or 1}[divide_by]
            # 14: theta_j^(t+1) = theta_j^(t) - gamma/m sum_{i in M_t} s_{i,j} g_i, for all j in [k]
            thetas[j] = thetas[j] - gamma * decay**t / whole * sums[j]
    return thetas


# -- IFCA: section 4.1 ------------------------------------------------------------------------------------


def ifca_with_parts(
    clients,
    thetas,
    gamma,
    tau,
    participants,
    *,
    shared=None,
    frozen=False,
    gradients=False,
    together=np.mean,
    settle=None,
    recheck=10,
    revive=False,
):
    """Algorithm 1, option II or option I (`gradients`), as section 4.1 has it in practice.

    "we run IFCA on a subset of the coordinates of theta_j^(t), and run vanilla gradient averaging or
    Federated Averaging on the remaining coordinates", which are `shared`, a mask.

    "when [...] the estimates of their cluster identities do not change for several parallel iterations, then
    the center machine can stop sending k models to each worker machine, and instead, it can simply send the
    model corresponding to each worker machine's cluster identity estimate"

    Ours: what else than a mean to take of the replies; shared coordinates that are not trained; that each
    client is settled by itself, after `settle` of its rounds in the same cluster, and gets all models every
    `recheck`-th time after that; that an empty cluster gets the model of the client of highest loss, of those
    that took part and are not alone in their cluster, who is told to train it if it takes part in the next
    round.

    Returns the models, everybody's cluster after every round, and who was sent one model in every round.
    """
    thetas, m, k = thetas.copy(), len(clients), len(thetas)
    shared = np.zeros(thetas.shape[1], bool) if shared is None else shared
    thetas[:, shared] = thetas[0, shared]  # "one single copy of the shared layers"
    cluster, steady, sent_to = (np.full(m, value) for value in (-1, 0, -1))
    clusters, alone = [], []
    for members in participants:  # 4: M_t <- random subset of worker machines
        replies, misfit, one_model = {}, {}, np.zeros(m, bool)
        for i in members:  # 5: for worker machine i in M_t in parallel do
            x, y = clients[i]
            only, rounds = sent_to[i], steady[i]
            if settle is not None and only < 0 and rounds >= settle:
                only = -1 if (rounds - settle) % recheck == recheck - 1 else cluster[i]
            one_model[i] = only >= 0
            f = [loss(theta, x, y) for theta in thetas]
            j = only if only >= 0 else int(np.argmin(f))  # 6: j^ = argmin_{j in [k]} F_i(theta_j^(t))
            theta = thetas[j].copy()
            for _ in range(1 if gradients else tau):  # 9: g_i, or 11: LocalUpdate(theta_{j^}, gamma, tau)
                theta = theta - np.where(shared & frozen, 0, gamma * gradient(theta, x, y))
            replies[i], misfit[i] = theta, f[j]
            steady[i] = rounds + 1 if cluster[i] == j else 0
            cluster[i] = j
        old = thetas.copy()
        for j in range(k):
            own = [i for i in members if cluster[i] == j]
            for these, coordinates in ((own, ~shared), (members, shared)):
                if len(these):
                    # 15: sum_i s_ij theta~_i / sum_i s_ij
                    new = together([replies[i] for i in these], axis=0)
                    if gradients:  # 14: theta_j - gamma/m sum_i s_ij g_i
                        new = old[j] + len(these) / m * (new - old[j])
                    thetas[j, coordinates] = new[coordinates]
        sent_to = np.full(m, -1)
        if revive:
            sizes = np.bincount(cluster[cluster >= 0], minlength=k)
            donors = sorted((-misfit[i], i) for i in members if sizes[cluster[i]] > 1)
            for j, (_, i) in zip(np.flatnonzero(sizes == 0), donors, strict=False):
                thetas[j], sent_to[i] = thetas[cluster[i]], j
        clusters.append(cluster.copy())
        alone.append(one_model)
    return thetas, np.array(clusters), np.array(alone)


# -- FedX: the box "Phase 2 FedX+clustering" of the mixed-regression paper --------------------------------


def fedavg_steps(theta, x, y, eta, s, label=1.0):
    """G_i^s(theta), where G_i(theta) = theta - eta grad L_i(theta): L_i is label * |y - X theta|^2 / 2n."""
    for _ in range(s):
        theta = theta - eta * label * gradient(theta, x, y) / 2
    return theta


def fedprox_step(theta, x, y, eta, label=1.0):
    """argmin of label * |y - X theta|^2 / 2n + |theta - theta_0|^2 / (2 eta), by the normal equations."""
    n, d = x.shape
    return np.linalg.solve(label * x.T @ x / n + np.eye(d) / eta, label * x.T @ y / n + theta / eta)


def fedx(
    clients, thetas, eta, s, participants, by_examples=True, per_cluster=False, prox=False, temperature=0.0
):
    """Phase 2, with FedAvg's local update or FedProx's; in the paper all clients are participants.

    Not in the paper: clients that count once each, division by the weight of a cluster alone, and the term
    temperature * sum_l lambda_l log lambda_l in (6), whose argmin is a softmax.
    """
    thetas = thetas.copy()
    for members in participants:  # 4: for t = T + 1, ..., T + T' do
        each, weights, labels = [], [], []
        for i in members:
            x, y = clients[i]
            # 6: lambda_{i,t} <- argmin over the simplex of L(theta_{t-1}, lambda; D_i)
            if temperature == 0:
                # (7): z_{i,t} = argmin_{l in [k]} |y_i - phi(x_i) theta_{l,t-1}|_2
                z = int(np.argmin([np.linalg.norm(y - x @ theta) for theta in thetas]))
                label = np.eye(len(thetas))[z]
            else:
                f = np.array([loss(theta, x, y) / 2 for theta in thetas])
                label = np.exp(-(f - f.min()) / temperature)
                label = label / label.sum()
            # 7: refines its local model based on either FedAvg or FedProx with L(theta, lambda_{i,t}; D_i)
            if prox:
                # 8: theta_{i,t} <- argmin_theta L_i(theta) + |theta - theta_{t-1}|_2^2 / 2 eta
                local = [fedprox_step(thetas[j], x, y, eta, label[j]) for j in range(len(thetas))]
            else:
                # 8: theta_{i,t} <- G_i^s(theta_{t-1}), where G_i(theta) = theta - eta grad L_i(theta)
                local = [fedavg_steps(thetas[j], x, y, eta, s, label[j]) for j in range(len(thetas))]
            each.append(local)
            weights.append(len(y) if by_examples else 1)
            labels.append(label)
        each, weights, labels = np.array(each), np.array(weights, float), np.array(labels)
        if per_cluster:
            belong = weights @ labels  # how much of the weight each cluster has
            moved = np.einsum("c,ckd->kd", weights, each - thetas)
            thetas = thetas + moved / np.where(belong > 0, belong, 1)[:, None]
        else:
            # 9: theta_t <- sum_{i=1}^M w_i theta_{i,t}, where w_i = n_i / N
            thetas = np.einsum("c,ckd->kd", weights / weights.sum(), each)
    return thetas
