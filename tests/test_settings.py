"""Settings are of their declared types, whether they come from Python or from a file."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import coterie as ct
from coterie.errors import CoterieError
from coterie.settings import Settings

DATA = ct.data.mixed_regression(clients=4, k=2, dim=3, examples=6, seed=0)


def learner(**settings):
    return ct.Learner(ct.models.Linear(), "squared", ct.SGD(**{"lr": 0.05, "steps": 1, **settings}))


def fit(model=None, seed=0, **settings):
    of = learner() if model is None else ct.Learner(model, "squared", ct.SGD(lr=0.1, steps=1))
    return ct.IFCA(**{"k": 2, "rounds": 1, "n_init": 1, **settings}).fit(DATA.train, of, seed=seed)


class Plain(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x)


WRONG = {
    "a word for a number": (lambda: ct.IFCA(k="2"), "k must be a whole number, not '2'."),
    "a fraction": (lambda: ct.IFCA(k=2, rounds=3.0), "rounds must be a whole number, not 3.0."),
    "yes for a number": (lambda: ct.IFCA(k=True), "k must be a whole number, not True."),
    "nothing": (lambda: ct.IFCA(k=2, rounds=None), "rounds must be a whole number, not None."),
    "a number for a list": (
        lambda: ct.models.MLP(hidden=64),
        "hidden must be a list of whole numbers, not 64.",
    ),
    "a word among numbers": (
        lambda: ct.models.MLP(hidden=(4, "8")),
        "hidden must be a list of whole numbers",
    ),
    "not one of those": (lambda: ct.IFCA(k=2, weight="all"), "weight must be 'clients' or 'examples', not"),
    "no share": (lambda: ct.IFCA(k=2, participation="half"), "participation must be a number, not 'half'."),
    "no number": (lambda: learner(clip=float("nan")), "clip must be a number, not nan."),
    "no number in the end": (lambda: learner(weight_decay=np.nan), "weight_decay must be a number, not nan."),
    "too many rounds": (lambda: ct.IFCA(k=2, rounds=2**31), "rounds must be at most 2,147,483,647, not 21"),
    "too wide": (lambda: ct.models.MLP(hidden=(10**12,)), "hidden must be at most 2,147,483,647, not (10"),
    "too many refines": (lambda: ct.SRFCA(refines=10**18), "refines must be at most 2,147,483,647"),
    "too many starts": (lambda: fit(n_init=10**9), "2,000,000,000 models of 1.2e-08 GB each take 24 GB"),
    "too large a model": (lambda: fit(ct.models.MLP(hidden=(10**9,) * 2)), "2 models of 4e+09 GB each take"),
    "an unknown loss": (
        lambda: ct.Learner(ct.models.Linear(), "sqared"),
        "unknown loss 'sqared': choose one",
    ),
    "no learner": (
        lambda: ct.IFCA(k=2).fit(DATA.train, None),
        "learner must be a Learner(model, loss, local)",
    ),
    "no clients": (lambda: fit().evaluate(np.ones((3, 2))), "these are no clients: give Shards (such as"),
    "a seed of words": (lambda: fit(seed="x"), "seed must be a whole number, not 'x'."),
    "a local update that is none": (
        lambda: ct.Learner(ct.models.Linear(), local=0.1),
        "local must be a local update, such as SGD(lr=0.1, steps=10), not 0.1.",
    ),
    "a network that is no model": (
        lambda: fit(Plain(eqx.nn.Linear(3, 1, key=jax.random.key(0)))),
        "Plain is no model: a model has init(key, x), which makes parameters, and apply(params, x)",
    ),
}


@pytest.mark.parametrize("make, said", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_refused_in_a_sentence(make, said, monkeypatch):
    monkeypatch.setattr("coterie.algorithms.driver.physical_memory", lambda: 16 * 10**9)
    with pytest.raises(CoterieError) as raised:
        make()
    assert said in str(raised.value) and "\n" not in str(raised.value) and str(raised.value).endswith(".")


def test_numbers_of_numpy_become_plain_ones_and_lists_tuples(tmp_path):
    algorithm = ct.IFCA(k=np.int64(2), rounds=np.int32(3), participation=np.float32(0.5), share=["layers.0"])
    assert algorithm == ct.IFCA(k=2, rounds=3, participation=0.5, share=("layers.0",))
    assert json.dumps(algorithm.settings()) and algorithm.settings()["k"] == 2
    found = ct.IFCA(k=2, rounds=1, n_init=1).fit(DATA.train, learner(lr=np.float32(0.05), steps=np.int8(2)))
    found.save(tmp_path)
    again = ct.load(tmp_path).learner.local
    assert type(again.lr) is float and again.steps == 2 and again.lr == pytest.approx(0.05)


@dataclasses.dataclass(frozen=True)
class Part(Settings):
    """A part of the user's own, some of whose settings are no plain values."""

    size: int
    weights: "np.ndarray | None" = None
    rate: float = 0.1


def test_what_is_no_plain_value_is_left_as_it_is():
    weights = np.ones(3)
    assert Part(1, weights).weights is weights
    rate = jnp.asarray(0.2)
    assert Part(1, rate=rate).rate is rate, "step sizes are swept as arrays"
    assert jax.vmap(lambda lr: Part(1, rate=lr).rate * 2)(jnp.ones(2)).tolist() == [2, 2]
    with pytest.raises(CoterieError, match=r"size must be a whole number, not 'x'\."):
        Part("x")
