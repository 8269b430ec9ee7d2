"""FedSoft against a NumPy version that follows Algorithm 1 line by line, and what must hold of any run."""

import dataclasses
import json
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.exchanges import Overheard, alone, server_of
from support.in_process import InProcessGrid, app_of, apps_of
from support.observers import Between, Continue, Remember

import coterie as ct
from coterie import keys
from coterie.algorithms import driver
from coterie.algorithms.algorithm import unknown
from coterie.algorithms.fedsoft import FedSoft, State
from coterie.data.federated import Federated
from coterie.errors import FederationError, LearnerError, SettingError
from coterie.federation.exchange import Server
from coterie.flower import FlowerFederation
from coterie.models import stacked

DIM, K, LR, STEPS, DECAY = 3, 3, 0.05, 3, 0.9
SIZES = [5, 8, 12, 7, 16, 6, 9, 8, 14]
NAMES = list("abcdefghi")
SGD = ct.SGD(lr=LR, steps=STEPS, decay=DECAY)
ETA = 0.4


def learner(local=SGD):
    return ct.Learner(ct.models.Linear(), "squared", local)


def population(seed=0, sizes=SIZES, names=NAMES):
    """Clients whose examples each follow one of k models, drawn with proportions of the client's own."""
    rng = np.random.default_rng(seed)
    truth = 2 * rng.standard_normal((K, DIM))
    xs, ys = [], []
    for n in sizes:
        x, source = rng.standard_normal((n, DIM)), rng.choice(K, n, p=rng.dirichlet(np.ones(K)))
        xs.append(x)
        ys.append(np.sum(x * truth[source], axis=1) + 0.1 * rng.standard_normal(n))
    return ct.Shards.from_lists(xs, ys, names)


SHARDS = population()


def start(seed=0):
    return np.random.default_rng(seed + 100).standard_normal((K, DIM)).astype(np.float32)


def matrix(models):
    return np.asarray(stacked.to_matrix(models), float)


class Kept(Remember):
    """Keeps every state: `at[t]` is the one after t rounds, and what follows them."""

    @property
    def at(self):
        return {moment.place.done: stacked.take(moment.states, 0) for moment in self.moments}

    @property
    def begun(self):
        """The state before anything happened."""
        return stacked.take(self.moments[0].states, 0)

    def centres(self, t):
        return matrix(self.at[t].models)

    def own(self, t):
        return matrix(self.at[t].own)


def fit(algorithm, clients, local=SGD, seed=0):
    kept = Kept()
    return algorithm.fit(clients, learner(local), seed=seed, observers=[kept]), kept


# -- slow and obvious ----------------------------------------------------------------------------------------


def importance_of(x, y, centres, sigma, authors=False):
    """n_is, and u_is."""
    counts = np.zeros(len(centres))
    for i in range(len(y)):
        losses = [(y[i] - x[i] @ centre) ** 2 for centre in centres]
        counts[losses.index(min(losses))] += 1
    u = np.zeros(len(centres))
    for s in range(len(centres)):
        if authors:
            u[s] = counts[s] / len(y) if counts[s] > 0 else sigma
        else:
            u[s] = max(counts[s] / len(y), sigma)
    return counts, u


def aggregation_of(u, sizes):
    """v_si."""
    v = np.zeros((u.shape[1], len(sizes)))
    for s in range(u.shape[1]):
        whole = sum(u[i, s] * sizes[i] for i in range(len(sizes)))
        for i in range(len(sizes)):
            v[s, i] = u[i, s] * sizes[i] / whole
    return v


def ring_of(seed, t, s, name):
    """When a client rings for a cluster, at rate 1: from the seed, the round, the cluster and its id."""
    lot = int(keys.lots(f"selection/{seed}/{t}/{s}", keys.tokens([name]))[0])
    return -np.log((lot + 0.5) / 2**64)


def selection_of(v, count, seed, t, names):
    """Sel_s."""
    return [
        sorted(range(len(names)), key=lambda i: ring_of(seed, t, s, names[i]) / v[s, i])[:count]
        for s in range(len(v))
    ]


def descend(w, x, y, centres, pulls, t):
    for _ in range(STEPS):
        slope = -2 * x.T @ (y - x @ w) / len(y)
        for s in range(len(centres)):
            slope = slope + pulls[s] * (w - centres[s])
        w = w - LR * DECAY**t * slope
    return w


def solve(w, x, y, centres, pulls, t):
    left = 2 * x.T @ x / len(y) + (sum(pulls) + 1 / ETA) * np.eye(len(w))
    right = 2 * x.T @ y / len(y) + w / ETA
    for s in range(len(centres)):
        right = right + pulls[s] * centres[s]
    return np.linalg.solve(left, right)


def fedsoft(algorithm, clients, names, centres, own, seed, local_update):
    """Algorithm 1; the centres, own models and counts after every round."""
    centres, own, sizes = centres.copy(), own.copy(), [len(y) for _, y in clients]
    past = []
    for t in range(algorithm.rounds):
        if t % algorithm.interval == 0:
            both = [
                importance_of(x, y, centres, algorithm.smoother, algorithm.preset == "authors")
                for x, y in clients
            ]
            counts, u = (np.array(part) for part in zip(*both, strict=True))
        v = aggregation_of(u, sizes)
        if algorithm.select is None:
            selection = [range(len(clients))] * len(centres)
        else:
            selection = selection_of(v, algorithm.select, seed, t, names)
        for i in sorted({i for chosen in selection for i in chosen}):
            own[i] = local_update(own[i], *clients[i], centres, algorithm.pull * u[i], t)
        for s in range(len(centres)):
            if algorithm.select is None:
                centres[s] = sum(v[s, i] * own[i] for i in selection[s])
            else:
                centres[s] = sum(own[i] for i in selection[s]) / algorithm.select
        past.append((centres.copy(), own.copy(), counts.copy()))
    return past


def clients_of(shards):
    return [(np.asarray(x, float), np.asarray(y, float)) for x, y in shards]


# -- line by line --------------------------------------------------------------------------------------------


ALL = FedSoft(k=K, rounds=4, interval=2, smoother=0.1, pull=0.7)
SOME = dataclasses.replace(ALL, select=2)
PAIRS = dataclasses.replace(SOME, k=2)
AUTHORS = dataclasses.replace(ALL, select=3, smoother=0.3, preset="authors")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "algorithm, local, update",
    [(ALL, SGD, descend), (SOME, SGD, descend), (AUTHORS, ct.Proximal(lr=ETA), solve)],
    ids=["all", "some", "authors, proximal"],
)
def test_agrees_with_the_paper_line_by_line(algorithm, local, update, seed):
    shards = population(seed)
    algorithm = dataclasses.replace(algorithm, init=start(seed))
    found, kept = fit(algorithm, shards, local, seed)
    first = matrix(kept.begun.own)
    assert (first == first[0]).all()  # all clients start from one model
    begin = start(seed).astype(float)
    past = fedsoft(algorithm, clients_of(shards), shards.ids, begin, first, seed, update)
    for t, (centres, own, counts) in enumerate(past, 1):
        np.testing.assert_allclose(kept.centres(t), centres, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(kept.own(t), own, rtol=1e-3, atol=1e-4)
        if t % algorithm.interval and t < algorithm.rounds:  # otherwise they were counted once more since
            np.testing.assert_array_equal(kept.at[t].counts, counts)
    last = [
        importance_of(x, y, past[-1][0], algorithm.smoother, algorithm.preset == "authors")[1]
        for x, y in clients_of(shards)
    ]
    np.testing.assert_array_equal(found.assignment, np.argmax(last, axis=1))
    np.testing.assert_allclose(found.history.events[-1].details["importance"], last, atol=1e-5)
    np.testing.assert_allclose(found.shares, last, atol=1e-5)
    np.testing.assert_allclose(matrix(found.models), past[-1][0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(matrix(found.personal), past[-1][1], rtol=1e-3, atol=1e-4)
    losses = [[np.mean((y - x @ c) ** 2) for c in past[-1][0]] for x, y in clients_of(shards)]
    np.testing.assert_allclose(found.losses, losses, rtol=1e-3, atol=1e-4)


def test_the_clients_first_model_is_fresh_and_not_that_of_a_cluster():
    one, other = (fit(ALL, SHARDS, seed=seed)[1].begun for seed in range(2))
    assert np.abs(matrix(one.own)[0] - matrix(one.models)).max(axis=1).min() > 0.01
    assert np.abs(matrix(one.own)[0] - matrix(other.own)[0]).max() > 0.01


# -- importance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "smoother, preset, importance",
    [
        (0.2, None, [[0.85, 0.2, 0.2], [1.0, 0.2, 0.2], [0.2, 0.5, 0.5], [0, 0, 0]]),
        (0.2, "authors", [[0.85, 0.15, 0.2], [1.0, 0.2, 0.2], [0.2, 0.5, 0.5], [0, 0, 0]]),
        (0, None, [[0.85, 0.15, 0], [1, 0, 0], [0, 0.5, 0.5], [0, 0, 0]]),
    ],
)
def test_small_shares_are_smoothed(smoother, preset, importance):
    counts = jnp.array([[17, 3, 0], [4, 0, 0], [0, 5, 5], [0, 0, 0]])
    algorithm = FedSoft(k=3, smoother=smoother, preset=preset)
    np.testing.assert_allclose(algorithm.importance(counts), importance, rtol=1e-6)
    expected = np.array(importance) * np.array([20, 4, 10, 0])[:, None]
    np.testing.assert_allclose(algorithm.weights(counts), expected, rtol=1e-6)
    v = aggregation_of(np.array(importance), [20, 4, 10, 0])
    np.testing.assert_allclose(expected / expected.sum(axis=0), v.T)


def test_equal_centres_give_the_first_cluster():
    found, kept = fit(dataclasses.replace(ALL, init=np.repeat(start()[:1], K, axis=0)), SHARDS)
    assert kept.at[1].counts.tolist() == [[n, 0, 0] for n in SIZES]
    assert (found.history.assignments()[0] == 0).all()


# -- who is selected -----------------------------------------------------------------------------------------


def asked_of(counts, names=NAMES, present=None, seed=0):
    """Clients of which no more is known than how many examples are nearest to which centre."""
    here = np.arange(len(names)) if present is None else np.array(present)
    ids, tokens = np.array(names), keys.tokens(names)
    server = Server(learner=None, spec=None, ids=ids, tokens=tokens, present=here, seed=seed)
    counts, empty = jnp.asarray(counts), jnp.zeros(0)
    state = State(empty, unknown(len(names)), counts=counts, losses=empty, own=empty, first=empty)
    return server, state


COUNTS = np.random.default_rng(0).integers(0, 20, (len(NAMES), K))
ROUNDS = 50  # of which selections are looked at


def sequential(v, count):
    """How likely each is among the first `count`, drawn one after another: by every order there is."""
    inside = np.zeros(len(v))
    for order in permutations(range(len(v)), count):
        left, chance = 1.0, 1.0
        for i in order:
            chance *= v[i] / left
            left -= v[i]
        inside[list(order)] += chance
    return inside


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_clients_are_selected_as_often_as_they_matter_to_a_cluster(count):
    algorithm, draws = FedSoft(k=K, select=count, smoother=0.05), 4000
    known = asked_of(COUNTS, seed=7)
    parts = [algorithm.selected(*known, range(t, t + ROUNDS)) for t in range(0, draws, ROUNDS)]
    chosen = np.concatenate(parts)
    assert chosen.shape == (draws, len(NAMES), K) and (chosen.sum(axis=1) == count).all()
    v = aggregation_of(np.asarray(algorithm.importance(COUNTS)), COUNTS.sum(axis=1))
    for s in range(K):
        p = sequential(v[s], count)
        assert np.abs(chosen[:, :, s].mean(axis=0) - p).max() < 4.5 * np.sqrt(0.25 / draws)
        assert p.max() > 2 * p.min()  # it would have been noticed


def test_a_selection_depends_on_ids_and_not_on_their_order():
    algorithm, order = FedSoft(k=K, select=3), np.random.default_rng(1).permutation(len(NAMES))
    plain = algorithm.selected(*asked_of(COUNTS, seed=7), range(3, 3 + ROUNDS))
    shuffled = algorithm.selected(
        *asked_of(COUNTS[order], np.array(NAMES)[order], seed=7), range(3, 3 + ROUNDS)
    )
    np.testing.assert_array_equal(plain[:, order], shuffled)
    np.testing.assert_array_equal(plain[2:4], algorithm.selected(*asked_of(COUNTS, seed=7), range(5, 7)))
    assert (plain != algorithm.selected(*asked_of(COUNTS, seed=8), range(3, 3 + ROUNDS))).any()
    assert (plain[0] != plain[1]).any() and (plain[:, :, 0] != plain[:, :, 1]).any()


def test_a_selection_is_that_of_the_definition():
    v = aggregation_of(np.asarray(FedSoft(k=K).importance(COUNTS)), COUNTS.sum(axis=1))
    chosen = FedSoft(k=K, select=4).selected(*asked_of(COUNTS, seed=2), range(5, 7))[0]
    wanted = selection_of(v, 4, 2, 5, NAMES)
    assert [np.flatnonzero(chosen[:, s]).tolist() for s in range(K)] == [sorted(sel) for sel in wanted]


def test_nobody_is_selected_who_is_away_or_has_told_nothing_or_has_nothing_to_do_with_a_cluster():
    counts = COUNTS.copy()
    counts[4] = 0
    counts[:, 2], counts[5, 2] = 0, 3
    algorithm = FedSoft(k=K, select=3, smoother=0)
    chosen = algorithm.selected(*asked_of(counts, present=[0, 1, 2, 4, 5, 6]), range(ROUNDS))
    assert not chosen[:, [3, 4, 7, 8]].any()
    assert (chosen[:, :, 0].sum(axis=1) == 3).all()
    assert chosen[:, 5, 2].all() and (chosen[:, :, 2].sum(axis=1) == 1).all()
    # nobody is there: they are waited for
    waited = algorithm.selected(*asked_of(counts, present=[4]), range(ROUNDS))
    assert (waited[:, :, 0].sum(axis=1) == 3).all() and not waited[:, 4].any()


def test_those_that_are_asked_are_the_union_and_the_other_places_are_blank():
    algorithm, (server, state) = FedSoft(k=K, select=2), asked_of(COUNTS, seed=3)
    places, member = algorithm.draw(server, state, range(ROUNDS))
    chosen = algorithm.selected(server, state, range(ROUNDS))
    assert places.shape == (ROUNDS, 6) and member.shape == (ROUNDS, 6, K)
    sizes = set()
    for row, inside, sets in zip(places, member, chosen, strict=True):
        union = np.flatnonzero(sets.any(axis=1)).tolist()
        assert row.tolist() == union + [len(NAMES)] * (6 - len(union))
        # for which clusters each of them was selected; nobody, for none
        np.testing.assert_array_equal(inside[: len(union)], sets[union])
        assert not inside[len(union) :].any()
        sizes.add(len(union))
    assert len(sizes) > 1
    assert FedSoft(k=K, select=5).draw(server, state, range(2)).clients.shape == (2, len(NAMES))
    assert FedSoft(k=K).draw(server, state, range(2)) is None
    counts = COUNTS.copy()
    counts[[1, 4]] = 0
    known = FedSoft(k=K).draw(*asked_of(counts), range(2))
    assert known.clients.tolist() == [[0, 2, 3, 5, 6, 7, 8]] * 2 and known.more is None


# -- what changes nothing ------------------------------------------------------------------------------------


def same(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def test_the_order_of_clients_changes_nothing():
    order = np.random.default_rng(2).permutation(len(NAMES))
    found, kept = fit(SOME, SHARDS, seed=4)
    shuffled, mixed = fit(SOME, SHARDS[order], seed=4)
    np.testing.assert_array_equal(shuffled.assignment, found.assignment[order])
    same(matrix(shuffled.models), matrix(found.models))
    same(mixed.own(4), kept.own(4)[order])
    assert [r.asked for r in shuffled.history] == [r.asked for r in found.history]


def test_rounds_compile_once_however_many_are_selected():
    fit(SOME, SHARDS, seed=0)
    before = driver.compiled_round._cache_size()
    found, _ = fit(SOME, SHARDS, seed=11)
    assert driver.compiled_round._cache_size() == before
    assert len({r.asked for r in found.history}) > 1


# -- what is told --------------------------------------------------------------------------------------------


def test_history_tells_what_travelled():
    found, _ = fit(SOME, SHARDS)
    model = DIM * 4
    for record in found.history:
        assert 2 <= record.asked == record.answered <= 6
        assert record.bytes_down == record.asked * (
            K * model + 4 + model + K * 4
        )  # centres, round; own, pulls
        assert record.bytes_up == record.asked * (model + 4)  # own, loss
        assert not record.missing
    assert [event.after for event in found.history.events] == [0, 2, 4]
    for event in found.history.events:
        assert event.name == "importance" and event.asks == 1
        assert event.bytes_down == len(SIZES) * K * model
        assert event.bytes_up == len(SIZES) * K * (4 + 4)  # counts, losses
        json.loads(event.to_line())


def test_an_estimation_says_in_a_sentence_how_sure_clients_are():
    found, kept = fit(SOME, SHARDS)
    *others, last = found.history.events
    sure = np.mean(kept.at[4].counts.max(axis=1) / np.array(SIZES))
    sizes = np.bincount(found.assignment, minlength=K)
    assert last.text == (
        f"of a client's examples {sure:.0%} are nearest to one centre, on average; "
        f"clusters of {sizes[0]}, {sizes[1]}, {sizes[2]} clients."
    )
    assert last.details["sure"] == pytest.approx(sure)
    assert all(event.details.keys() == {"sure"} for event in others)


def test_the_result_is_that_of_any_clustering(tmp_path):
    found, kept = fit(ALL, SHARDS)
    same(found.models, kept.at[4].models)
    assert found.ids.tolist() == SHARDS.ids.tolist() and found.sizes.sum() == len(SHARDS)
    np.testing.assert_array_equal(found.assign(SHARDS), np.argmin(found.losses, axis=1))
    own = found.losses[np.arange(len(SHARDS)), found.assignment]
    assert found.evaluate(SHARDS).loss == pytest.approx(own.mean(), rel=1e-4)
    found.save(tmp_path)
    again = ct.load(tmp_path, learner())
    np.testing.assert_array_equal(again.assignment, found.assignment)
    assert again.history.events == found.history.events


# -- clients that do not answer ------------------------------------------------------------------------------


DROPPING = ct.Simulation(SHARDS, drop=0.3)


def test_clients_that_do_not_answer_are_left_out():
    """One client per cluster: its centre is that client's model, or stays."""
    algorithm = dataclasses.replace(SOME, select=1)
    server = server_of(DROPPING, learner(), seed=6)
    found, kept = fit(algorithm, DROPPING, seed=6)
    seen = set()
    for t, log in enumerate(found.history):
        chosen = algorithm.selected(server, kept.at[t], range(t, t + 2))[0]
        answered = np.abs(kept.own(t + 1) - kept.own(t)).max(axis=1) > 0
        assert not answered[~chosen.any(axis=1)].any()
        assert (log.asked, log.answered) == (chosen.any(axis=1).sum(), answered.sum())
        missing = [] if log.asked == log.answered else SHARDS.ids[chosen.any(axis=1) & ~answered].tolist()
        assert sorted(name for names in log.missing.values() for name in names) == missing
        for s in range(K):
            (i,) = np.flatnonzero(chosen[:, s])
            expected = kept.own(t + 1)[i] if answered[i] else kept.centres(t)[s]
            np.testing.assert_allclose(kept.centres(t + 1)[s], expected, rtol=1e-6)
            seen.add((bool(answered[i]), log.asked))
    assert {here for here, _ in seen} == {True, False} and len({asked for _, asked in seen}) > 1


def test_with_all_clients_the_weights_are_those_of_the_clients_that_answered():
    found, kept = fit(ALL, DROPPING, seed=0)
    silent = np.asarray(kept.at[1].counts).sum(axis=1) == 0
    assert 0 < silent.sum() < len(SHARDS)
    assert "did not answer" in found.history.events[0].text
    assert found.history[0].asked == (~silent).sum()  # of the others nothing is known yet
    answered = np.abs(kept.own(1) - kept.own(0)).max(axis=1) > 0
    assert found.history[0].answered == answered.sum() < found.history[0].asked
    weights = np.asarray(ALL.weights(kept.at[1].counts)) * answered[:, None]
    means = weights.T @ kept.own(1) / weights.sum(axis=0)[:, None]
    np.testing.assert_allclose(kept.centres(1), means, rtol=1e-4, atol=1e-5)
    # what a client has told counts until it tells something else
    for t in (2, 4):
        told = np.asarray(kept.at[t].counts).sum(axis=1)
        assert (told >= np.asarray(kept.at[t - 1].counts).sum(axis=1)).all()
        assert set(told.tolist()) <= {0, *SIZES}
    never = told == 0
    assert (found.assignment[never] == -1).all() and (found.assignment[~never] >= 0).all()


def test_if_nobody_tells_anything_it_ends_with_a_sentence():
    silent = Overheard(ct.Simulation(SHARDS), lambda number, name: range(len(SHARDS)), junk=0)
    with pytest.raises(FederationError, match="no client has told which centres fit its examples"):
        fit(ALL, silent)


def test_divergence_is_said_and_not_returned():
    with pytest.raises(LearnerError, match="training diverged in"):
        fit(ALL, SHARDS, local=dataclasses.replace(SGD, lr=1e30))


# -- interrupted ---------------------------------------------------------------------------------------------


def test_resumed_at_any_moment_it_ends_the_same():
    plain, kept = fit(SOME, SHARDS, seed=3)
    assert len(kept.moments) == 1 + 4 + 3  # the beginning, rounds, and counts of examples
    for n in range(len(kept.moments)):
        so_far = [record for moment in kept.moments[: n + 1] for record in moment.new]
        again = Kept()
        observers = [Continue(kept.moments[n], so_far), again]
        found = SOME.fit(SHARDS, learner(), seed=3, observers=observers)
        np.testing.assert_array_equal(matrix(found.models), matrix(plain.models))
        np.testing.assert_array_equal(matrix(found.personal), matrix(plain.personal))
        np.testing.assert_array_equal(found.shares, plain.shares)
        np.testing.assert_array_equal(found.assignment, plain.assignment)
        assert len(again.moments) == len(kept.moments) - 1 - n
        assert len(found.history.records) == 4 + 3
        assert [r.loss for r in found.history] == [r.loss for r in plain.history]


# -- over Flower ---------------------------------------------------------------------------------------------


EQUAL = Federated(population(1, [8] * 5, NAMES[:5]))  # so that all nodes have one program


def over_flower(grid, algorithm=PAIRS, seed=5, happen=None, **settings):
    kept = Kept()
    federation = FlowerFederation(grid, **{"min_clients": 5, "poll": 0.001, **settings})
    return algorithm.fit(federation, learner(), seed=seed, observers=[kept, Between(happen or {})]), kept


@pytest.mark.slow
def test_flower_and_simulation_agree_and_only_what_is_said_travels():
    grid = InProcessGrid(apps_of(learner(), EQUAL))
    real, theirs = over_flower(grid)
    simulated, ours = fit(PAIRS, EQUAL.train, seed=5)
    np.testing.assert_array_equal(real.assignment, simulated.assignment)
    same((theirs.centres(4), theirs.own(4)), (ours.centres(4), ours.own(4)))
    for a, b in zip(real.history, simulated.history, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert (a.asked, a.answered, a.missing) == (b.asked, b.answered, b.missing)
        assert (a.bytes_down, a.bytes_up) == (b.bytes_down, b.bytes_up)
    assert any(r.asked < 4 for r in real.history)  # a place was blank
    for a, b in zip(real.history.events, simulated.history.events, strict=True):
        assert (a.text, a.details, a.asks) == (b.text, b.details, b.asks)
        assert (a.bytes_down, a.bytes_up) == (b.bytes_down, b.bytes_up)
    assert grid.asks() == 4 + 3
    weight = "layers.0.weight"
    expected = {
        "CountNearest": ({f"models:{weight}"}, set(), {"report/counts", "report/losses"}),
        "TrainBetween": (
            {f"models:{weight}", "round"},
            {f"model:{weight}", "pulls"},
            {f"value:{weight}", "report/loss"},
        ),
    }
    seen = {"CountNearest": 0, "TrainBetween": 0}
    for node in grid.nodes.values():
        asks = [m.content for m in node.heard if m.metadata.message_type == "query.ask"]
        for ask, answer in zip(asks, node.said[-len(asks) :], strict=True):
            everybody, each, back = expected[ask["ask"]["task"]]
            assert (set(ask["everybody"]), set(ask["each"]), set(answer["reply"])) == (everybody, each, back)
            seen[ask["ask"]["task"]] += 1
    assert seen == {"CountNearest": 3 * 5, "TrainBetween": real.history.total("answered")}


@pytest.mark.slow
def test_clients_that_leave_or_join_over_flower():
    """Client a is away in the second round; client z comes after it, and is selected once it has counted."""
    grid = InProcessGrid(apps_of(learner(), EQUAL))

    def leave():
        grid.nodes[1].online = False

    def come():
        grid.nodes[1].online = True
        grid.join(app_of(learner(), population(2, [8], ["z"])))

    found, kept = over_flower(grid, happen={1: leave, 2: come}, min_replies=0.5)
    assert found.ids.tolist() == [*NAMES[:5], "z"]
    assert [len(kept.at[t].counts) for t in (2, 3)] == [5, 6]
    np.testing.assert_array_equal(kept.own(2)[0], kept.own(1)[0])  # whoever is away is not drawn
    assert all("a" not in name for name in found.history[1].missing.values())
    counts = np.asarray(kept.at[4].counts)
    assert counts[-1].sum() == 8 and found.assignment[-1] >= 0
    same(kept.own(3)[-1], matrix(kept.begun.own)[0])  # from where all began


# -- what it is for ------------------------------------------------------------------------------------------


SHARES = np.repeat([0.9, 0.3], 4)  # of the first source in each client's examples
THETA = np.array([[2.0, 1.0], [-1.0, 1.5]])
EXAMPLES, PULL = 500, 0.05
MIXED = FedSoft(k=2, rounds=40, smoother=0.02, pull=PULL)
LONG = ct.SGD(lr=0.1, steps=10)


@pytest.fixture(scope="module")
def mixtures():
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for share in SHARES:
        x = rng.standard_normal((EXAMPLES, 2))
        source = (np.arange(EXAMPLES) >= share * EXAMPLES).astype(int)
        xs.append(x)
        ys.append(np.sum(x * THETA[source], axis=1) + 0.05 * rng.standard_normal(EXAMPLES))
    return ct.Shards.from_lists(xs, ys)


def rest(clients, u):
    """Where the centres come to rest: each a mean of models, and every model where its h_i is smallest."""
    v, centres = aggregation_of(u, [len(y) for _, y in clients]), THETA.copy()
    for _ in range(300):
        own = [
            np.linalg.solve(
                2 * x.T @ x / len(y) + PULL * u[i].sum() * np.eye(2),
                2 * x.T @ y / len(y) + PULL * u[i] @ centres,
            )
            for i, (x, y) in enumerate(clients)
        ]
        centres = v @ np.array(own)
    return centres


@pytest.mark.slow
@pytest.mark.parametrize("select", [None, 3])
def test_finds_the_mixture_of_every_client(mixtures, select):
    algorithm = dataclasses.replace(MIXED, select=select)
    found, kept = fit(algorithm, mixtures, LONG)
    u, truth = np.asarray(algorithm.importance(kept.at[40].counts)), np.stack([SHARES, 1 - SHARES], axis=1)
    order = list(min(permutations(range(2)), key=lambda p: np.abs(u[:, list(p)] - truth).sum()))
    np.testing.assert_allclose(u[:, order], truth, atol=0.06)
    np.testing.assert_array_equal(found.assignment, np.array(order)[(SHARES < 0.5).astype(int)])
    if select is not None:
        return  # the centres of a round are the means of a few models, as it happens
    apart, centres = np.linalg.norm(THETA[0] - THETA[1]), matrix(found.models)[order]
    for s in range(2):
        away = np.linalg.norm(centres[s] - THETA, axis=1)
        assert away[s] < 0.4 * apart < 0.6 * apart < away[1 - s]
    # a mean of models of mixtures lies between the sources: exactly here
    assert np.abs(centres - rest(clients_of(mixtures), u[:, order])).max() < 0.01 * apart


@pytest.mark.slow
def test_finds_clusters_of_clients_that_are_no_mixtures():
    data = ct.data.mixed_regression(k=2, clients=8, examples=EXAMPLES, dim=2, noise=0.05, scale=3.0, seed=1)
    apart, away = np.linalg.norm(data.models[0] - data.models[1]), []
    for seed in range(3):
        found, _ = fit(dataclasses.replace(MIXED, select=3, smoother=0.0), data.train, LONG, seed)
        assert ct.metrics.misclustering(found.assignment, data.truth) == 0
        away.append(ct.metrics.parameter_distance(found.models, data.models) / apart)
    # a stranger of whom a few examples are nearer is selected now and then: it moves a mean of 3 by a third
    assert np.median(away) < 0.01 and max(away) < 0.4


# -- settings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 0}, "k must be at least 1, not 0"),
        ({"k": 10}, "k=10 clusters need at least as many clients; there are 9"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"select": 0}, "select must be a number of clients from 1 up, or None for all, not 0"),
        ({"select": True}, "select must be a whole number, not True"),
        ({"select": 10}, "select=10 is more than the 9 clients there are"),
        ({"interval": 0}, "interval must be a number of rounds from 1 up, not 0"),
        ({"smoother": -0.1}, "smoother must be at least 0 and below 1, not -0.1"),
        ({"smoother": 1.0}, "smoother must be at least 0 and below 1"),
        ({"pull": -1.0}, "pull must be 0 or a positive number, not -1.0"),
        ({"pull": float("nan")}, "pull must be a number, not nan"),
        ({"preset": "paper"}, "preset must be 'authors', not 'paper'"),
        ({"participation": 0.5}, "who takes part in FedSoft is what `select` says: leave participation out"),
        ({"init": np.zeros((2, DIM))}, "k is 3 but 2 initial models are given"),
        ({"init": np.zeros((K, DIM + 1))}, "shape"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(SettingError, match=words):
        dataclasses.replace(SOME, **change).fit(SHARDS, learner())


@pytest.mark.parametrize(
    "rounds, interval, pauses", [(5, 2, [0, 2, 4, 5]), (4, 2, [0, 2, 4]), (2, 9, [0, 2])]
)
def test_importance_is_estimated_every_so_many_rounds_and_at_the_end(rounds, interval, pauses):
    simulation = ct.Simulation(SHARDS).with_learner(learner())
    server, algorithm = server_of(simulation, learner()), FedSoft(k=K, rounds=rounds, interval=interval)
    state, done, found = alone(simulation, algorithm.start(server, server.start_key(0))), 0, []
    while found == [] or found[-1] < done:
        pause = alone(simulation, algorithm.pause(server, state, done))
        assert pause.note.name == "importance"
        found.append(done)
        done += pause.rounds
    assert found == pauses
