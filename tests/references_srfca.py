"""Slow, obvious NumPy versions of Algorithms 1 to 4 of the SR-FCA paper, line by line.

Models are vectors and a client is a pair (x, y): linear regression with the loss (y - <x, w>)^2 and steps on
all examples. A clustering maps every client to a cluster, or to -1; clusters are numbered in the order of
their first members.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from references import gradient, local_update, loss


def trimmed_mean(values, beta, weights=None):
    """Definition 3.2, coordinate by coordinate: `values` has a row for every client.

    `beta` is a decimal as it is written, and the fraction that it stands for is rounded down.
    """
    values = np.asarray(values, float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, float)
    left_out = int(Fraction(str(beta)) * len(values))
    result = np.empty(values.shape[1])
    for k in range(values.shape[1]):
        order = sorted(range(len(values)), key=lambda j: (np.isnan(values[j, k]), values[j, k], weights[j]))
        kept = order[left_out : len(order) - left_out]
        result[k] = sum(weights[j] * values[j, k] for j in kept) / sum(weights[j] for j in kept)
    return result


# -- graphs -----------------------------------------------------------------------------------------------


def components(distances, threshold, nodes=None):
    """Connected components by breadth-first search; -1 for what is no node."""
    count = len(distances)
    nodes = range(count) if nodes is None else nodes
    labels, number = [-1] * count, 0
    for start in range(count):
        if start not in nodes or labels[start] >= 0:
            continue
        labels[start], queue = number, [start]
        while queue:
            i = queue.pop(0)
            for j in nodes:
                if labels[j] < 0 and (distances[i][j] <= threshold or distances[j][i] <= threshold):
                    labels[j] = number
                    queue.append(j)
        number += 1
    return labels


def of_size(labels, least):
    """The groups with at least so many members, numbered anew."""
    names = []
    for label in labels:
        if label >= 0 and labels.count(label) >= least and label not in names:
            names.append(label)
    return [names.index(label) if label in names else -1 for label in labels]


def nearest(distances, among):
    """argmin over the clusters `among`, by one client's distances; None if none of them is known."""
    best = None
    for c in among:
        if not np.isnan(distances[c]) and (best is None or distances[c] < distances[best]):
            best = c
    return best


# -- distances --------------------------------------------------------------------------------------------


def l2(u, v):
    return float(np.sqrt(sum((a - b) ** 2 for a, b in zip(u, v, strict=True))))


def cluster_loss(clients, members, w):
    """f_c: "simply the average of the losses of all clients in cluster c"."""
    return sum(loss(w, *clients[i]) for i in members) / len(members) if members else np.nan


def members_of(labels, c):
    return [i for i, label in enumerate(labels) if label == c]


def between_clients(clients, own, distance):
    """dist(w_i, w_j) of all pairs."""
    m = len(own)
    result = np.empty((m, m))
    for i in range(m):
        for j in range(m):
            if distance == "l2":
                result[i, j] = l2(own[i], own[j])
            else:  # Definition 5.1
                result[i, j] = (loss(own[j], *clients[i]) + loss(own[i], *clients[j])) / 2
    return result


def to_clusters(clients, own, models, labels, distance):
    """dist(w_i, omega_c) of all clients and clusters."""
    result = np.empty((len(own), len(models)))
    for i in range(len(own)):
        for c in range(len(models)):
            if distance == "l2":
                result[i, c] = l2(own[i], models[c])
            else:  # w_j and f_j replaced by those of the cluster
                of_cluster = cluster_loss(clients, members_of(labels, c), own[i])
                result[i, c] = (loss(models[c], *clients[i]) + of_cluster) / 2
    return result


def between_clusters(clients, models, labels, distance):
    """dist(omega_c, omega_c') of all pairs of clusters."""
    k = len(models)
    result = np.empty((k, k))
    for c in range(k):
        for d in range(k):
            if distance == "l2":
                result[c, d] = l2(models[c], models[d])
            else:
                one = cluster_loss(clients, members_of(labels, c), models[d])
                other = cluster_loss(clients, members_of(labels, d), models[c])
                result[c, d] = (one + other) / 2
    return result


# -- Algorithms 1 to 4 ------------------------------------------------------------------------------------


def trimmed_mean_gd(
    clients, labels, starts, eta, beta, rounds, steps, average, radius, drawn, by_examples, first
):
    """Algorithm 3; with `average="models"`, TrMean of the models after some local steps (section 5).

    `drawn(t, eligible)` are the participants of round t, of which the first one has the number `first`.
    """
    models = [np.array(start, float) for start in starts]
    for t in range(first, first + rounds):
        here = drawn(t, [i for i, c in enumerate(labels) if c >= 0])
        for c in range(len(models)):
            replies, weights = [], []
            for i in here:
                if labels[i] != c:
                    continue
                if average == "gradients":
                    replies.append(gradient(models[c], *clients[i]))
                else:
                    replies.append(local_update(models[c], *clients[i], eta, steps))
                weights.append(len(clients[i][1]) if by_examples else 1)
            if not replies:
                continue
            together = trimmed_mean(replies, beta, weights)
            models[c] = models[c] - eta * together if average == "gradients" else together
            if radius is not None and np.linalg.norm(models[c]) > radius:  # proj_W
                models[c] = models[c] * radius / np.linalg.norm(models[c])
    return models


def recluster(distances, labels):
    """Algorithm 2; who has no distance to any cluster stays."""
    k = distances.shape[1]
    found = [nearest(row, range(k)) for row in distances]
    return [old if new is None else new for new, old in zip(found, labels, strict=True)]


def merge(apart, labels, threshold, least):
    """Algorithm 4: what becomes of each cluster; -1 if it is empty, or in too small a component."""
    sizes = [labels.count(c) for c in range(len(apart))]
    into = components(apart, threshold, [c for c, size in enumerate(sizes) if size > 0])
    of_each = [into[c] if c >= 0 else -1 for c in labels]  # the component of every client
    large = [g for g in range(max(into) + 1) if of_each.count(g) >= least] or list(range(max(into) + 1))
    names = []
    for g in into:
        if g in large and g not in names:
            names.append(g)
    return [names.index(g) if g in names else -1 for g in into]


class Stage(NamedTuple):
    """What ONE_SHOT or a REFINE leads to; `far`, `apart` and `home` are of a REFINE alone."""

    labels: np.ndarray
    far: np.ndarray | None = None  # dist(w_i, omega_c)
    apart: np.ndarray | None = None  # dist(omega_c, omega_c')
    home: list | None = None  # what became of each cluster


def sr_fca(
    clients,
    w0,
    threshold,
    eta,
    rounds,
    steps=1,
    least=2,
    refines=2,
    beta=0.1,
    distance="cross_loss",
    alone=None,
    warm=False,
    average="models",
    radius=None,
    drawn=lambda t, eligible: eligible,
    by_examples=False,
):
    """Algorithm 1.

    Returns the models and the stages. In the last of these the clients that MERGE left without a cluster are
    in the nearest that is left.
    """
    # ONE_SHOT
    own = [local_update(w0, x, y, eta, rounds * steps if alone is None else alone) for x, y in clients]
    labels = of_size(components(between_clients(clients, own, distance), threshold), least)
    k = max(labels) + 1
    if warm:
        models = [np.mean([own[i] for i in members_of(labels, c)], axis=0) for c in range(k)]
    else:
        models = [w0] * k
    stages = [Stage(np.array(labels))]
    # REFINE
    for r in range(refines):
        starts = models if warm else [w0] * len(models)
        models = trimmed_mean_gd(
            clients, labels, starts, eta, beta, rounds, steps, average, radius, drawn, by_examples, r * rounds
        )
        far = to_clusters(clients, own, models, labels, distance)
        labels = recluster(far, labels)
        apart = between_clusters(clients, models, labels, distance)
        home = merge(apart, labels, threshold, least)
        labels = [home[c] if c >= 0 else -1 for c in labels]
        if r == refines - 1:
            left = [c for c in range(len(home)) if home[c] >= 0]
            labels = [c if c >= 0 else home[nearest(far[i], left)] for i, c in enumerate(labels)]
        models = [
            np.mean([models[c] for c in range(len(home)) if home[c] == new], axis=0)
            for new in range(max(home) + 1)
        ]
        stages.append(Stage(np.array(labels), far, apart, home))
    return np.array(models), stages
