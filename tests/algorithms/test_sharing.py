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


def run(average, preset, participation, seed):
    """What comes of it, and what should."""
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
    return found, by_hand(data, first, seed, algorithm, gradients=gradients, frozen=preset == "authors")


WAYS = [
    ("models", None, 1.0),
    ("models", "authors", 5),
    ("gradients", None, 3),
    pytest.param("gradients", "authors", 1.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("average", "preset", "participation"), WAYS)
def test_agrees_with_the_paper(seed, average, preset, participation):
    found, expected = run(average, preset, participation, seed)
    np.testing.assert_allclose(stacked.to_matrix(found.models), expected, rtol=1e-3, atol=1e-4)
    assert (expected[:, :DIM] == expected[0, :DIM]).all() and not np.allclose(expected[0], expected[1])


@pytest.mark.parametrize(("average", "preset", "participation"), WAYS)
def test_one_copy_of_what_is_shared_travels(average, preset, participation):
    found, _ = run(average, preset, participation, 0)
    shared, own, number, cluster, loss = 4 * DIM, 4, 4, 4, 4
    asked = participation if participation > 1 else len(SIZES)
    up = own + cluster + loss if preset == "authors" else shared + own + cluster + loss
    for record in found.history:
        assert record.bytes_down == asked * (shared + K * own + number)
        assert record.bytes_up == asked * up  # what is frozen need not come back


def trimmed(values, axis):
    return trimmed_mean(values, 0.2)


@pytest.mark.parametrize(
    ("average", "participation", "aggregate", "together"),
    [
        ("models", 5, ct.Median(), np.median),
        pytest.param("gradients", 1.0, ct.TrimmedMean(0.2), trimmed, marks=pytest.mark.slow),
        pytest.param("models", 1.0, ct.TrimmedMean(0.2), trimmed, marks=pytest.mark.slow),
        pytest.param("gradients", 5, ct.Median(), np.median, marks=pytest.mark.slow),
    ],
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


@pytest.mark.parametrize("share", ["all but last", ["layers.0"], lambda name: "layers.0." in name])
def test_ways_to_say_what_is_shared(share):
    data = intercepts().train
    network = ct.Learner(ct.models.MLP(hidden=(3,)), "squared", ct.SGD(lr=0.1, steps=1))
    algorithm, shapes = ct.IFCA(k=2, share=share), network.for_data(data.spec).shapes(data.spec)
    models = jax.tree.map(lambda a: np.stack([np.zeros(a.shape), np.ones(a.shape)]), shapes)
    body, head = algorithm.averaging.sharing.of_first(models).layers
    assert all((a == 0).all() for a in jax.tree.leaves(body))
    assert all((a[0] == 0).all() and (a[1] == 1).all() for a in jax.tree.leaves(head))


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


@pytest.mark.slow
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
