"""Slow, obvious NumPy versions of Algorithms 1 to 4 of the SR-FCA paper, line by line.

Models are vectors and a client is a pair (x, y): linear regression with the loss (y - <x, w>)^2 and steps on
all examples. A clustering maps every client to a cluster, or to -1; clusters are numbered in the order of
their first members. What the paper prints is quoted in front of what it stands for.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from support.references import gradient, local_update, loss


def trimmed_mean(values, beta, weights=None):
    """Definition 3.2, coordinate by coordinate: `values` has a row for every client.

    "g_k = 1 / ((1 - 2 beta) J) sum_{x in U_k} x [...] where U_k is a subset of {x_k^1, ..., x_k^J} obtained
    by removing the smallest and largest beta fraction of its elements." `beta` is a decimal as it is written,
    and the fraction that it stands for is rounded down; the sum is divided by what is left.
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
    """dist(w_i, w_j) of all pairs.

    Definition 5.1: "dist_cross-cluster(w_i, w_j) = 1/2 (f_i(w_j) + f_j(w_i))".
    """
    m = len(own)
    result = np.empty((m, m))
    for i in range(m):
        for j in range(m):
            if distance == "l2":
                result[i, j] = l2(own[i], own[j])
            else:
                result[i, j] = (loss(own[j], *clients[i]) + loss(own[i], *clients[j])) / 2
    return result


def to_clusters(clients, own, models, labels, distance):
    """dist(w_i, omega_c) of all clients and clusters.

    "we replace the client model w_i and client loss f_i by the cluster model w_c and empirical cluster loss
    f_c respectively".
    """
    result = np.empty((len(own), len(models)))
    for i in range(len(own)):
        for c in range(len(models)):
            if distance == "l2":
                result[i, c] = l2(own[i], models[c])
            else:
                of_cluster = cluster_loss(clients, members_of(labels, c), own[i])
                result[i, c] = (loss(models[c], *clients[i]) + of_cluster) / 2
    return result


def between_clusters(clients, models, labels, distance):
    """dist(omega_c, omega_c') of all pairs of clusters.

    "to obtain distances between clusters c and c' [...], we replace the client models and losses with cluster
    models and losses respectively".
    """
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


class Training(NamedTuple):
    """How models are trained; none of it is the paper's matter."""

    eta: float
    rounds: int  # T of Algorithm 3
    steps: int = 1  # of a local update
    decay: float = 1.0  # of the step size, from one round to the next
    average: str = "models"  # with "gradients" it is Algorithm 3 itself; else as in section 5
    radius: float | None = None  # of W
    by_examples: bool = False
    drawn: Callable = lambda t, eligible: eligible  # the participants of a round

    def rate(self, t):
        return self.eta * self.decay**t


def trained_alone(clients, w0, rounds, how):
    """Of ONE_SHOT, "Client(i)"."""
    own = []
    for x, y in clients:
        w = w0  # "Receive w_0 from Server."
        for t in range(rounds):  # "w_{i,T} <- Perform T training iterations initialized from w_0."
            w = local_update(w, x, y, how.rate(t), how.steps)
        own.append(w)  # "Send w_{i,T} to Server."
    return own


def trimmed_mean_gd(clients, labels, starts, beta, how, first, number):
    """Algorithm 3; with `average="models"`, TrMean of the models after some local steps (section 5).

    Of the whole run, its first round has the number `first`; for the step sizes, `number`.
    """
    models = [np.array(start, float) for start in starts]  # "omega_{c,0} <- w_0"
    for t in range(how.rounds):  # "for t = 0 to T - 1 do"
        here = how.drawn(first + t, [i for i, c in enumerate(labels) if c >= 0])
        rate = how.rate(number + t)
        for c in range(len(models)):  # "for all clusters c in rg(C_r) in parallel do"
            replies, weights = [], []
            for i in here:  # "Send omega_{c,t} to all clients i in S_c."
                if labels[i] != c:  # "S_c = {i in [m] : C_r(i) = c}"
                    continue
                if how.average == "gradients":  # "Receive grad f_i(omega_{c,t}) from all clients i in S_c."
                    replies.append(gradient(models[c], *clients[i]))
                else:  # "applying TrMean_beta operation to the model updates after local steps"
                    replies.append(local_update(models[c], *clients[i], rate, how.steps))
                weights.append(len(clients[i][1]) if how.by_examples else 1)
            if not replies:
                continue
            # "g(omega_{c,t}) <- TrMean_beta({grad f_i(omega_{c,t}), i in S_c})"
            together = trimmed_mean(replies, beta, weights)
            # "omega_{c,t+1} <- proj_W{omega_{c,t} - eta g(omega_{c,t})}"
            moved = models[c] - rate * together if how.average == "gradients" else together
            models[c] = projected(moved, how.radius)
    return models


def projected(w, radius):
    """proj_W, where W is a ball around the origin."""
    length = np.linalg.norm(w)
    return w if radius is None or length <= radius else w * radius / length


def recluster(distances, labels):
    """Algorithm 2; who has no distance to any cluster stays.

    "for all users i in [m] do C'_r(i) <- argmin_{c in rg(C_r)} dist(w_i, omega_{c,T})".
    """
    k = distances.shape[1]
    found = [nearest(row, range(k)) for row in distances]
    return [old if new is None else new for new, old in zip(found, labels, strict=True)]


def merge(apart, labels, threshold, least):
    """Algorithm 4: what becomes of each cluster; -1 if it is empty, or in too small a component."""
    # "G <- Graph with nodes rg(C'_r) and no edges"
    # "Add edge (c, c') to the graph G if dist(w_c, w_c') <= lambda"
    sizes = [labels.count(c) for c in range(len(apart))]
    into = components(apart, threshold, [c for c, size in enumerate(sizes) if size > 0])
    # "C_temp <- Connected components from graph G of size >= t": of so many clients
    of_each = [into[c] if c >= 0 else -1 for c in labels]  # the component of every client
    large = [g for g in range(max(into) + 1) if of_each.count(g) >= least] or list(range(max(into) + 1))
    names = []
    for g in into:
        if g in large and g not in names:
            names.append(g)
    return [names.index(g) if g in names else -1 for g in into]


def merged_models(models, home):
    """Algorithm 4: "omega_{c,T} <- 1/|G_c| sum_{c' in G_c} omega_{c',T}"."""
    return [
        np.mean([models[c] for c in range(len(home)) if home[c] == new], axis=0)
        for new in range(max(home) + 1)
    ]


def one_shot(clients, own, threshold, least, distance):
    """Of ONE_SHOT(lambda, t), "Server": the clustering C_0."""
    # "Add edge (i, j) to the graph G if dist(w_{i,T}, w_{j,T}) <= lambda"
    # "C_0 <- Connected components from graph G with size >= t"
    return of_size(components(between_clients(clients, own, distance), threshold), least)


def means(own, labels):
    """The mean of the models of each cluster's clients."""
    return [np.mean([own[i] for i in members_of(labels, c)], axis=0) for c in range(max(labels) + 1)]


def fed_prox(clients, labels, models, rounds, mu, how, first, number):
    """Section 6: "if we run any federated optimization algorithm which can accommodate low heterogeneity, for
    instance FedProx Li et al. (2020b), inside each cluster in the final clustering C_R".

    A client makes f_i(w) + mu/2 |w - omega_c|^2 small, by steps from omega_c, and the server takes the mean.
    """
    models = [np.array(model, float) for model in models]
    for t in range(rounds):
        here = how.drawn(first + t, [i for i, c in enumerate(labels) if c >= 0])
        rate = how.rate(number + t)
        for c in range(len(models)):
            total, weight = 0.0, 0.0
            for i in here:
                if labels[i] != c:
                    continue
                w = models[c]
                for _ in range(how.steps):
                    w = w - rate * (gradient(w, *clients[i]) + mu * (w - models[c]))
                own_weight = len(clients[i][1]) if how.by_examples else 1
                total, weight = total + own_weight * w, weight + own_weight
            if weight:
                models[c] = projected(total / weight, how.radius)
    return models


def part_of(client, number, of):
    """Part `number` of a client's examples, dealt out in turn to `of` parts, all of one size."""
    x, y = client
    mine = slice(number, len(y) // of * of, of)
    return x[mine], y[mine]


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
    how,
    least=2,
    refines=2,
    beta=0.1,
    distance="cross_loss",
    alone=None,
    warm=False,
    resample=False,
    final_rounds=0,
    final_proximal=0.0,
):
    """Algorithm 1; clients train alone for `alone` local updates.

    With `resample`, Theorem 4.11: "If we run R steps of REFINE(), resampling n_i points from D_i and
    recompute w_i as in ONE_SHOT for every step of REFINE()".

    Returns the models and the stages. In the last of these the clients that MERGE left without a cluster are
    in the nearest that is left.
    """
    alone = how.rounds if alone is None else alone

    def examples(r):
        """What ONE_SHOT (0) and each REFINE (from 1 on) look at."""
        return [part_of(client, r, 1 + refines) for client in clients] if resample else clients

    # "C_0 <- ONE_SHOT(lambda, t)"
    own = trained_alone(examples(0), w0, alone, how)
    labels = one_shot(examples(0), own, threshold, least, distance)
    models = means(own, labels) if warm else [w0] * (max(labels) + 1)
    stages = [Stage(np.array(labels))]
    for r in range(1, refines + 1):  # "for r = 1 to R do C_r <- REFINE(C_{r-1}, lambda)"
        here, before = examples(r), (r - 1) * how.rounds
        starts, number = (models, before) if warm else ([w0] * len(models), 0)
        # "for all clusters c in C_{r-1} do omega_{c,T} <- TrimmedMeanGD()"
        models = trimmed_mean_gd(here, labels, starts, beta, how, before, number)
        if resample:  # "recompute w_i as in ONE_SHOT"
            own = trained_alone(here, w0, alone, how)
        # "C'_r <- RECLUSTER(C_{r-1})"
        far = to_clusters(here, own, models, labels, distance)
        labels = recluster(far, labels)
        # "C_r <- MERGE(C'_r, lambda, t)"
        apart = between_clusters(here, models, labels, distance)
        home = merge(apart, labels, threshold, least)
        labels = [home[c] if c >= 0 else -1 for c in labels]
        if r == refines:
            left = [c for c in range(len(home)) if home[c] >= 0]
            labels = [c if c >= 0 else home[nearest(far[i], left)] for i, c in enumerate(labels)]
        models = merged_models(models, home)
        stages.append(Stage(np.array(labels), far, apart, home))
    done = refines * how.rounds
    models = fed_prox(
        examples(refines), labels, models, final_rounds, final_proximal, how, done, done if warm else 0
    )
    return np.array(models), stages
