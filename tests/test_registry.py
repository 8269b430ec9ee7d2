"""Names and settings of parts, as experiment files and saved results know them."""

import dataclasses
import importlib
import json
import sys

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.bare_model import Theta

import coterie as ct
from coterie import registry
from coterie.errors import ConfigError, SettingError
from coterie.learn import losses

NEEDS_TORCH = [pytest.mark.slow, pytest.mark.torch]  # run when PyTorch is installed, for `make test-all`
EVERY_PART = [
    pytest.param(kind, name, marks=NEEDS_TORCH if name == "torch" else ())
    for kind, parts in registry.PARTS.items()
    for name in parts
]

THINGS = [
    ("model", ct.models.Linear()),
    ("model", ct.models.Linear(outputs=3, bias=True)),
    ("model", ct.models.MLP(hidden=(7, 5), outputs=(2, 3))),
    ("model", ct.models.MLP(hidden=())),
    ("model", ct.models.CNN.cifar10("authors")),
    ("model", ct.models.ResNet9(width=8, groups=4, outputs=3)),
    ("model", ct.models.LSTM(hidden=12, vocabulary=80)),
    ("augment", ct.Crop()),
    ("augment", ct.Crop(24, pad=4, flip=False, cutout=8, standardise=True)),
    ("augment", ct.Distort(16, contrast=(0.5, 1.5))),
    ("local", ct.SGD(0.5, steps=3)),
    (
        "local",
        ct.SGD(
            lr=0.01,
            epochs=2,
            batch_size=5,
            decay=0.9,
            clip=1.0,
            proximal=0.1,
            momentum=0.9,
            nesterov=True,
            weight_decay=1e-4,
            decayed=("layers.2", "layers.3.weight"),
        ),
    ),
    ("algorithm", ct.IFCA(k=3)),
    ("algorithm", ct.IFCA(k=3, aggregate=ct.TrimmedMean(0.2))),
    ("algorithm", ct.Global(aggregate=ct.Median())),
    ("algorithm", ct.IFCA(4, rounds=7, n_init=2, participation=5, weight="examples")),
    ("algorithm", ct.Global(rounds=2, participation=0.5, weight="examples")),
    ("algorithm", ct.Local(rounds=9)),
    ("algorithm", ct.IFCA(init=ct.Components(rounds=5, threshold=0.5, min_size=1))),
    ("algorithm", ct.Global(aggregate=ct.FedAvgM(lr=0.5, momentum=0.8))),
    ("algorithm", ct.IFCA(k=2, aggregate=ct.FedAdam(b2=0.999, aggregate=ct.TrimmedMean(0.2)))),
    ("algorithm", ct.FedX(k=2, normalise="cluster", temperature=0.5)),
    ("algorithm", ct.OneShotKMeans(k=3, rounds=0)),
    ("aggregate", ct.FedAdam(lr=0.1, b1=0.5, b2=0.9, eps=0.1)),
    ("init", ct.OneShot(rounds=3)),
]


def own_loss(outputs, y):
    return jnp.abs(outputs - y)


def through_json(content):
    return json.loads(json.dumps(content))


@pytest.mark.parametrize("kind, name", EVERY_PART)
def test_every_listed_part_exists_and_has_a_schema(kind, name):
    if name == "torch":
        pytest.importorskip("torch")
    schema = registry.schema(registry.part(kind, name))
    assert schema.model_config["extra"] == "forbid"
    assert all(field.annotation is not None for field in schema.model_fields.values())


@pytest.mark.parametrize("kind", registry.PARTS)
def test_an_unknown_name_lists_the_choices(kind):
    with pytest.raises(ConfigError) as raised:
        registry.part(kind, "bogus")
    message = str(raised.value)
    assert message == (
        f"{kind}: there is no 'bogus'; choose one of {', '.join(registry.PARTS[kind])}, or give the import "
        "path of your own, such as 'mypackage.MyClass'."
    )


@pytest.mark.parametrize("kind, thing", THINGS)
def test_a_part_is_remade_from_its_description(kind, thing):
    described = registry.describe(kind, thing)
    for field in dataclasses.fields(thing):  # every setting that is set
        if field.compare and "part" not in field.metadata:
            assert described.get(field.name) == getattr(thing, field.name)
    described = through_json(described)
    assert registry.build(kind, described.pop("name"), described) == thing


def test_a_data_source_is_built_from_settings():
    data = registry.build(
        "data", "mixed-regression", {"k": 3, "clients": 6, "examples": [1, 2, 3, 4, 5, 6], "dim": 4}
    )
    assert data.models.shape == (3, 4)
    assert data.train.sizes.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_whole_participation_stays_a_number_of_clients():
    assert type(registry.build("algorithm", "ifca", {"k": 2, "participation": 1}).participation) is int
    assert type(registry.build("algorithm", "ifca", {"k": 2, "participation": 1.0}).participation) is float


@pytest.mark.parametrize(
    "kind, name, given, message",
    [
        ("algorithm", "ifca", {"k": 2, "bogus": 1}, "algorithm.bogus: there is no such setting."),
        ("algorithm", "global", {"k": 2}, "algorithm.k: there is no such setting."),
        ("algorithm", "ifca", {"k": "four"}, "algorithm.k: input should be a valid integer"),
        ("algorithm", "ifca", {"k": 2.5}, "algorithm.k: input should be a valid integer"),
        (
            "algorithm",
            "ifca",
            {"k": 2, "weight": "size"},
            "algorithm.weight: input should be 'clients' or 'examples'",
        ),
        ("algorithm", "ifca", {"k": 2, "participation": "all"}, "algorithm.participation: "),
        ("model", "mlp", {"hidden": [3, "x"]}, "model.hidden.1: "),
        ("model", "mlp", {"hidden": 3}, "model.hidden: "),
        ("model", "mlp", {"outputs": "x"}, "model.outputs: "),
        ("local", "sgd", {"steps": 1, "lr": "fast"}, "local.lr: input should be a valid number, "),
        ("local", "sgd", {"steps": 1, "lr": -1}, "lr must be a positive number, not -1.0"),
        (
            "algorithm",
            "ifca",
            {"k": 2, "init": "nearest"},
            "algorithm.init: there is no 'nearest'; choose one of random, farthest-loss",
        ),
        (
            "algorithm",
            "ifca",
            {"k": 2, "init": 3},
            "algorithm.init: give a name, such as 'random', or a table",
        ),
        ("algorithm", "ifca", {"k": 2, "init": {"rounds": 3}}, "algorithm.init: give a name"),
        (
            "algorithm",
            "ifca",
            {"k": 2, "init": {"name": "one-shot", "steps": 3}},
            "algorithm.init.steps: there is no such setting",
        ),
        (
            "algorithm",
            "ifca",
            {"k": 2, "init": {"name": "one-shot", "rounds": "many"}},
            "algorithm.init.rounds: ",
        ),
        ("local", "sgd", {"steps": 1, "nesterov": "perhaps"}, "local.nesterov: "),
        ("data", "rotated-digits", {"rotation": 90}, "data.rotation: there is no such setting."),
        ("data", "mixed-regression", {"parameters": "cauchy"}, "data.parameters: "),
        ("data", "mixed-regression", {"examples": [3, "x"]}, "data.examples"),
    ],
)
def test_errors_name_the_key(kind, name, given, message):
    with pytest.raises((ConfigError, SettingError)) as raised:
        registry.build(kind, name, given)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("loss", list(losses.NAMED) + list(losses.NAMED.values()))
def test_a_learner_is_remade_from_its_description(loss):
    learner = ct.Learner(ct.models.MLP(hidden=(3,)), loss, ct.SGD(lr=0.3, epochs=1, batch_size=2))
    back = registry.learner_from(through_json(registry.describe_learner(learner)))
    assert back.model == learner.model and back.local == learner.local
    assert losses.named(back.loss) is losses.named(loss)


@pytest.mark.parametrize(
    "key, learner",
    [
        ("model", ct.Learner(Theta(), "squared")),
        ("loss", ct.Learner(ct.models.Linear(), own_loss)),
        ("local", ct.Learner(ct.models.Linear(), "squared", ct.Optax(optax.adam(0.1), steps=1))),
        ("local", ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=jnp.float32(0.1), steps=1))),
    ],
)
def test_a_part_of_the_users_own_making_is_said_to_be_so(key, learner):
    described = registry.describe_learner(learner)
    assert [part for part in described if described[part] is None] == [key]
    with pytest.raises(ConfigError, match=f"the {key} of this learner is of your own making: give learner="):
        registry.learner_from(described)


def test_an_algorithm_that_no_import_path_leads_to_is_known_by_its_class():
    class Mine(ct.Local):
        pass

    assert registry.describe_algorithm(Mine()) == {"name": "Mine"}
    assert registry.describe_algorithm(ct.Local(rounds=np.array([1, 2]))) == {"name": "Local"}
    typed = type("Typed", (ct.Local,), {"__module__": "__main__"})
    assert registry.describe_algorithm(typed()) == {"name": "Typed"}


# -- parts of the user's own, by import path -----------------------------------------------------------------

ORCHARD = '''
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp

import coterie as ct
from coterie.aggregate import Aggregator

RIPE = 7
PICKED = []


@dataclass(frozen=True)
class Harvest(ct.IFCA):
    """An algorithm with a setting of its own."""

    season: Literal["summer", "autumn"] = field(default="summer", kw_only=True)


@dataclass(frozen=True)
class Sow:
    """An initialiser."""

    depth: float = 1.0

    def __call__(self, server, key, k):
        one = server.learner.init(key, server.spec)
        return [one] * k
        yield


@dataclass(frozen=True)
class Graft(ct.Local):
    """An algorithm whose parts have a default, or none."""

    seeds: Sow = field(default=Sow(2.0), kw_only=True, metadata={"part": "init"})
    basket: Aggregator = field(kw_only=True, metadata={"part": "aggregate"})


@dataclass(frozen=True)
class Tree:
    """A model whose parameters are one bare array."""

    height: float = 1.0

    def init(self, key, x):
        return jnp.full(x.shape[1], self.height)

    def apply(self, params, x):
        return x @ params


@dataclass(frozen=True)
class Heaviest(ct.Median):
    """An aggregator."""

    most: int = 3


def baskets(count: int, seed: int = 0) -> ct.Federated:
    return ct.data.mixed_regression(clients=count, k=2, dim=3, examples=4, seed=seed)


def pick(row: int) -> Tree:
    PICKED.append(row)
    return Tree()
'''


@pytest.fixture(scope="module")
def orchard(tmp_path_factory):
    """A module of the user's own, beside two that cannot be imported."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "orchard.py").write_text(ORCHARD)
    (folder / "blighted.py").write_text("def grow(:\n")
    (folder / "fallow.py").write_text("raise ValueError('nothing\\ngrows here')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("orchard")
    sys.modules.pop("orchard")


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("algorithm", "Harvest", {"k": 3, "season": "autumn", "rounds": 5}),
        ("algorithm", "Harvest", {"k": 3, "init": {"name": "orchard.Sow", "depth": 2.5}}),
        ("algorithm", "Graft", {"basket": {"name": "trimmed-mean", "beta": 0.2}}),
        (
            "algorithm",
            "Graft",
            {"basket": "orchard.Heaviest", "seeds": {"name": "orchard.Sow", "depth": 3.0}},
        ),
        ("model", "Tree", {"height": 0.5}),
        ("init", "Sow", {"depth": 0.25}),
        ("aggregate", "Heaviest", {"most": 5}),
    ],
)
def test_a_part_of_the_users_own_is_named_by_its_import_path(orchard, kind, name, settings):
    made = registry.build(kind, f"orchard.{name}", settings)
    assert type(made) is getattr(orchard, name)
    described = through_json(registry.describe(kind, made))
    assert described["name"] == f"orchard.{name}"
    for key, value in settings.items():
        assert described[key] == value or described[key]["name"] == value
    again = registry.build(kind, described.pop("name"), described)
    assert again == made and registry.describe(kind, again) == registry.describe(kind, made)
    if kind == "algorithm":
        for part in registry._parts_of(type(made)):  # an initialiser counts in no comparison
            assert getattr(again, part) == getattr(made, part)


def test_one_of_ours_may_have_parts_of_the_users_own(orchard):
    given = {"k": 2, "init": "orchard.Sow", "aggregate": {"name": "orchard.Heaviest", "most": 1}}
    made = registry.build("algorithm", "ifca", given)
    assert made.init == orchard.Sow() and made.aggregate == orchard.Heaviest(1)
    described = through_json(registry.describe("algorithm", made))
    assert described["init"] == {"name": "orchard.Sow", "depth": 1.0}
    assert described["aggregate"] == {"name": "orchard.Heaviest", "most": 1}
    assert registry.build("algorithm", described.pop("name"), described) == made


def test_a_part_that_is_at_its_default_is_not_told(orchard):
    made = orchard.Graft(basket=ct.Mean())
    assert registry.describe("algorithm", made) == {
        "name": "orchard.Graft",
        "rounds": made.rounds,
        "participation": 1.0,
        "basket": {"name": "mean"},
    }


def test_data_may_come_from_a_function_of_the_users_own(orchard):
    data = registry.build("data", "orchard.baskets", {"count": 4, "seed": 3})
    assert len(data.train) == 4
    with pytest.raises(ConfigError, match=r"^data\.count: this setting is required\.$"):
        registry.build("data", "orchard.baskets", {})


@pytest.mark.parametrize("name", ["orchard.pick", "os.mkdir", "subprocess.Popen"])
def test_what_is_saved_calls_no_function_when_it_is_loaded(orchard, tmp_path, name):
    """A result may have been saved by somebody else: it names parts, and does not run things."""
    made = tmp_path / "made"
    settings = {
        "orchard.pick": {"row": 3},
        "os.mkdir": {"path": str(made)},
        "subprocess.Popen": {"args": ["mkdir", str(made)]},
    }[name]
    described = registry.describe_learner(ct.Learner(orchard.Tree(), "squared", ct.SGD(0.1, steps=2)))
    with pytest.raises(ConfigError, match=f"^model: '{name}' is no dataclass, and only those are made"):
        registry.learner_from({**described, "model": {"name": name, **settings}})
    assert orchard.PICKED == [] and not made.exists()


@pytest.mark.parametrize("kind", registry.PARTS)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere.Part", "'nowhere.Part' cannot be imported: No module named 'nowhere'."),
        ("orchard.Pear", "'orchard.Pear' cannot be imported: module 'orchard' has no attribute 'Pear'."),
        ("coterie.Pear", "'coterie.Pear' cannot be imported: "),
        ("orchard.RIPE", "'orchard.RIPE' is neither a class nor a function."),
        (
            "blighted.grow",
            "'blighted.grow' cannot be imported: SyntaxError: invalid syntax (blighted.py, line 1).",
        ),
        ("fallow.Field", "'fallow.Field' cannot be imported: ValueError: nothing grows here."),
        (".Tree", "there is no '.Tree'; choose one of "),
        ("orchard.", "there is no 'orchard.'; choose one of "),
        ("or chard.Tree", "there is no 'or chard.Tree'; choose one of "),
        ("", "there is no ''; choose one of "),
    ],
)
def test_a_name_that_leads_nowhere_gives_one_sentence(orchard, kind, name, sentence):
    for key in (kind, "algorithm.name"):
        with pytest.raises(ConfigError) as raised:
            registry.part(kind, name, key)
        message = str(raised.value)
        assert message.startswith(f"{key}: {sentence}")
        assert message.endswith(".") and "\n" not in message


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "Graft", "rounds": 3}, "algorithm.basket: this setting is required."),
        (
            {"k": 3, "season": "winter"},
            "algorithm.season: input should be 'summer' or 'autumn', not 'winter'.",
        ),
        ({"k": 3, "crop": 1}, "algorithm.crop: there is no such setting."),
        (
            {"k": 3, "init": {"name": "orchard.Sow", "depth": "deep"}},
            "algorithm.init.depth: input should be a",
        ),
        ({"k": 3, "init": "orchard.Reap"}, "algorithm.init: 'orchard.Reap' cannot be imported: "),
        ({"k": 3, "aggregate": "nowhere.Mean"}, "algorithm.aggregate: 'nowhere.Mean' cannot be imported: "),
    ],
)
def test_settings_of_the_users_own_parts_are_checked_too(orchard, settings, sentence):
    settings = dict(settings)
    name = settings.pop("name", "Harvest")
    with pytest.raises(ConfigError) as raised:
        registry.build("algorithm", f"orchard.{name}", settings)
    assert str(raised.value).startswith(sentence)


def test_validate_gives_only_what_was_given_converted():
    assert registry.validate("local", "sgd", {"lr": 1, "steps": 3.0}) == {"lr": 1.0, "steps": 3}
    assert registry.validate("model", "mlp", {"hidden": [3, 4]}) == {"hidden": (3, 4)}
    assert registry.build("local", "sgd", {"steps": 3}) == ct.SGD(lr=0.1, steps=3)  # the rest is as ever


class Ship:
    def __init__(self, crew: int, cargo: list[str] | None = None) -> None: ...


def test_any_signature_is_a_schema_and_arguments_can_be_left_out():
    assert registry.validate_call("ship", Ship, {"crew": 3.0}) == {"crew": 3}
    assert registry.validate_call("ship", Ship, {}, leave_out=("crew",)) == {}
    with pytest.raises(ConfigError, match=r"^ship\.crew: there is no such setting\.$"):
        registry.validate_call("ship", Ship, {"crew": 3}, leave_out=("crew",))
    with pytest.raises(ConfigError, match=r"^ship\.cargo: input should be a valid list, not 'gold'\.$"):
        registry.validate_call("ship", Ship, {"crew": 3, "cargo": "gold"})


def test_a_part_within_a_part_is_given_by_name_or_as_a_table():
    by_name = registry.build("algorithm", "ifca", {"k": 3, "init": "farthest-loss"})
    assert by_name.init == ct.FarthestLoss()
    table = {"name": "moment-descent", "iterations": 7, "estimator": "two"}
    as_table = registry.build("algorithm", "fedx", {"k": 3, "init": table})
    assert as_table.init == ct.MomentDescent(iterations=7, estimator="two")
    described = registry.describe("algorithm", as_table)
    assert described["init"]["name"] == "moment-descent" and described["init"]["iterations"] == 7
    assert registry.build("algorithm", "fedx", {k: v for k, v in described.items() if k != "name"}).init == (
        as_table.init
    )
    assert "init" not in registry.describe("algorithm", ct.IFCA(k=2))
    assert registry.describe("algorithm", ct.IFCA(k=2, init=[[0.0], [1.0]]))["init"] == {"name": "given"}
