"""CFL against slow NumPy versions of it, and what must hold whatever the data."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering
from support.exchanges import Overheard, alone, server_of
from support.in_process import InProcessGrid, apps_of
from support.observers import Between, Kill, Killed, Remember
from support.references import local_update

import coterie as ct
from coterie import keys, registry
from coterie.algorithms.algorithm import Round
from coterie.algorithms.bipartition import Bipartition, bipartition, cosines, explained
from coterie.algorithms.cfl import CFL
from coterie.clustering.history import RoundLog
from coterie.errors import ConfigError, SettingError
from coterie.federation.exchange import Server
from coterie.federation.protocol import Answers, Traffic
from coterie.flower import FlowerFederation
from coterie.initialise.random import fresh_model
from coterie.models import stacked
from coterie.run.folder import Recorder, RunFolder

DIM, CLIENTS = 10, 24
LR, STEPS, ROUNDS = 0.05, 5, 16
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=STEPS))


def mixture(k=4, seed=0, clients=CLIENTS, **more):
    sizes = np.random.default_rng(seed).integers(33, 65, clients).tolist()
    sizes[0] = 64  # so that all populations are padded to one width
    return ct.data.mixed_regression(
        **{"k": k, "clients": clients, "examples": sizes, "dim": DIM, "noise": 0.2, "scale": 3.0} | more,
        seed=seed,
    )


def four():
    """Four groups that part by one coordinate after the other, two levels deep."""
    rng = np.random.default_rng(0)
    models = np.zeros((4, DIM))
    models[:, :2] = np.array(list(itertools.product([1, -1], repeat=2))) * [4, 2]
    truth = np.arange(CLIENTS) % 4
    sizes = [64, *rng.integers(33, 65, CLIENTS - 1)]
    # x'x = n: all of them get nearer to where they want to be by the same rate
    xs = [np.linalg.qr(rng.standard_normal((n, DIM)))[0] * np.sqrt(n) for n in sizes]
    ys = [x @ models[z] + 0.1 * rng.standard_normal(len(x)) for x, z in zip(xs, truth, strict=True)]
    return SimpleNamespace(train=ct.Shards.from_lists(xs, ys), truth=truth, models=models)


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


def examples(data):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in data.train]


def splits(found):
    return [event for event in found.history.events if event.name == "split"]


class Watch(Remember):
    """Keeps the models and the assignment before and after every round."""

    @property
    def rounds(self):
        known = [
            (np.array(m.states.assignment[0]), matrix(stacked.take(m.states.models, 0))) for m in self.moments
        ]
        return [
            (known[n - 1], known[n])
            for n, moment in enumerate(self.moments)
            if moment.new and isinstance(moment.new[-1], RoundLog)
        ]


# -- when a cluster is split, and how ---------------------------------------------------------------------


def cosine(u, v):
    lengths = np.linalg.norm(u) * np.linalg.norm(v)
    return u @ v / lengths if lengths else 0.0


def every_bipartition(clients):
    first, *rest = clients
    for size in range(len(rest)):
        for others in itertools.combinations(rest, size):
            one = [first, *others]
            yield one, [i for i in clients if i not in one]


def best_bipartition(clients, updates):
    """The smallest max of alpha_ij over i in c1, j in c2, by trying all c1 and c2; and which have it."""
    tried = [
        (max(cosine(updates[i], updates[j]) for i in one for j in other), {frozenset(one), frozenset(other)})
        for one, other in every_bipartition(clients)
    ]
    alpha = min(a for a, _ in tried)
    return alpha, [parts for a, parts in tried if np.isclose(a, alpha, atol=1e-9)]


def merged(clients, updates):
    """The paper's Algorithm 1: the two most similar clusters are merged until two are left."""
    groups = [{i} for i in clients]
    while len(groups) > 2:
        a, b = max(
            itertools.combinations(range(len(groups)), 2),
            key=lambda pair: max(
                cosine(updates[i], updates[j]) for i in groups[pair[0]] for j in groups[pair[1]]
            ),
        )
        groups[a] |= groups.pop(b)
    return groups


def gap(alpha):
    return np.sqrt(max(0.0, 1 - alpha) / 2)  # rounding makes 1 + 2e-16 of some cosines of equal updates


def criteria(clients, updates, weights, eps1, eps2):
    """Criteria 1 and 2."""
    total = sum(weights[i] for i in clients)
    mean = sum(weights[i] / total * updates[i] for i in clients)
    return np.linalg.norm(mean) < eps1 and max(np.linalg.norm(updates[i]) for i in clients) > eps2


def nearest(clients, updates):
    """The largest gap between a client and the one most similar to it."""
    return max(gap(max(cosine(updates[i], updates[j]) for j in clients if j != i)) for i in clients)


def automatic(one, other, updates):
    """What gamma = "auto" stands for, given two parts: test_bipartition.py has why."""
    clients = [*one, *other]
    similarity = np.array([[cosine(updates[i], updates[j]) for j in clients] for i in clients])
    first, rest = np.split(np.arange(len(clients)), [len(one)])
    return (
        0.0 if explained(Bipartition(first, rest, 0.0), similarity) > 1.5 else 1.5 * nearest(clients, updates)
    )


NOBODY = [0.0, 0.0, 0.0]


def fake_answers(updates, weights, clusters, answered):
    n = len(updates)
    return Answers(
        clients=jnp.arange(n),
        answered=jnp.asarray(answered),
        report=None,
        cluster=jnp.asarray(np.maximum(clusters, 0), jnp.int32),
        weight=jnp.asarray(weights, jnp.float32),
        value={"w": jnp.asarray(updates, jnp.float32)},  # from models that are nothing
        traffic=Traffic.of({}, {}, None, 0, n),
    )


def seen_by(algorithm, answers, k, clusters):
    """The state of k clusters whose clients sent these answers."""
    updates = answers.value["w"]
    begun = algorithm.state_of({"w": jnp.zeros((k, updates.shape[1]))}, len(updates))
    seen, scale = algorithm._look(begun, answers)
    return dataclasses.replace(
        begun,
        assignment=jnp.asarray(clusters, jnp.int32),
        mean=seen.mean,
        longest=seen.longest,
        products=seen.products,
        scale=scale,
    )


def paused(algorithm, state, done, ids=None):
    """What comes of a pause in which nobody is asked."""
    ids = np.arange(len(state.assignment)) if ids is None else ids
    server = Server(None, None, ids=ids, tokens=keys.tokens(ids), present=np.arange(len(ids)), seed=0)
    return alone(None, algorithm.pause(server, state, done))


def decided(algorithm, updates, weights, clusters, done=1):
    """What becomes of two clusters whose clients sent these updates: the new clusters, or None."""
    answers = fake_answers(updates, weights, clusters, clusters >= 0)
    pause = paused(algorithm, seen_by(algorithm, answers, 2, clusters), done)
    return None if pause.note is None else np.array(pause.state.assignment)


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=7),
    weights=st.lists(st.integers(1, 3), min_size=7, max_size=7),
    two=st.booleans(),
    setting=st.sampled_from(
        [
            {"eps1": 0.9, "eps2": 1.1, "gamma": 0.0, "min_size": 1},
            {"eps1": 0.9, "eps2": 1.1, "gamma": "auto", "min_size": 2},
            {"eps1": 0.33, "eps2": 2.1, "gamma": 0.63, "min_size": 2},
            {"eps1": 9.0, "eps2": 0.1, "gamma": 0.87, "min_size": 3},
        ]
    ),
)
def test_a_cluster_is_split_as_by_trying_every_bipartition(numbers, weights, two, setting):
    """Few small whole numbers: ties, equal updates, opposite ones and updates that are nothing."""
    n = len(numbers)
    updates = np.array([*numbers, *[NOBODY] * (7 - n)], float)
    clusters = np.array([i % 2 if two else 0 for i in range(n)] + [-1] * (7 - n))
    now = decided(CFL(rounds=9, **setting), updates, weights, clusters)
    assert now is None or (now[n:] == -1).all()
    for c in {0, 1}:
        clients = np.flatnonzero(clusters == c).tolist()
        parted = now is not None and len(set(now[clients])) > 1
        wanted = len(clients) > 1 and criteria(clients, updates, weights, setting["eps1"], setting["eps2"])
        allowed = []  # the best bipartitions that pass criterion 3 and are not too small
        if wanted:
            alpha, best = best_bipartition(clients, updates)
            for parts in best:
                noise = automatic(*parts, updates) if setting["gamma"] == "auto" else setting["gamma"]
                if gap(alpha) > noise + 1e-3 and min(map(len, parts)) >= setting["min_size"]:
                    allowed.append(parts)
        if parted:
            parts = {frozenset(i for i in clients if now[i] == label) for label in set(now[clients])}
            assert parts in allowed
            assert now[clients[0]] == c  # the number stays with the first client's part
        else:
            assert not wanted or len(allowed) < len(best)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_the_partition_is_optimal_and_that_of_the_printed_algorithm(n):
    rng = np.random.default_rng(n)
    for _ in range(10):
        updates = rng.standard_normal((n, 4))
        cut = bipartition(cosines((updates @ updates.T).astype(np.float32)))
        alpha, (best,) = best_bipartition(range(n), updates)
        assert {frozenset(cut.one), frozenset(cut.other)} == best
        assert best == set(map(frozenset, merged(range(n), updates)))
        assert cut.across == pytest.approx(alpha, abs=1e-5)
        assert 0 in cut.one and sum(cut.sizes) == n


def test_products_are_taken_only_when_a_cluster_is_ripe():
    opposite = np.array([[1.0, 0, 0], [-1, 0, 0], [1, 0.1, 0], [-1, 0.1, 0]])
    algorithm, one = CFL(rounds=9, eps1=0.5, eps2=0.5), np.zeros(4, int)

    def seen(updates, answered):
        return seen_by(algorithm, fake_answers(updates, [1] * 4, one, answered), 1, one)

    ripe = seen(opposite, [True, True, True, False])
    np.testing.assert_allclose(ripe.products[:3, :3], (opposite @ opposite.T)[:3, :3], rtol=1e-6)
    assert np.isnan(ripe.products[3]).all() and np.isnan(ripe.products[:, 3]).all()
    moving = seen(opposite + np.array([2, 0, 0]), [True] * 4)
    assert np.isnan(moving.products).all()
    assert float(moving.scale) == pytest.approx(float(np.linalg.norm([2, 0.05, 0])))


def test_the_authors_rule():
    rule = CFL(rounds=9, preset="authors").rule
    assert (rule.eps1, rule.eps2, rule.gamma, rule.warmup, rule.linkage) == (0.4, 1.6, 0.0, 20, "complete")
    assert CFL(rounds=9, preset="authors", eps1="auto", warmup=2).rule.lengths(10.0) == (2.0, 1.6)
    assert CFL(rounds=9, preset="authors").averaging.weight == "clients"
    assert CFL(rounds=9).averaging.weight == "examples"
    authors = CFL(rounds=24, preset="authors")
    blank = authors.state_of({"w": jnp.zeros((1, 3))}, 4)
    until = {done: paused(authors, blank, done).rounds for done in (0, 21, 22, 23, 24)}
    assert until == {0: 21, 21: 1, 22: 1, 23: 1, 24: 0}
    rng = np.random.default_rng(0)
    for n in (3, 8, 15):
        updates = rng.standard_normal((n, 5))
        similarity = cosines(updates @ updates.T)
        theirs = AgglomerativeClustering(metric="precomputed", linkage="complete").fit(-similarity).labels_
        ours = np.zeros(n, int)
        ours[bipartition(similarity, "complete").other] = 1
        assert ct.metrics.adjusted_rand(ours, theirs) == 1
    opposite = np.array([[2.0, 0, 0], [-2, 0, 0], [2, 0.1, 0], NOBODY, NOBODY])
    authors = CFL(rounds=40, preset="authors", eps1=1.0)
    three, pair = np.array([0, 0, 0, -1, -1]), np.array([0, 0, -1, -1, -1])
    assert decided(authors, opposite, [1] * 5, three, 21).tolist() == [0, 2, 0, -1, -1]  # of one client
    assert decided(authors, opposite, [1] * 5, pair, 21) is None  # two are not split


# -- whole runs -------------------------------------------------------------------------------------------


def cfl(clients, theta, rounds):
    """CFL as it is printed, with the lengths that "auto" stands for: when, what and who, in the end."""
    clusters, thetas, when, scale = [list(range(len(clients)))], [theta], [], 0.0
    for t in range(rounds):
        updates, weights, means = {}, {i: len(y) for i, (_, y) in enumerate(clients)}, []
        for c, theta in zip(clusters, thetas, strict=True):
            updates |= {i: local_update(theta, *clients[i], LR, STEPS) - theta for i in c}
            means.append(sum(weights[i] * updates[i] for i in c) / sum(weights[i] for i in c))
        scale = max(scale, *map(np.linalg.norm, means))
        children = []
        for c, theta, mean in zip(clusters, thetas, means, strict=True):
            parts = [c]
            if t < rounds - 1 and criteria(c, updates, weights, 0.2 * scale, 1.5 * 0.2 * scale):
                one, other = merged(c, updates)
                alpha = max(cosine(updates[i], updates[j]) for i in one for j in other)
                if gap(alpha) > automatic(one, other, updates) and min(len(one), len(other)) >= 2:
                    parts = [sorted(one), sorted(other)]
                    when.append(t + 1)
            children += [(part, theta + mean) for part in parts]
        clusters, thetas = [list(part) for part in zip(*children, strict=True)]
    return when, clusters, thetas


@pytest.fixture(scope="module")
def deep():
    """A run on four groups, and all that happened in it."""
    data, watch = four(), Watch()
    return data, watch, CFL(rounds=ROUNDS).fit(data.train, LEARNER, seed=0, observers=[watch])


def test_agrees_with_the_printed_algorithm(deep):
    data, _, found = deep
    server = server_of(ct.Simulation(data.train), LEARNER)
    (theta,) = matrix(jax.tree.map(lambda a: a[None], fresh_model(server, server.start_key(0))))
    when, clusters, thetas = cfl(examples(data), theta, ROUNDS)
    assert [event.after for event in splits(found) for _ in event.details["splits"]] == when
    assert len(clusters) == 4
    for clients, model in zip(clusters, thetas, strict=True):
        (label,) = set(found.assignment[clients])
        assert np.flatnonzero(found.assignment == label).tolist() == clients
        np.testing.assert_allclose(matrix(found.models)[label], model, rtol=1e-3, atol=1e-4)


def test_four_groups_are_split_two_levels_deep(deep):
    data, _, found = deep
    assert found.k == stacked.count(found.models) == 4 and (found.sizes == 6).all()
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert ct.metrics.parameter_distance(found.models, data.models) < 0.1
    assert [len(event.details["splits"]) for event in splits(found)] == [1, 2]
    # every split parts the clients of one cluster in two, and nobody else moves
    known = found.history.assignments()
    assert (known >= 0).all()
    for event in splits(found):
        before, after = known[event.after - 2].copy(), known[event.after - 1]
        for split in event.details["splits"]:
            members = np.flatnonzero(before == split["cluster"])
            parts, sizes = np.unique(after[members], return_counts=True)
            assert parts[0] == split["cluster"] and parts[1] > before.max()
            assert sorted(sizes) == sorted(split["sizes"])
            before[members] = after[members]
        np.testing.assert_array_equal(before, after)
    assert (known[-1] == found.assignment).all()


def test_every_model_is_trained_by_exactly_its_members(deep):
    data, watch, _ = deep
    clients = examples(data)
    assert [len(models) for (_, models), _ in watch.rounds][-1] == 4
    for (home, models), (_, after) in watch.rounds[1:]:
        for c in range(len(models)):
            members = np.flatnonzero(home == c)
            trained = [local_update(models[c], *clients[i], LR, STEPS) for i in members]
            by_hand = np.average(trained, axis=0, weights=[len(clients[i][1]) for i in members])
            np.testing.assert_allclose(after[c], by_hand, rtol=1e-4, atol=1e-5)
    # a new cluster begins with the model of the one it was part of
    for (_, (home, models)), ((now, begin), _) in itertools.pairwise(watch.rounds):
        for c in range(len(begin)):
            (parent,) = set(home[now == c])
            np.testing.assert_array_equal(begin[c], models[parent])


def test_tells_what_it_did_and_why_it_did_no_more(deep):
    _, _, found = deep
    first, *_, last, _ = found.history.events
    assert first.text == "cluster 0 was split (12 and 12 clients)." and first.asks == 0
    assert (
        first.details["mean"][0] < first.details["eps1"] < first.details["eps2"] < first.details["longest"][0]
    )
    assert last.name == "last look" and last.after == ROUNDS and len(last.details["mean"]) == 4
    assert last.text.startswith("4 clusters; in the last round mean updates were up to ")
    json.loads(last.to_line())
    # a round in which nothing was split leaves no trace
    assert [event.name for event in found.history.events] == ["split"] * 2 + ["last look", "finish"]


# -- a client that sends no numbers -----------------------------------------------------------------------

TWO = np.repeat([0, 1], 4)
PULLS = np.array([[2.0, 0.1, 0], [2, 0, 0], [-2, 0.1, 0], [-2, 0, 0]])  # that part well


@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_it_spoils_its_own_cluster_and_no_other(junk):
    algorithm = CFL(rounds=9, eps1=0.5, eps2=0.5, gamma=0.0)
    sound = np.concatenate([PULLS, 3 * PULLS])
    spoilt = sound.copy()
    spoilt[1, 1] = junk
    everybody = np.ones(8, bool)
    good, bad = (
        seen_by(algorithm, fake_answers(updates, [1, 2] * 4, TWO, everybody), 2, TWO)
        for updates in (sound, spoilt)
    )
    assert np.isnan(bad.mean[0]) and np.isfinite(good.mean[0])
    for name in ("mean", "longest"):
        assert float(getattr(bad, name)[1]) == pytest.approx(float(getattr(good, name)[1]), rel=1e-6)
    np.testing.assert_allclose(bad.products[4:, 4:], good.products[4:, 4:], rtol=1e-6)
    assert np.isfinite(bad.scale)
    # both would be split, and so is the one that can be
    assert np.array(paused(algorithm, good, 1).state.assignment).tolist() == [0, 0, 2, 2, 1, 1, 3, 3]
    assert np.array(paused(algorithm, bad, 1).state.assignment).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_max_clusters_is_where_it_ends():
    updates, everybody = np.concatenate([PULLS, 3 * PULLS]), np.ones(8, bool)

    def split(most):
        algorithm = CFL(rounds=9, eps1=0.5, eps2=0.5, gamma=0.0, max_clusters=most)
        state = seen_by(algorithm, fake_answers(updates, [1, 2] * 4, TWO, everybody), 2, TWO)
        return np.array(paused(algorithm, state, 1).state.assignment).tolist()

    assert split(4) == split(None) == [0, 0, 2, 2, 1, 1, 3, 3]
    assert split(3) == [0, 0, 2, 2, 1, 1, 1, 1]  # of two that are ready at once, the first
    assert split(2) == TWO.tolist()


@pytest.mark.slow
def test_the_models_of_other_clusters_go_on_without_it(few):
    data, found = few
    t = found.history[-1].round  # the last round, where its own cluster's model is lost
    (split,) = splits(found)
    assert split.after < t

    class Spoilt(Overheard):
        def with_learner(self, learner):
            return Spoilt(self._federation.with_learner(learner), asks=self.asks)

        def ask(self, task, **options):
            answers = super().ask(task, **options)
            if len(self.asks) <= t:
                return answers
            (place,) = np.flatnonzero(np.asarray(answers.clients) == 4)
            return dataclasses.replace(
                answers, value=jax.tree.map(lambda a: a.at[:, place].set(jnp.nan), answers.value)
            )

    again = CFL(rounds=9).fit(Spoilt(ct.Simulation(data.train, resident=False)), LEARNER, seed=1)
    own = found.assignment[4]
    np.testing.assert_array_equal(again.assignment, found.assignment)
    assert np.isnan(matrix(again.models)[own]).all()
    np.testing.assert_allclose(matrix(again.models)[1 - own], matrix(found.models)[1 - own], rtol=1e-5)


# -- whoever takes part, in whatever order ----------------------------------------------------------------


def same(one, other, clients=None):
    mine = slice(None) if clients is None else clients
    np.testing.assert_array_equal(other.assignment, one.assignment[mine])
    np.testing.assert_allclose(matrix(other.models), matrix(one.models), rtol=1e-4, atol=1e-5)
    assert [event.after for event in other.history.events] == [event.after for event in one.history.events]


@pytest.fixture(scope="module")
def two():
    data = mixture(2, 4)
    return data, CFL(rounds=ROUNDS).fit(data.train, LEARNER, seed=0)


def test_the_order_of_clients_changes_nothing():
    data = mixture(4, 2)
    found = CFL(rounds=ROUNDS).fit(data.train, LEARNER, seed=0)
    order = np.random.default_rng(0).permutation(CLIENTS)
    shuffled = CFL(rounds=ROUNDS).fit(data.train[order], LEARNER, seed=0)
    assert found.k == 4 and shuffled.ids.tolist() == order.tolist()
    same(found, shuffled, order)


def test_ties_are_resolved_by_id():
    """Three pairs of clients pull at right angles or against each other: any of them may be parted first."""
    pull = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [-1, -1, 0], [-1, -1, 0]], float)
    algorithm = CFL(rounds=9, eps1=0.5, eps2=0.5, gamma=0.0)
    first = decided(algorithm, pull, [1] * 6, np.zeros(6, int))
    assert len(set(first)) == 2
    for order in itertools.islice(itertools.permutations(range(6)), 0, None, 37):
        order = np.array(order)
        answers = fake_answers(pull[order], [1] * 6, np.zeros(6, int), np.ones(6, bool))
        after = paused(algorithm, seen_by(algorithm, answers, 1, np.zeros(6, int)), 1, ids=order).state
        np.testing.assert_array_equal(np.array(after.assignment) > 0, first[order] > 0)


@pytest.fixture(scope="module")
def some(two):
    data, algorithm = two[0], CFL(rounds=ROUNDS, participation=0.75)
    return data, algorithm, algorithm.fit(data.train, LEARNER, seed=3)


@pytest.mark.slow
def test_all_are_asked_before_a_cluster_is_split_of_which_some_took_part(some):
    data, _, found = some
    assert found.k == 2 and ct.metrics.misclustering(found.assignment, data.truth) == 0
    assert all(round_.asked == CLIENTS * 3 // 4 for round_ in found.history)
    (split,) = splits(found)
    model = DIM * 4
    assert split.text.endswith("24 clients had been asked once more.")
    assert split.asks == 1
    assert split.bytes_down == CLIENTS * (model + 4 + 4)  # the model, the round, which model
    assert split.bytes_up == CLIENTS * (model + 4 + 4 + 4)  # the model, the loss, the cluster, the weight
    # nobody had to be guessed: all have a place from the split on
    assert (found.history.assignments()[split.after - 1 :] >= 0).all()


def silent(shards, when):
    """Clients of which some do not answer some asks: `when(number of the ask)` says who."""
    return Overheard(ct.Simulation(shards, resident=False), lambda number, name: when(number))


@pytest.fixture(scope="module")
def few():
    data = mixture(2, 7, clients=6)
    return data, CFL(rounds=9).fit(ct.Simulation(data.train, resident=False), LEARNER, seed=1)


def test_a_client_of_no_cluster_is_asked_once_new_clusters_are_no_longer_equal():
    home = np.array([0, 1, -1, 1])
    algorithm, updates = CFL(rounds=9), np.array([[1.0, 0, 0], [0, 1, 0], NOBODY, [0, 1, 1]])
    begun = algorithm.state_of({"w": jnp.zeros((2, 3))}, 4)
    begun = dataclasses.replace(begun, assignment=jnp.asarray(home), fresh=jnp.ones(2, bool))
    assert algorithm.eligible(begun).tolist() == [True, True, False, True]
    for answered, ready in (([True, False, False, False], False), ([True, False, False, True], True)):
        answers = fake_answers(updates, [1] * 4, home, answered)
        after = algorithm.update(begun, answers, Round(jnp.asarray(0), jnp.asarray(LR), jnp.asarray(1.0)))
        assert after.assignment.tolist() == home.tolist()
        assert (algorithm.eligible(after) is None) == ready  # everybody, once both of them have trained


@pytest.mark.slow
def test_a_client_that_never_answers_changes_nothing_for_the_others(few):
    data, _ = few
    found = CFL(rounds=9).fit(silent(data.train, lambda ask: [2]), LEARNER, seed=1)
    others = np.delete(np.arange(6), 2)
    without = CFL(rounds=9).fit(ct.Simulation(data.train[others], resident=False), LEARNER, seed=1)
    assert without.k == 2 and found.assignment[2] == -1
    same(found, without, others)


@pytest.mark.slow
def test_a_client_that_missed_the_split_chooses_once_there_is_a_choice(few):
    data, found = few
    (split,) = splits(found)
    first = split.after - 2

    def run(last):
        clients = silent(data.train, lambda ask: [4] if first <= ask <= last else [])
        found = CFL(rounds=11).fit(clients, LEARNER, seed=1)
        return [ask.clients.tolist() for ask in clients.asks], found, *splits(found)

    _, _, split = run(99)
    # asks are one per round, and one more for the split: it is back in the round after that
    t = split.after
    asked, found, split = run(t)
    assert split.after == t and split.asks == 1 and split.sizes == [[3, 2]]
    known = found.history.assignments()[:, 4]
    assert known[t - 1] == -1
    assert 4 not in asked[t + 1] and known[t] == -1  # both models are still the same
    assert 4 in asked[t + 2] and known[t + 1] == known[-1] == found.assignment[4]
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


# -- over Flower, and interrupted -------------------------------------------------------------------------


@pytest.mark.slow
def test_agrees_with_flower(few):
    data, _ = few
    algorithm = CFL(rounds=8, participation=5)
    simulated = algorithm.fit(ct.Simulation(data.train, resident=False), LEARNER, seed=1)
    grid = InProcessGrid(apps_of(LEARNER, data))
    real = algorithm.fit(FlowerFederation(grid, min_clients=6, poll=0.001), LEARNER, seed=1)
    assert real.k == 2 and ct.metrics.misclustering(real.assignment, data.truth) == 0
    same(simulated, real)
    assert grid.asks() == 8 + 1 + 1  # rounds, the split, the losses at the end
    for ours, theirs in zip(real.history.records, simulated.history.records, strict=True):
        assert (ours.bytes_down, ours.bytes_up) == (theirs.bytes_down, theirs.bytes_up)
        assert ours.sizes == theirs.sizes and ours.moved == theirs.moved


@pytest.mark.slow
@pytest.mark.parametrize("late", [1, 6])
def test_a_client_that_joins_late_finds_its_cluster(few, late):
    """Before the split, when it is a client of the only cluster, and after it, when it chooses."""
    data, _ = few
    apps = apps_of(LEARNER, data)
    grid = InProcessGrid(apps[:5])
    federation = FlowerFederation(grid, min_clients=5, poll=0.001)
    found = CFL(rounds=9).fit(
        federation, LEARNER, seed=1, observers=[Between({late: lambda: grid.join(apps[5])})]
    )
    (split,) = splits(found)
    assert late < split.after if late == 1 else late > split.after
    assert ct.metrics.misclustering(found.assignment, data.truth) == 0


def test_interrupted_around_a_split_or_before_the_last_look_it_ends_the_same(deep, tmp_path):
    data, _, whole = deep

    def run(path, *more):
        recorder = Recorder(RunFolder(path), every=0.0)
        return CFL(rounds=ROUNDS).fit(data.train, LEARNER, seed=0, observers=[recorder, *more])

    def told(path):
        lines = map(json.loads, (path / "rounds.jsonl").read_text().splitlines())
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    run(tmp_path / "whole")
    expected = told(tmp_path / "whole")
    assert len(expected) == ROUNDS + 2 + 1  # rounds, the splits, the last look
    split = next(n for n, line in enumerate(expected, 1) if line.get("name") == "split")
    for stop in (split - 1, split, len(expected) - 1):
        path = tmp_path / str(stop)
        with pytest.raises(Killed):
            run(path, Kill(1 + stop))  # the beginning is a moment, too
        found = run(path)
        np.testing.assert_array_equal(matrix(found.models), matrix(whole.models))
        np.testing.assert_array_equal(found.assignment, whole.assignment)
        assert told(path) == expected


# -- settings ---------------------------------------------------------------------------------------------


def test_an_experiment_file_can_name_it():
    for content in (
        {"rounds": 5},
        {"rounds": 5, "eps1": "10%", "eps2": 0.3, "gamma": 0.5, "participation": 0.5},
        {"rounds": 5, "preset": "authors", "max_clusters": 3, "weight": "examples"},
    ):
        algorithm = registry.build("algorithm", "cfl", content)
        assert algorithm == CFL(**content)
        described = registry.describe_algorithm(algorithm)
        assert described.pop("name") == "cfl" and registry.build("algorithm", "cfl", described) == algorithm
    with pytest.raises(ConfigError, match="there is no such setting"):
        registry.build("algorithm", "cfl", {"aggregate": "median"})


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"eps1": 0.0}, "eps1 must be 'auto', a positive length, or a share .* such as '10%', not 0.0"),
        ({"eps1": "a tenth"}, "eps1 must be"),
        ({"eps2": "-3%"}, "eps2 must be"),
        ({"eps2": "x%"}, "eps2 must be"),
        ({"eps2": True}, "eps2 must be"),
        ({"gamma": 1.0}, "gamma must be 'auto', or at least 0 and below 1, not 1.0"),
        ({"gamma": "none"}, "gamma must be"),
        ({"min_size": 0}, "min_size must be a whole number from 1 up, not 0"),
        ({"warmup": -1}, "warmup must be a whole number from 0 up, not -1"),
        ({"max_clusters": 0}, "max_clusters must be a whole number from 1 up, not 0"),
        ({"max_clusters": 2.5}, "max_clusters must be"),
        ({"preset": "paper"}, "preset must be 'authors', not 'paper'"),
        ({"weight": "money"}, "weight must be"),
        ({"participation": 99}, "more than the 24 clients"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(setting, words):
    with pytest.raises(SettingError, match=words):
        CFL(**{"rounds": 3, **setting}).fit(mixture().train, LEARNER)
