"""Rounds that ask different numbers of clients have places for the most of them; some stay blank."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.buckets import many_buckets
from support.in_process import InProcessGrid, apps_of

import coterie as ct
from coterie.aggregate import Summing
from coterie.algorithms import records
from coterie.algorithms.records import Outcome
from coterie.data.federated import Federated
from coterie.errors import FederationError, SettingError
from coterie.federation import participants as engine
from coterie.federation.protocol import Answers, Traffic
from coterie.flower import FlowerFederation
from coterie.learn.tasks import ChooseAndTrain, CountExamples
from coterie.models import stacked

SIZES = [4, 3, 8, 4, 7, 4]  # in two buckets
NOBODY = len(SIZES)
with many_buckets:
    DATA = ct.data.mixed_regression(k=2, clients=NOBODY, examples=SIZES, dim=3, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2))
ASKED = np.array([NOBODY, 4, 1, NOBODY, 0])
REAL = ASKED < NOBODY


def flower(grid=None, **settings):
    """Clients a to f, at nodes 1 to 6."""
    named = Federated(ct.Shards.from_lists(*zip(*DATA.train, strict=True), list("abcdef")))
    grid = grid or InProcessGrid(apps_of(LEARNER, named))
    return FlowerFederation(grid, min_clients=NOBODY, poll=0.001, **settings), grid


FEDERATIONS = {
    "compiled": lambda: ct.Simulation(DATA.train),
    "streamed": lambda: ct.Simulation(DATA.train, resident=False),
    "flower": lambda: flower()[0],
}


def ask(federation, positions, reduce=None):
    """What IFCA asks, with the numbers that each is sent alone."""
    models = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3)), jnp.float32)
    one = LEARNER.for_data(DATA.train.spec).shapes(DATA.train.spec)
    task = ChooseAndTrain(stacked.from_matrix(models, one), jnp.asarray(0), send="gradients")
    return federation.with_learner(LEARNER).ask(
        jax.tree.map(lambda a: a[None], task),
        only=jnp.where(jnp.asarray(positions) == 1, 0, -1)[None],
        clients=federation.select(np.asarray(positions)),
        key=jax.random.key(1),
        reduce=reduce,
        starts=1,
    )


@pytest.fixture(scope="module")
def alone():
    """The same clients, asked without blank places among them."""
    federation = FEDERATIONS["compiled"]()
    return ask(federation, ASKED[REAL]), ask(federation, ASKED[REAL], Summing(2))


@pytest.mark.parametrize("name", ["compiled", pytest.param("streamed", marks=pytest.mark.slow), "flower"])
def test_nobody_is_asked_in_a_blank_place(name, alone):
    federation = FEDERATIONS[name]()
    kept, summed = alone
    answers = ask(federation, ASKED)
    np.testing.assert_array_equal(answers.clients, ASKED)
    np.testing.assert_array_equal(answers.answered[0], REAL)
    np.testing.assert_array_equal(answers.traffic.sent, REAL)
    np.testing.assert_array_equal(np.asarray(answers.cluster)[:, REAL], kept.cluster)
    for mine, theirs in ((answers.value, kept.value), (answers.report, kept.report)):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(np.asarray(a)[:, REAL], b, rtol=1e-5, atol=1e-6),
            mine,
            theirs,
        )
    down, spared, up = answers.traffic.total(np.asarray(answers.answered[0]))
    assert (down, spared, up) == kept.traffic.total(np.ones(3, bool))
    assert down + spared == 3 * (2 * 3 * 4 + 4 + 4) and spared == 3 * 4  # one was sent one of two models
    sums = ask(federation, ASKED, Summing(2)).value
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), sums, summed.value)


def test_nobody_is_asked_in_a_blank_place_when_clients_go_one_by_one():
    federation = ct.Simulation(DATA.train, debug=True).with_learner(LEARNER)
    answers = federation.ask(CountExamples(), clients=federation.select(ASKED))
    np.testing.assert_array_equal(answers.answered, REAL)
    assert np.asarray(answers.report.examples)[REAL].tolist() == [7, 3, 4]


@pytest.mark.parametrize("name", ["compiled", "streamed", "flower"])
@pytest.mark.parametrize(
    "positions",
    [[-1], [0, NOBODY + 1], [NOBODY, NOBODY], [], [[0, 1], [NOBODY, NOBODY]], np.zeros((0, 3), int)],
    ids=["negative", "too many", "only blank", "empty", "a blank round", "no rounds"],
)
def test_positions_of_no_meaning_are_refused(name, positions):
    with pytest.raises(
        SettingError, match=r"between 0 and 5, at least one in every round; 6 stands for nobody"
    ):
        FEDERATIONS[name]().select(np.array(positions, int))


def test_a_blank_place_needs_no_reply():
    """All of those asked must answer, or two of three: those in blank places are no part of it."""
    lenient, grid = flower(min_replies=2)
    strict, _ = flower(grid, min_replies=1.0, wait=0.01)
    for federation in (lenient, strict):
        assert federation.clients == NOBODY
        ask(federation, ASKED)
        assert grid.exchanges[-1] == ("query.ask", [1, 2, 5])
    grid.nodes[2].online = False
    answers = ask(lenient, ASKED)
    np.testing.assert_array_equal(answers.answered[0], REAL & (ASKED != 1))
    assert answers.failures == ((1, "not connected"),)
    with pytest.raises(
        FederationError, match=r"2 of 3 clients answered and 3 are needed \(b: not connected\)"
    ):
        ask(strict, ASKED)


def test_the_history_knows_nothing_of_blank_places():
    nothing = Traffic(jnp.asarray(REAL), jnp.zeros(5, bool), 10, 0, 1)
    answered = REAL & (ASKED != 1)
    known, work = np.zeros((1, NOBODY), int), (4, 2)
    sizes = np.array([[NOBODY, 0]])
    outcome = Outcome(np.zeros(1), known, sizes, ASKED, answered, nothing, work)
    log = records.log(3, outcome, outcome.assignment, 0.1, np.array(list("abcdef")))
    assert (log.asked, log.answered, log.missing) == (3, 2, {"no answer": ["b"]})
    assert (log.bytes_down, log.bytes_up) == (30, 2)
    assert (log.losses, log.updates, log.sizes) == (4, 2, [[NOBODY, 0]])


def test_what_is_known_is_updated_by_those_who_answered():
    """A blank place is nobody's: not the last client's either, where an index beyond the end might lead."""
    asked = jnp.array([NOBODY, 5, 1, NOBODY, 0, NOBODY])
    answered = jnp.array([False, True, False, False, True, False])
    told = {"cluster": jnp.arange(10, 16), "labels": jnp.arange(12.0).reshape(6, 2)}
    known = {"cluster": jnp.full(NOBODY, -1), "labels": jnp.full((NOBODY, 2), -1.0)}
    traffic = Traffic(asked < NOBODY, jnp.zeros(6, bool), 0, 0, 0)
    answers = Answers(asked, answered, None, jnp.zeros(6, int), jnp.ones(6), value=None, traffic=traffic)
    for update in (Answers.updated, jax.jit(Answers.updated)):
        after = update(answers, known, told)
        assert after["cluster"].tolist() == [14, -1, -1, -1, -1, 11]  # 1 was asked in vain
        assert after["labels"].tolist() == [[8, 9], *[[-1, -1]] * 4, [2, 3]]
    # and all that is known stays where nobody answers
    silent = eqx.tree_at(lambda a: a.answered, answers, jnp.zeros(6, bool))
    jax.tree.map(np.testing.assert_array_equal, silent.updated(known, told), known)


# -- room for clients that are drawn again and again ---------------------------------------------------------


BUCKETS = np.split(np.random.default_rng(1).permutation(400), [200, 320, 370])


def draw(rng, rounds):
    """Clients of 400, equally likely, fewer of them in the first round."""
    drawn = np.stack([np.sort(rng.permutation(400)[:60]) for _ in range(rounds)])
    drawn[0, 50:] = 400
    return drawn


@pytest.mark.parametrize("rounds", [2, 30])
@pytest.mark.parametrize("devices", [1, 3])
def test_every_client_has_a_row(devices, rounds):
    drawn = draw(np.random.default_rng(0), rounds)
    seen = np.zeros(drawn.shape, int)
    for members, (rows, places) in zip(BUCKETS, engine._rows_of(drawn, BUCKETS, devices, 400), strict=True):
        per_device = -(-len(members) // devices)
        device = np.arange(rows.shape[1]) // (rows.shape[1] // devices)
        for t, (row, place) in enumerate(zip(rows, places, strict=True)):
            used = place < 60
            np.testing.assert_array_equal(members[(device * per_device + row)[used]], drawn[t, place[used]])
            seen[t, place[used]] += 1
    np.testing.assert_array_equal(seen, drawn < 400)


@pytest.mark.parametrize("devices", [1, 3])
def test_clients_that_are_drawn_again_and_again_mostly_need_as_many_rows(devices):
    rng = np.random.default_rng(0)

    def shapes(rounds):
        found = engine._rows_of(draw(rng, rounds), BUCKETS, devices, 400)
        return tuple(rows.shape[1] for rows, _ in found)

    several = [shapes(2) for _ in range(100)]
    assert len(set(several)) <= 5
    assert np.mean([sum(each) for each in several]) < 2 * 60
    # as many rounds as are worth it have a program of their own, with no row too many
    assert sum(shapes(engine.MANY)) < max(map(sum, several))
