"""Starts that run side by side share each exchange, and none of them notices the others."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import coterie as ct
from coterie.aggregate import Summing
from coterie.algorithms.lockstep import in_step
from coterie.algorithms.records import Count
from coterie.federation.protocol import Ask
from coterie.learn.soft import TrainBetween
from coterie.learn.task import Reply, Task, per_client
from coterie.learn.tasks import ChooseAndTrain, CountExamples, MeasureLosses
from coterie.models import stacked

SIZES = [4, 3, 8, 4, 7, 5]
EVERYBODY = range(len(SIZES))
DIM, K = 3, 2
DATA = ct.data.mixed_regression(k=K, clients=len(SIZES), examples=SIZES, dim=DIM, seed=0)
LEARNER = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.05, steps=2)).for_data(DATA.train.spec)
KEY = jax.random.key(5)


class Watched:
    """A federation of which every exchange is kept: the task, and how it was asked."""

    def __init__(self, federation):
        self.federation, self.exchanges = federation, []

    def __getattr__(self, name):
        return getattr(self.federation, name)

    def ask(self, task, **how):
        self.exchanges.append((task, how))
        return self.federation.ask(task, **how)

    @property
    def names(self):
        """What was asked, and for how many starts."""
        return [(type(task).__name__, how["starts"]) for task, how in self.exchanges]


@pytest.fixture(scope="module")
def simulation():
    return ct.Simulation(DATA.train, batch=3).with_learner(LEARNER)


@pytest.fixture
def watched(simulation):
    return Watched(simulation)


def matrix(seed, k=K):
    return np.random.default_rng(seed).standard_normal((k, DIM)).astype(np.float32)


def models(seed, k=K):
    return stacked.from_matrix(matrix(seed, k), LEARNER.shapes(DATA.train.spec))


def losses(thetas, clients=EVERYBODY):
    """In NumPy: of each client under each model."""
    examples = [DATA.train.client(i) for i in clients]
    return [[np.mean((y - x @ theta) ** 2) for theta in thetas] for x, y in examples]


def asking(*asks):
    """An exchange that asks one thing after another, and returns the answers."""
    answers = []
    for ask in asks:
        answers.append((yield ask))  # noqa: PERF401 (no comprehension can yield)
    return answers


def measure(seed, k=K, **how):
    return Ask(MeasureLosses(models(seed, k)), **how)


def between(seed, clients, rows=None, **how):
    """An ask of which each client has rows of its own: the loss that it reports is that of its own model."""
    own = stacked.from_matrix(rows, LEARNER.shapes(DATA.train.spec))
    pulls = jnp.full((len(clients), K), 0.5)
    return Ask(TrainBetween(models(seed), jnp.asarray(0), own, pulls), clients=np.array(clients), **how)


# -- one exchange ------------------------------------------------------------------------------------------


def test_starts_that_ask_the_same_kind_of_thing_share_one_exchange(watched):
    count = Count()
    found = in_step(watched, [asking(measure(seed)) for seed in range(3)], KEY, count)
    assert watched.names == [("MeasureLosses", 3)] and count.asks == 1
    task, how = watched.exchanges[0]
    assert jax.tree.leaves(task.models)[0].shape[:2] == (3, K) and how["clients"] is None
    for seed, (answers,) in enumerate(found):
        assert answers.answered.shape == (len(SIZES),)
        np.testing.assert_allclose(answers.report.losses, losses(matrix(seed)), rtol=1e-4)
    assert count.losses == 3 * K * len(SIZES) and count.updates == 0
    down = 3 * K * DIM * 4  # all of the starts' models, to every client
    assert (count.bytes_down, count.bytes_up) == (down * len(SIZES), 3 * K * 4 * len(SIZES))


OTHERS = {
    "task": Ask(CountExamples()),
    "setting": Ask(ChooseAndTrain(models(0), jnp.asarray(0), by_examples=True)),
    "number of models": measure(0, k=3),
    "field": Ask(MeasureLosses(models(0), jnp.array([0, 2]))),
    "only": Ask(MeasureLosses(models(0)), only=jnp.zeros(len(SIZES), int)),
    "least": measure(0, least=0),
    "clients": measure(0, clients=np.array([0, 1])),
    "reduction": Ask(ChooseAndTrain(models(0), jnp.asarray(0)), reduce=Summing(K)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_in_kind_is_asked_separately(watched, name):
    """Those that are alike still share an exchange, whoever stands between them."""
    other = OTHERS[name]
    if isinstance(other.task, ChooseAndTrain):
        plain = Ask(ChooseAndTrain(models(1), jnp.asarray(0)))
    else:
        plain = measure(1)
    count = Count()
    found = in_step(watched, [asking(plain), asking(other), asking(plain)], KEY, count)
    assert [how["starts"] for _, how in watched.exchanges] == [2, 1] and count.asks == 2
    assert watched.exchanges[1][1]["least"] == other.least
    alone = in_step(watched.federation, [asking(other)], KEY, Count())[0][0]
    assert jax.tree.structure(found[1][0].report) == jax.tree.structure(alone.report)
    np.testing.assert_array_equal(found[1][0].clients, alone.clients)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        (found[1][0].report, found[1][0].value),
        (alone.report, alone.value),
    )
    jax.tree.map(np.testing.assert_array_equal, found[0][0].report, found[2][0].report)


def test_starts_meet_again_after_they_parted(watched):
    first = asking(measure(0), Ask(CountExamples()), measure(2))
    second = asking(measure(1), measure(3), measure(4))
    found = in_step(watched, [first, second], KEY, Count())
    assert watched.names == [
        ("MeasureLosses", 2),
        ("CountExamples", 1),
        ("MeasureLosses", 1),
        ("MeasureLosses", 2),
    ]
    np.testing.assert_array_equal(found[0][1].report.examples, SIZES)
    for answers, seed in ((found[0][2], 2), (found[1][1], 3), (found[1][2], 4)):
        np.testing.assert_allclose(answers.report.losses, losses(matrix(seed)), rtol=1e-4)


# -- different clients ---------------------------------------------------------------------------------------


def test_clients_of_several_starts_are_united_and_each_gets_its_own_in_its_order(watched):
    wanted = [[3, 1], [1, 4, 0], [5, 0]]
    rows = [matrix(10 + r, k=len(clients)) for r, clients in enumerate(wanted)]
    each = [asking(between(r, clients, rows[r])) for r, clients in enumerate(wanted)]
    count = Count()
    found = in_step(watched, each, KEY, count)
    assert watched.names == [("TrainBetween", 3)] and count.asks == 1
    np.testing.assert_array_equal(watched.exchanges[0][1]["clients"].clients, [0, 1, 3, 4, 5])
    for r, ((answers,), clients) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(answers.clients, clients)
        assert answers.answered.tolist() == [True] * len(clients)
        own = [losses([theta], [i])[0][0] for i, theta in zip(clients, rows[r], strict=True)]
        np.testing.assert_allclose(answers.report.loss, own, rtol=1e-4)
        # nothing that its clients are trained with is another start's
        if len(clients) == 2:
            alone = in_step(watched.federation, [asking(between(r, clients, rows[r]))], KEY, Count())[0][0]
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), answers.value, alone.value)
        assert answers.traffic.sent.shape == answers.cluster.shape == answers.weight.shape == (len(clients),)


def test_the_model_that_concerns_a_client_is_each_starts_own_matter(watched):
    wanted = [([2, 0], [1, -1]), ([0, 5], [0, 1])]
    each = [
        asking(
            Ask(ChooseAndTrain(models(r), jnp.asarray(0)), only=jnp.array(only), clients=np.array(clients))
        )
        for r, (clients, only) in enumerate(wanted)
    ]
    found = in_step(watched, each, KEY, Count())
    assert watched.names == [("ChooseAndTrain", 2)]
    for r, ((answers,), (clients, only)) in enumerate(zip(found, wanted, strict=True)):
        of_each = np.array(losses(matrix(r), clients))
        takes = np.where(np.array(only) < 0, of_each.argmin(axis=1), only)
        np.testing.assert_array_equal(answers.cluster, takes)
        np.testing.assert_allclose(answers.report.loss, of_each[[0, 1], takes], rtol=1e-4)


def summing(seed, clients=None):
    return Ask(
        ChooseAndTrain(models(seed), jnp.asarray(0), by_examples=True),
        clients=None if clients is None else np.array(clients),
        reduce=Summing(K),
    )


@pytest.mark.parametrize(
    ("wanted", "starts"),
    [
        ([[0, 2], [0, 2]], [2]),
        ([[0, 2], [1, 2], [0, 2]], [2, 1]),
        ([None, [0, 2]], [1, 1]),
    ],
    ids=str,
)
def test_what_is_summed_on_the_way_is_shared_among_starts_with_the_same_clients_alone(
    watched, wanted, starts
):
    """No start could take another's clients out of a sum again."""
    count = Count()
    found = in_step(watched, [asking(summing(r, c)) for r, c in enumerate(wanted)], KEY, count)
    assert [how["starts"] for _, how in watched.exchanges] == starts and count.asks == len(starts)
    for r, ((answers,), clients) in enumerate(zip(found, wanted, strict=True)):
        mine = EVERYBODY if clients is None else clients
        assert answers.value.weight.sum() == sum(SIZES[i] for i in mine)
        clusters = np.argmin(losses(matrix(r), mine), axis=1)
        np.testing.assert_array_equal(answers.cluster, clusters)
        for j in range(K):
            own = [SIZES[i] for i, c in zip(mine, clusters, strict=True) if c == j]
            assert answers.value.weight[j] == sum(own)


class AddUp(Task):
    """Add up the numbers that a client is sent."""

    numbers: Array = per_client()

    class Report(eqx.Module):
        total: Array

    def __call__(self, client):
        return Reply(self.Report(self.numbers.sum()))


def test_rows_of_different_shapes_are_not_sent_together(watched):
    """Each client's own row may be longer in one start than in another."""
    rows = [np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3), np.ones((3, 2)), np.ones((2, 2), int)]
    clients = [[0, 1], [1, 2], [3, 4, 5], [4, 2]]
    each = [
        asking(Ask(AddUp(jnp.asarray(own)), clients=np.array(who)))
        for own, who in zip(rows, clients, strict=True)
    ]
    found = in_step(watched, each, KEY, Count())
    assert watched.names == [("AddUp", 2), ("AddUp", 1), ("AddUp", 1)]
    for (answers,), own, who in zip(found, rows, clients, strict=True):
        np.testing.assert_array_equal(answers.clients, who)
        np.testing.assert_array_equal(answers.report.total, own.sum(axis=1))


# -- the end -------------------------------------------------------------------------------------------------


def test_starts_may_end_early_and_the_others_go_on(watched):
    each = [asking(*[measure(10 * r + t) for t in range(times)]) for r, times in enumerate([0, 3, 1, 2])]
    count = Count()
    found = in_step(watched, each, KEY, count)
    assert [how["starts"] for _, how in watched.exchanges] == [3, 2, 1] and count.asks == 3
    assert [len(answers) for answers in found] == [0, 3, 1, 2]
    for r, answers in enumerate(found):
        for t, one in enumerate(answers):
            np.testing.assert_allclose(one.report.losses, losses(matrix(10 * r + t)), rtol=1e-4)


def test_nothing_is_asked_where_nobody_asks(watched):
    count = Count()
    assert in_step(watched, [asking(), asking()], KEY, count) == [[], []]
    assert watched.exchanges == [] and count == Count()


def test_what_an_exchange_raises_is_raised():
    def stumbles():
        yield measure(0)
        raise ZeroDivisionError("after the first answers")

    federation = ct.Simulation(DATA.train, batch=3).with_learner(LEARNER)
    with pytest.raises(ZeroDivisionError, match="after the first answers"):
        in_step(federation, [asking(measure(1), measure(2)), stumbles()], KEY, Count())


# -- keys ----------------------------------------------------------------------------------------------------


def keys_of(watched):
    return [jax.random.key_data(how["key"]).tolist() for _, how in watched.exchanges]


def data(key):
    return jax.random.key_data(key).tolist()


def test_asks_without_a_key_get_one_of_their_own(watched):
    """Not always the same clients shall drop out, nor shall the same be drawn twice."""
    each = [asking(measure(0), Ask(CountExamples())), asking(measure(1), measure(2))]
    in_step(watched, each, KEY, Count())
    derived = [data(jax.random.fold_in(KEY, number)) for number in range(3)]
    assert keys_of(watched) == derived and len(set(map(tuple, derived))) == 3
    in_step(watched, [asking(measure(0))], jax.random.key(6), Count())
    assert keys_of(watched)[3] == data(jax.random.fold_in(jax.random.key(6), 0))


def test_a_key_that_is_given_is_used(watched):
    """Starts that share an exchange share the first one's; clients derive one for each start from it."""
    first, second = jax.random.key(77), jax.random.key(78)
    each = [asking(measure(r, key=key), measure(r)) for r, key in enumerate((first, second))]
    in_step(watched, each, KEY, Count())
    assert watched.names == [("MeasureLosses", 2)] * 2
    assert keys_of(watched) == [data(first), data(jax.random.fold_in(KEY, 1))]
