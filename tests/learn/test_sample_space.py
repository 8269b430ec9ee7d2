"""Local updates in the span of a client's examples give what the usual ones give, up to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import coterie as ct
from coterie.learn import sample_space
from coterie.learn.local import Pull
from coterie.learn.shard import Shard
from coterie.models.half import in_half

EXAMPLES, PADDING, FEATURES = 7, 3, (4, 5)
SEEN = ct.data.Spec(FEATURES, "float32", (), "int32", 3)  # as they are stored
MODELS = {
    "network": ct.models.MLP(hidden=(6, 5), outputs=3),
    "logistic": ct.models.Linear(outputs=3),
    "with bias": ct.models.Linear(outputs=3, bias=True),
}
RULES = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "weight decay": {"weight_decay": 0.1},
    "proximal": {"proximal": 0.3},
    "decay": {"decay": 0.9},
    "everything": {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3, "decay": 0.9},
}


def client(seed=0):
    """A client with fewer examples than its bucket has room for; what fills it up is not zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((EXAMPLES + PADDING, *FEATURES), np.float32)
    y = rng.integers(0, 3, EXAMPLES + PADDING).astype(np.int32)
    return Shard(jnp.asarray(x), jnp.asarray(y), jnp.asarray(EXAMPLES, jnp.int32))


def with_products(learner, shard):
    return Shard(shard.x, shard.y, shard.size, sample_space.products(learner, SEEN, shard.x[None])[0])


def both(learner, shard=None, **settings):
    """What is trained in the usual way, and in the span."""
    shard = client() if shard is None else shard
    start = learner.model.init(jax.random.key(1), shard.x)
    anchor = learner.model.init(jax.random.key(2), shard.x)
    if "pull" in settings:
        settings["pull"] = Pull(anchor, settings["pull"])

    def train(shard):
        return learner.train(start, shard, jax.random.key(3), jnp.asarray(4), **settings)

    return jax.jit(lambda: (train(shard), train(with_products(learner, shard))))()


def test_in_bfloat16_both_ways_round_alike():
    half = ct.Learner(in_half(ct.models.MLP(hidden=(6, 5), outputs=3)), local=ct.SGD(lr=0.1, steps=1))
    start = half.model.init(jax.random.key(1), client().x)
    usual, spanned = both(half)
    for a, b, before in zip(*map(jax.tree.leaves, (usual, spanned, start)), strict=True):
        assert a.dtype == b.dtype == jnp.float32
        np.testing.assert_allclose(a - before, b - before, atol=0.02 * float(jnp.abs(a - before).max()))


def assert_close(usual, spanned, within):
    for a, b in zip(jax.tree.leaves(usual), jax.tree.leaves(spanned), strict=True):
        np.testing.assert_allclose(a, b, atol=within, rtol=within)


@pytest.mark.parametrize(
    ("model", "rule"),
    [*(("network", rule) for rule in RULES), ("logistic", "plain"), ("with bias", "everything")],
)
def test_one_step_and_a_few_are_those_of_the_usual_way(model, rule):
    for steps, within in ((1, 1e-6), (5, 1e-5)):
        learner = ct.Learner(MODELS[model], local=ct.SGD(0.1, steps=steps, **RULES[rule]))
        assert sample_space.possible(learner)
        assert_close(*both(learner), within)


@pytest.mark.parametrize("settings", [{"pull": 0.7}, {"label": 0.25}, {"pull": 0.7, "label": 0.25}], ids=str)
def test_so_are_those_drawn_to_another_model_and_those_that_count_less(settings):
    learner = ct.Learner(MODELS["network"], local=ct.SGD(0.1, steps=4, momentum=0.5))
    plain = both(learner)[0]
    usual, spanned = both(learner, **settings)
    assert_close(usual, spanned, 1e-5)
    assert abs(usual.layers[0].weight - plain.layers[0].weight).max() > 1e-3, "the setting does something"


def test_the_products_of_a_part_are_those_of_its_examples():
    learner = ct.Learner(MODELS["network"])
    part = with_products(learner, client()).part(jnp.asarray(1), jnp.asarray(2))
    np.testing.assert_allclose(part.gram, sample_space.products(learner, SEEN, part.x[None])[0], rtol=1e-6)


def test_what_is_not_linear_in_gradients_goes_the_usual_way():
    rules = [
        ct.SGD(0.1, steps=3, clip=0.01),
        ct.SGD(0.1, steps=3, batch_size=2),
        ct.SGD(0.1, epochs=1, batch_size=2),
        ct.Optax(optax.adam(0.1), steps=3),
        ct.SGD(0.1, steps=3, weight_decay=0.1, decayed=("layers.0.weight",)),
    ]
    for local in rules:
        learner = ct.Learner(MODELS["network"], local=local)
        assert not sample_space.possible(learner) and not sample_space.pays(learner, 2, 1000)
        usual, other = both(learner)
        jax.tree.map(np.testing.assert_array_equal, usual, other)


def test_it_pays_for_few_examples_of_many_features_and_more_than_one_step():
    def pays(examples, features, steps):
        return sample_space.pays(
            ct.Learner(MODELS["network"], local=ct.SGD(0.1, steps=steps)), examples, features
        )

    assert pays(200, 784, 10) and pays(50, 784, 10) and pays(4, 64, 5)
    assert not pays(200, 784, 1), "as many products with the examples as the usual way"
    assert not pays(2000, 784, 10) and not pays(100, 64, 5)


@pytest.mark.parametrize("examples", [2, 3, 4, 5, 7, 8])
def test_products_of_few_examples_are_carried_out_together(examples):
    rng = np.random.default_rng(examples)
    gram, rows = rng.standard_normal((examples, examples)), rng.standard_normal((examples, 3))
    np.testing.assert_allclose(
        sample_space._product(jnp.asarray(gram), jnp.asarray(rows)), gram @ rows, rtol=1e-5, atol=1e-5
    )


def test_a_simulation_uses_it_and_finds_the_same():
    data = ct.data.mixed_regression(k=2, clients=7, examples=[3, 5, 9, 2, 4, 6, 7], dim=20, seed=0)
    learner = ct.Learner(ct.models.Linear(bias=True), "squared", ct.SGD(0.01, steps=4))
    found = []
    for wanted in (True, False):
        simulation = ct.Simulation(data.train, sample_space=wanted, batch=2)
        assert all((rows.gram is not None) == wanted for rows in simulation.with_learner(learner)._rows)
        assert all(rows.gram is None for rows in simulation.with_learner(learner, trains=False)._rows)
        found.append(ct.IFCA(k=2, rounds=3, n_init=1).fit(simulation, learner, seed=1))
    spanned, usual = found
    np.testing.assert_array_equal(spanned.assignment, usual.assignment)
    assert_close(usual.models, spanned.models, 1e-5)
    np.testing.assert_allclose(
        [record.loss for record in usual.history], [record.loss for record in spanned.history], rtol=1e-5
    )
