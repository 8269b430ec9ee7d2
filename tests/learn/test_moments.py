"""What moment descent asks of a client, against NumPy on linear regression and against plain gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree
from support.bare_model import Theta
from support.references_moments import anchor_step, eps, pairs, weight

import coterie as ct
from coterie.learn.moments import DescendMoment, MultiplyMoment
from coterie.learn.shard import Shard
from coterie.learn.task import Client
from coterie.models import stacked

D, K, ANCHORS, CAPACITY = 4, 2, 3, 9
KEY = jax.random.key(3)


LEARNER = ct.Learner(Theta(), "half_squared")


@jax.jit
def reply_of(task, shard, key=KEY, learner=LEARNER):
    return task(Client(learner, shard, key))


def multiply(directions, shard, models=None, first=None, second=None, **how):
    sent = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (directions, models, first, second))
    return reply_of(MultiplyMoment(*sent, **how), shard)


def descend(shard, model, subspace, rate=0.5, least=0.0, power_iterations=500, key=KEY, **how):
    own = [jnp.asarray(value, jnp.float32) for value in (model, subspace, rate, least)]
    return reply_of(DescendMoment(*own, power_iterations=power_iterations, **how), shard, key)


def problem(seed):
    rng = np.random.default_rng(seed)
    draw = [(CAPACITY, D), (CAPACITY,), (2, ANCHORS, D), (ANCHORS, K, D)]
    return [rng.standard_normal(shape).astype(np.float32) for shape in draw]


def shard(x, y, size):
    return Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(size))


def product(first, second, directions, estimator):
    """The mean of b a^T Q, for one anchor, directions and result by rows."""
    own = pairs(first, second, estimator)
    return np.mean([np.outer(b, a) @ directions.T for a, b in own], axis=0).T


SIZES = st.integers(1, CAPACITY)
TWO = {"pairs": None, "two": (0, 1)}
ESTIMATORS = st.sampled_from(sorted(TWO))


@given(SIZES, st.integers(0, 10**6), ESTIMATORS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_product_is_the_mean_over_pairs_of_examples(size, seed, estimator, own_models):
    x, y, models, directions = problem(seed)
    if not own_models:
        models[1] = models[0]
    given = {"first": models[0], "second": models[1]} if own_models else {"models": models[0]}
    reply = multiply(directions, shard(x, y, size), **given, two=TWO[estimator])
    assert reply.value.keys() == {"product"} and reply.report is None
    assert reply.weight == weight(size, estimator)
    assert np.isfinite(reply.value["product"]).all()
    if size >= 2:
        for h in range(ANCHORS):
            first, second = (eps(x[:size], y[:size], model[h]) for model in models)
            wanted = product(first, second, directions[h], estimator)
            np.testing.assert_allclose(reply.value["product"][h], wanted, rtol=1e-3, atol=1e-3)


def test_the_transposed_product_of_two_examples_exchanges_them():
    x, y, models, directions = problem(1)
    reply = multiply(directions, shard(x, y, 4), models[0], two=(1, 0))
    a, b = eps(x[:2], y[:2], models[0, 1])
    np.testing.assert_allclose(
        reply.value["product"][1], directions[1] @ np.outer(b, a), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "size, estimator",
    [(7, "pairs"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, "pairs"), (2, "two")))],
)
def test_padding_changes_nothing(size, estimator):
    x, y, models, directions = problem(2)
    bare, padded, other = shard(x[:size], y[:size], size), shard(x, y, size), shard(x.copy(), y.copy(), size)
    other = Shard(other.x.at[size:].set(1e3), other.y.at[size:].set(-1e3), other.size)

    def both(content):
        disjoint = estimator == "two"
        return (
            multiply(directions, content, models[0], two=TWO[estimator], curvature=True),
            descend(content, models[0, 0], directions[0], disjoint=disjoint),
        )

    for wanted, *found in zip(*map(both, (bare, padded, other)), strict=True):
        for reply in found:
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), reply, wanted)


def test_pairs_are_counted_beyond_32_bit_integers():
    n = 60_000
    x, y = np.ones((n, 1), np.float32), np.ones(n, np.float32)
    reply = multiply(np.ones((1, 1, 1)), shard(x, y, n), np.zeros((1, 1)))
    assert reply.value["product"].item() == pytest.approx(1, rel=1e-2) and reply.weight == n


def test_all_pairs_are_unbiased():
    """Over many clients of three examples the mean is g g^T, with g the mean of eps of one of them."""
    rng = np.random.default_rng(0)
    theta, clients = np.array([1.0, -0.5, 0.25]), 20_000
    x = rng.standard_normal((clients, 3, 3)) * [1, 1.5, 0.5]
    y = x @ theta + 0.3 * rng.standard_normal((clients, 3))
    task = MultiplyMoment(jnp.eye(3)[None], jnp.zeros((1, 3)))

    def one(x, y):
        return task(Client(LEARNER, Shard(x, y, jnp.asarray(3)), KEY)).value

    each = np.asarray(jax.jit(jax.vmap(one))(jnp.float32(x), jnp.float32(y))["product"])[:, 0]
    g = np.diag([1, 2.25, 0.25]) @ theta
    error = each.std(axis=0) / np.sqrt(clients)
    assert (abs(each.mean(axis=0) - np.outer(g, g)) < 5 * error).all()
    # had an example been paired with itself, this would have been seen
    alone = np.mean(np.square(x * y[..., None]), axis=(0, 1)) / 3
    assert (alone > 20 * np.diag(error)).all()


def test_curvature_is_the_features_second_moment_along_the_directions():
    x, y, models, directions = problem(4)
    reply = multiply(directions, shard(x, y, 6), models[0], curvature=True)
    for h in range(ANCHORS):
        wanted = directions[h] @ (x[:6].T @ x[:6] / 6) @ directions[h].T
        np.testing.assert_allclose(reply.value["curvature"][h], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_for_any_loss_eps_is_minus_the_gradient_of_one_example():
    rng = np.random.default_rng(5)
    data = ct.data.Shards.from_lists([rng.standard_normal((6, 3))], [rng.integers(0, 3, 6)], classes=3)
    learner = ct.Learner(ct.models.MLP(hidden=(4,))).for_data(data.spec)
    shapes = learner.shapes(data.spec)
    model, directions = (
        jax.tree.map(lambda a: rng.uniform(-0.5, 0.5, (*lead, *a.shape)).astype(np.float32), shapes)  # noqa: B023
        for lead in ((), (K,))
    )
    one = jax.tree.map(lambda a: a[None], (model, directions))
    content = shard(*data.client(0), 5)
    reply = reply_of(MultiplyMoment(one[1], one[0], curvature=True), content, learner=learner)

    flat, back = ravel_pytree(model)
    rows = stacked.to_matrix(directions)
    found = stacked.to_matrix(stacked.take(reply.value["product"], 0))
    jacobian = jax.jit(jax.jacrev(lambda p: learner.per_example(back(p), content.x, content.y)))
    each = -jacobian(flat)[:5]
    np.testing.assert_allclose(found, product(*[np.asarray(each)] * 2, rows, "pairs"), rtol=1e-3, atol=1e-5)
    hessian = jax.jit(jax.hessian(lambda p: learner.shard_loss(back(p), content)))(flat)
    np.testing.assert_allclose(reply.value["curvature"][0], rows @ hessian @ rows.T, rtol=1e-3, atol=1e-4)


# -- an anchor's step ------------------------------------------------------------------------------------


def orthonormal(directions):
    return np.linalg.qr(directions.T)[0].T.astype(np.float32)


@given(st.integers(2, CAPACITY), st.integers(0, 10**6), ESTIMATORS, st.floats(0, 2))
@settings(max_examples=60, deadline=None)
def test_a_step_is_that_of_lines_11_to_15(size, seed, estimator, least):
    x, y, models, directions = problem(seed)
    theta, u = models[0, 0], orthonormal(directions[0])
    reply = descend(shard(x, y, size), theta, u, 0.4, least, disjoint=estimator == "two")
    wanted, stopped = anchor_step(x[:size], y[:size], theta.astype(float), u.T, estimator, 0.4, least)
    sigma = float(reply.report.sigma)
    if abs(sigma - least) > 1e-3:  # else rounding decides
        assert stopped == (not sigma > least)
        np.testing.assert_allclose(reply.value, wanted, rtol=1e-2, atol=1e-2)


def test_a_step_goes_towards_the_truth_whatever_sign_the_power_iteration_ends_with():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, D)).astype(np.float32)
    truth = np.array([1, -2, 0, 0], np.float32)
    for seed in range(6):
        at, key = shard(x, x @ truth, 200), jax.random.key(seed)
        reply = descend(at, np.zeros(D), np.eye(D)[:2], key=key)
        np.testing.assert_allclose(reply.value, truth / 2, atol=0.35)
        assert reply.report.sigma == pytest.approx(np.linalg.norm(truth), rel=0.2)


@pytest.mark.parametrize("unit", [1e-5, 1e5])
def test_features_in_any_unit(unit):
    x, y, models, directions = problem(6)
    u = orthonormal(directions[0])
    wanted = descend(shard(x, y, 8), models[0, 0], u, 1.0)
    reply = descend(shard(x * unit, y, 8), models[0, 0] / unit, u, unit**-2)
    assert wanted.report.sigma > 0.3
    np.testing.assert_allclose(reply.report.sigma, wanted.report.sigma * unit, rtol=1e-3)
    np.testing.assert_allclose(reply.value * unit, wanted.value, rtol=1e-3, atol=1e-3)


def test_an_anchor_stops_where_its_moment_is_negative():
    """Two examples whose residuals point in opposite directions."""
    x, y = np.eye(2, dtype=np.float32)[[0, 0]], np.array([1.0, -1.0], np.float32)
    reply = descend(shard(x, y, 2), np.zeros(2), np.eye(2)[:1])
    assert reply.report.sigma == 0 and (np.asarray(reply.value) == 0).all()


def test_nothing_is_divided_by_zero_where_there_is_no_residual():
    x, *_ = problem(0)
    for size in (1, 5):
        at = shard(x, x @ np.ones(D, np.float32), size)
        reply = descend(at, np.ones(D), np.eye(D)[:2])
        np.testing.assert_allclose(reply.value, 1, atol=1e-5)


@pytest.mark.parametrize("number, estimator", [(0, "pairs"), (1, "pairs"), (2, "pairs"), (2, "two")])
def test_parts_of_the_examples_are_disjoint_and_of_one_size(number, estimator):
    x, y, models, directions = problem(7)
    u = orthonormal(directions[0])
    how = {"disjoint": estimator == "two"}
    reply = descend(shard(x, y, 8), models[0, 0], u, part=jnp.array([number, 3]), **how)
    mine = [number, number + 3]  # dealt out in turn; two are left over
    wanted = descend(shard(x[mine], y[mine], 2), models[0, 0], u, **how)
    np.testing.assert_allclose(reply.value, wanted.value, rtol=1e-4, atol=1e-5)
