"""A model for each client, trained alone, against NumPy; all rounds are one exchange."""

import numpy as np
import pytest
from support.exchanges import Overheard
from support.in_process import InProcessGrid, apps_of
from support.observers import Remember
from support.references import local_update, loss

import coterie as ct
from coterie import keys
from coterie.errors import LearnerError, SettingError
from coterie.flower import FlowerFederation, wire
from coterie.models import stacked

DIM, LR, STEPS, ROUNDS = 4, 0.05, 3, 4
SIZES = [5, 9, 3, 17, 7, 6]
CLIENTS = len(SIZES)
MODEL, NUMBER, FLAG = DIM * 4, 4, 1  # bytes
DATA = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=SIZES, dim=DIM, noise=0.3, seed=0)
# over Flower clients of one size have one program; padded as the others are
EQUAL = ct.data.mixed_regression(k=2, clients=CLIENTS, examples=max(SIZES), dim=DIM, noise=0.3, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=STEPS))


def fitted(train=DATA.train, seed=0, **settings):
    """What it finds, and the model that all start from."""
    watch = Remember()
    found = ct.Local(**{"rounds": ROUNDS, **settings}).fit(train, LEARNER, seed=seed, observers=[watch])
    (first,) = np.asarray(stacked.to_matrix(stacked.take(watch.moments[0].states.models, 0)), float)
    return found, first


def by_hand(first, takes_part, data=DATA):
    """Every client's model in the end, and the mean loss of those that take part before each round."""
    models, losses = np.repeat(first[None], CLIENTS, axis=0), []
    for members in takes_part.T:
        clients = [(i, *data.train.client(i)) for i in np.flatnonzero(members)]
        losses.append(np.mean([loss(models[i], x, y) for i, x, y in clients]))
        for i, x, y in clients:
            models[i] = local_update(models[i], x, y, LR, STEPS)
    return models, losses


def agrees(found, models):
    np.testing.assert_allclose(stacked.to_matrix(found.models), models, rtol=1e-4, atol=1e-5)


EVERYBODY = np.ones((CLIENTS, ROUNDS), bool)


def test_each_client_trains_alone_from_the_same_model_in_one_exchange():
    found, first = fitted()
    models, losses = by_hand(first, EVERYBODY)
    agrees(found, models)
    np.testing.assert_array_equal(found.assignment, np.arange(CLIENTS))
    assert found.k == CLIENTS
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-4)
    assert [(r.round, r.asked, r.answered) for r in found.history] == [
        (t, CLIENTS, CLIENTS) for t in range(ROUNDS)
    ]
    assert [r.changed for r in found.history] == [CLIENTS, 0, 0, 0]
    assert not found.history.events  # nobody is asked for anything else

    assert [r.bytes_down for r in found.history] == [CLIENTS * MODEL, 0, 0, 0]
    assert [r.bytes_up for r in found.history] == [CLIENTS * (MODEL + ROUNDS * NUMBER), 0, 0, 0]
    assert [log.updates for log in found.history.logs] == [CLIENTS * ROUNDS, 0, 0, 0]


def test_a_client_trains_in_the_rounds_for_which_it_is_drawn():
    seed, tokens = 0, keys.tokens(DATA.train.ids)
    found, first = fitted(seed=seed, participation=2)
    drawn = [keys.participants(seed, t, tokens, 2) for t in range(ROUNDS)]
    takes_part = np.array([[i in members for members in drawn] for i in range(CLIENTS)])
    often = takes_part.sum(axis=1)
    assert 0 in often and often.max() > 1  # somebody never, somebody more than once
    models, losses = by_hand(first, takes_part)
    agrees(found, models)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-4)
    # who is never drawn is never asked, and has no model of its own
    np.testing.assert_array_equal(found.assignment, np.where(often > 0, np.arange(CLIENTS), -1))
    asked = (often > 0).sum()
    assert found.history[0].bytes_down == asked * (MODEL + ROUNDS * FLAG)
    assert found.history[0].bytes_up == asked * (MODEL + ROUNDS * NUMBER)
    assert found.history.logs[0].updates == takes_part.sum()
    assert all((r.asked, r.answered, r.missing) == (2, 2, {}) for r in found.history)
    # a client has a model from its first round on
    since = np.cumsum(takes_part, axis=1) > 0
    np.testing.assert_array_equal(
        found.history.assignments().T, np.where(since, np.arange(CLIENTS)[:, None], -1)
    )


def test_rounds_of_minibatches_are_drawn_anew():
    # one step on one example moves a model along that example: two steps on the same one would, too
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=LR, steps=1, batch_size=1))
    watch = Remember()
    found = ct.Local(rounds=2).fit(EQUAL.train, learner, observers=[watch])
    first = np.asarray(stacked.to_matrix(stacked.take(watch.moments[0].states.models, 0)))
    moved = np.asarray(stacked.to_matrix(found.models)) - first
    along = [
        np.abs(x @ m) / np.linalg.norm(x, axis=1) / np.linalg.norm(m)
        for (x, _), m in zip(EQUAL.train, moved, strict=True)
    ]
    assert (
        sum(each.max() < 0.9999 for each in along) > CLIENTS / 2
    )  # now and then the same one is drawn again


def test_who_does_not_answer_keeps_the_model_all_start_from():
    lost = np.isin(range(CLIENTS), [1, 4])
    found, first = fitted(Overheard(ct.Simulation(DATA.train), lambda number, name: np.flatnonzero(lost)))
    np.testing.assert_array_equal(found.assignment < 0, lost)
    models, losses = by_hand(first, EVERYBODY & ~lost[:, None])
    agrees(found, models)
    names = tuple(str(i) for i in np.flatnonzero(lost))
    for record, mean in zip(found.history, losses, strict=True):
        assert record.missing == {"no answer": names}
        assert (record.asked, record.answered) == (CLIENTS, CLIENTS - lost.sum())
        assert record.loss == pytest.approx(mean, rel=1e-4)


def test_a_client_that_diverges_does_not_stop_the_others():
    x, y = map(list, zip(*DATA.train, strict=True))
    x[2] = x[2] * 1e12
    found, first = fitted(ct.Shards.from_lists(x, y))
    assert found.assignment.tolist() == [0, 1, -1, 3, 4, 5]
    takes_part = EVERYBODY.copy()
    takes_part[2] = False
    models, losses = by_hand(first, takes_part)
    agrees(found, models)
    np.testing.assert_allclose([r.loss for r in found.history], losses, rtol=1e-4)
    with pytest.raises(LearnerError, match="diverged where clients trained alone"):
        ct.Local(rounds=ROUNDS).fit(ct.Shards.from_lists([a * 1e12 for a in x], y), LEARNER)


def test_evaluation_uses_each_clients_own_model():
    found, _ = fitted()
    result = found.evaluate(DATA.test)
    models = np.asarray(stacked.to_matrix(found.models), float)
    expected = [np.mean((y - x @ theta) ** 2) for (x, y), theta in zip(DATA.test, models, strict=True)]
    np.testing.assert_allclose(result.per_client["loss"], expected, rtol=1e-4)
    assert np.isnan(result.accuracy)


# -- over Flower: who misses the exchange is asked once more ----------------------------------------------


def refusing(times):
    """A node that refuses so many of its asks."""
    left = iter(range(times))

    def twist(content):
        refuses = "reply" in content and next(left, None) is not None
        return wire.refusal_records("busy.") if refuses else content

    return twist


def over_flower(times, **settings):
    grid = InProcessGrid(apps_of(LEARNER, EQUAL))
    grid.nodes[3].twist = refusing(times)
    federation = FlowerFederation(grid, min_clients=CLIENTS, min_replies=0.5, poll=0.001)
    found, first = fitted(federation, **settings)
    return found, first, [nodes for kind, nodes in grid.exchanges if kind == wire.ASK]


def test_who_misses_the_exchange_is_asked_once_more():
    found, first, asks = over_flower(1, participation=5)
    simulated, same = fitted(EQUAL.train, participation=5)
    np.testing.assert_allclose(first, same)
    agrees(found, stacked.to_matrix(simulated.models))
    np.testing.assert_array_equal(found.assignment, simulated.assignment)
    assert found.assignment[2] == 2
    assert len(asks) == 2 and asks[1] == [3]
    for ours, theirs in zip(found.history, simulated.history, strict=True):
        assert (ours.asked, ours.answered, ours.missing) == (theirs.asked, theirs.answered, {})
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_who_misses_it_twice_is_left_out_and_its_reason_told():
    found, first, asks = over_flower(9)
    assert found.assignment.tolist() == [0, 1, -1, 3, 4, 5]
    takes_part = EVERYBODY.copy()
    takes_part[2] = False
    agrees(found, by_hand(first, takes_part, EQUAL)[0])
    assert len(asks) == 2 and asks[1] == [3]  # and not a third time
    assert [r.missing for r in found.history] == [{"busy.": ("2",)}] * ROUNDS
    assert all(r.answered == CLIENTS - 1 for r in found.history)


GO_ON = {
    "SR-FCA": lambda **trained: ct.SRFCA(rounds=ROUNDS, threshold="50%", **trained),
    "k-means": lambda **trained: ct.OneShotKMeans(2, alone=ROUNDS, rounds=0, **trained),
    "IFCA": lambda **trained: ct.IFCA(
        rounds=ROUNDS, init=ct.Components(ROUNDS, threshold="50%", **trained), average="models"
    ),
}


@pytest.mark.parametrize("made", GO_ON.values(), ids=GO_ON)
def test_others_go_on_from_its_models(made):
    models = fitted()[0].models
    alone = made().fit(DATA.train, LEARNER, seed=0)
    further = made(trained=models).fit(DATA.train, LEARNER, seed=0)
    assert further.assignment.tolist() == alone.assignment.tolist()
    np.testing.assert_allclose(
        stacked.to_matrix(further.models), stacked.to_matrix(alone.models), rtol=1e-4, atol=1e-5
    )
    spared = alone.history.total("updates") - further.history.total("updates")
    assert spared == CLIENTS * ROUNDS


@pytest.mark.parametrize("made", GO_ON.values(), ids=GO_ON)
def test_models_of_other_clients_are_refused(made):
    models = stacked.take(fitted()[0].models, np.arange(CLIENTS - 1))
    with pytest.raises(SettingError, match="trained holds models of 5 clients, and there are 6"):
        made(trained=models).fit(DATA.train, LEARNER)


def test_parts_of_examples_need_training_anew():
    with pytest.raises(SettingError, match="leave trained out"):
        ct.SRFCA(resample=True, trained=fitted()[0].models).fit(DATA.train, LEARNER)
