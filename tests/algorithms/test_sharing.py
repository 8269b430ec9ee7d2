"""Weight sharing: some arrays are averaged over everybody, the others are clustered."""

import jax
import numpy as np
import pytest
from support.references import ifca_with_parts
from support.references_srfca import trimmed_mean

import coterie as ct
from coterie import keys
from coterie.errors import SettingError
from coterie.models import stacked

DIM, K, GAMMA, TAU = 4, 3, 0.05, 3
SIZES = [5, 9, 3, 20, 7, 12, 2, 8]


def intercepts(seed=0):
    """Clients with one slope for all, and an intercept of their cluster's own."""
    rng = np.random.default_rng(seed)
    w, b, truth = rng.standard_normal(DIM), np.array([-3.0, 0.0, 3.0]), np.arange(len(SIZES)) % K
    xs = [rng.standard_normal((n, DIM)) for n in SIZES]
    ys = [x @ w + b[z] + 0.1 * rng.standard_normal(len(x)) for x, z in zip(xs, truth, strict=True)]
    return ct.Federated(ct.Shards.from_lists(xs, ys), truth=truth)


def learner(steps=TAU):
    return ct.Learner(ct.models.Linear(bias=True), "squared", ct.SGD(lr=GAMMA, steps=steps))


def start(seed):
    """Parameters as a matrix: the weights, then the bias."""
    return np.random.default_rng(seed).standard_normal((K, DIM + 1)).astype(np.float32)


def is_weight(name):
    return name.endswith("weight")


def by_hand(data, start, seed, algorithm, **settings):
    """The parameters that it comes to, all weights shared; the bias is that of a feature that is always 1."""
    clients = [(np.c_[x, np.ones(len(x))].astype(float), np.asarray(y, float)) for x, y in data.train]
    tokens, count = keys.tokens(data.train.ids), algorithm.participants(len(SIZES))
    drawn = [keys.participants(seed, t, tokens, count) for t in range(algorithm.rounds)]
    weights = np.arange(DIM + 1) < DIM
    return ifca_with_parts(clients, start.astype(float), GAMMA, TAU, drawn, shared=weights, **settings)[0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("average", ["models", "gradients"])
@pytest.mark.parametrize(("preset", "participation"), [(None, 1.0), (None, 3), ("authors", 5)])
def test_agrees_with_the_paper(seed, average, preset, participation):
    data, first, gradients = intercepts(seed), start(seed), average == "gradients"
    algorithm = ct.IFCA(
        k=K,
        rounds=6,
        init=first,
        average=average,
        share=is_weight,
        preset=preset,
        participation=participation,
    )
    found = algorithm.fit(data.train, learner(1 if gradients else TAU), seed=seed)
    expected = by_hand(data, first, seed, algorithm, gradients=gradients, frozen=preset == "authors")
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-3, atol=1e-4)
    assert (expected[:, :DIM] == expected[0, :DIM]).all() and not np.allclose(expected[0], expected[1])


def trimmed(values, axis):
    return trimmed_mean(values, 0.2)


@pytest.mark.parametrize("average", ["models", "gradients"])
@pytest.mark.parametrize("participation", [1.0, 5])
@pytest.mark.parametrize(
    ("aggregate", "together"), [(ct.Median(), np.median), (ct.TrimmedMean(0.2), trimmed)]
)
def test_a_robust_mean_of_what_is_shared_is_taken_over_all_participants(
    average, participation, aggregate, together
):
    seed, gradients = 0, average == "gradients"
    data, first = intercepts(seed), start(seed)
    algorithm = ct.IFCA(
        k=K,
        rounds=4,
        init=first,
        average=average,
        share=is_weight,
        aggregate=aggregate,
        participation=participation,
    )
    found = algorithm.fit(data.train, learner(1 if gradients else TAU), seed=seed)
    expected = by_hand(data, first, seed, algorithm, gradients=gradients, together=together)
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-3, atol=1e-4)
    plain = by_hand(data, first, seed, algorithm, gradients=gradients)
    assert np.abs(plain - expected)[:, :DIM].max() > 0.01  # it is no mean


def test_a_median_over_all_is_not_one_over_clusters():
    # one round by hand: the weights of all clients after it, and their median
    data, first = intercepts(0), start(0)
    found = ct.IFCA(k=K, rounds=1, init=first, share=is_weight, aggregate=ct.Median()).fit(
        data.train, learner()
    )
    sent = []
    for x, y in data.train:
        w, biases = first[0, :DIM].astype(float), first[:, DIM].astype(float)
        b = biases[np.argmin([np.mean((y - x @ w - bias) ** 2) for bias in biases])]
        for _ in range(TAU):
            away = y - x @ w - b
            w, b = w + GAMMA * 2 * x.T @ away / len(y), b + GAMMA * 2 * away.mean()
        sent.append(w)
    weights = np.asarray(found.models.layers[0].weight[:, 0])
    np.testing.assert_allclose(weights, np.tile(np.median(sent, axis=0), (K, 1)), rtol=1e-4, atol=1e-5)


def test_one_copy_of_what_is_shared_travels():
    data = ct.data.rotated_digits(clients=8, rotations=(0, 90), unseen=0, seed=1)
    network = ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(lr=0.1, steps=1))
    body, head = (64 * 16 + 16) * 4, (16 * 10 + 10) * 4
    starts, clients, k = 3, 8, 2
    number, cluster, loss = 4, 4, 4

    def traffic(**settings):
        found = ct.IFCA(k=k, rounds=2, n_init=starts, **settings).fit(data.train, network)
        return {(round_.bytes_down, round_.bytes_up) for round_ in found.history}

    def by_hand(down, up):
        return {(clients * starts * down, clients * starts * up)}

    assert traffic() == by_hand(k * (body + head) + number, body + head + cluster + loss)
    assert traffic(share="all but last") == by_hand(body + k * head + number, body + head + cluster + loss)
    assert traffic(share="all but last", preset="authors") == by_hand(
        body + k * head + number, head + cluster + loss
    )


@pytest.mark.parametrize("share", ["all but last", ["layers.0"], lambda name: "layers.0." in name])
def test_ways_to_say_what_is_shared(share):
    data = ct.data.rotated_digits(clients=8, rotations=(0, 90), unseen=0, seed=1)
    network = ct.Learner(ct.models.MLP(hidden=(16,)), local=ct.SGD(lr=0.1, steps=1))
    found = ct.IFCA(k=2, rounds=2, n_init=1, share=share).fit(data.train, network)
    body, head = found.models.layers
    jax.tree.map(lambda a: np.testing.assert_array_equal(a[0], a[1]), body)
    assert not np.allclose(head.weight[0], head.weight[1])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"share": "all"}, "share must be 'all but last', names of layers"),
        ({"share": ["nothing"]}, "takes none of layers.0.weight, layers.0.bias"),
        ({"share": ["layers"]}, "takes all of layers.0.weight"),
        ({"share": "all but last"}, "takes none of"),  # there is one layer
        ({"preset": "authors"}, "preset='authors' is about shared layers"),
        ({"preset": "mine", "share": is_weight}, "preset must be 'authors', not 'mine'"),
        ({"share": is_weight, "aggregate": ct.FedAvgM()}, "leave share or the optimiser out"),
        ({"share": is_weight, "aggregate": ct.FedAdam()}, "leave share or the optimiser out"),
    ],
)
def test_what_cannot_be_shared_is_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        ct.IFCA(k=2, rounds=1, **settings).fit(intercepts().train, learner())


def test_a_shared_body_helps_where_clients_have_little():
    seed = 0
    # the slope is common: learnt from everybody, it is known better than from a third of them
    data = intercepts(seed)
    alone, shared = (
        ct.IFCA(k=K, rounds=60, n_init=5, share=share).fit(data.train, learner(), seed=seed)
        for share in (None, is_weight)
    )
    assert ct.metrics.misclustering(shared.assignment, data.truth) == 0
    rng = np.random.default_rng(seed)
    slope = rng.standard_normal(DIM)

    def error(found):
        return max(np.linalg.norm(w - slope) for w in np.asarray(found.models.layers[0].weight[:, 0]))

    assert error(shared) < error(alone)
