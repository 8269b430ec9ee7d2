"""Experiment files: every setting decided, every mistake named by its key."""

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.errors import ConfigError
from coterie.run.config import DEFAULTS, Experiment, difference, settings_of

REGRESSION = {
    "data": {"name": "mixed-regression", "clients": 6, "examples": 4, "dim": 3},
    "algorithm": {"name": "ifca", "k": 2, "rounds": 3},
}


def refused(content):
    """The sentence with which an experiment is refused."""
    with pytest.raises(ConfigError) as raised:
        Experiment.read(content)
    message = str(raised.value)
    assert "\n" not in message and message.endswith(".")
    return message


def read_file(path):
    return Experiment.read(Experiment.from_file(path))


# -- what works -------------------------------------------------------------------------------------------


def test_the_defaults_are_a_whole_experiment():
    experiment = Experiment.read({})
    data = experiment.make_data()
    decided = experiment.decided(data.train.spec)
    assert data.name == "rotated digits" and len(data.train) == 40
    assert decided.make_algorithm() == ct.Discover(rounds=60)
    learner = decided.make_learner()
    assert learner.local == ct.SGD(lr=0.1, steps=10) and learner.augment is None
    assert learner.for_data(data.train.spec).loss == "cross_entropy"
    assert experiment.baselines == ("global", "local")


def test_reading_an_experiment_leaves_the_defaults_alone():
    Experiment.read({}).algorithm["rounds"] = 99
    Experiment().local["lr"] = 99
    assert DEFAULTS["algorithm"]["rounds"] == 60 and DEFAULTS["local"]["lr"] == 0.1


def test_a_file_decides_every_part(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        """
        seed = 7
        loss = "half_squared"
        baselines = []
        [data]
        name = "mixed-regression"
        clients = 6
        examples = [1, 2, 3, 4, 5, 6]
        dim = 3
        [model]
        name = "mlp"
        hidden = [5, 4]
        [local]
        name = "sgd"
        lr = 1
        epochs = 2
        batch_size = 3
        [augment]
        name = "distort"
        size = 12
        contrast = [0.5, 2]
        [algorithm]
        name = "global"
        rounds = 9
        participation = 2
        [simulation]
        batch = 2
        precision = "float32"
        """
    )
    experiment = read_file(path)
    assert experiment.make_data().train.sizes.tolist() == [1, 2, 3, 4, 5, 6]
    learner = experiment.make_learner()
    assert learner.model == ct.models.MLP(hidden=(5, 4)) and learner.loss == "half_squared"
    assert learner.local == ct.SGD(lr=1.0, epochs=2, batch_size=3)
    assert learner.augment == ct.Distort(12, contrast=(0.5, 2.0))
    assert experiment.make_algorithm() == ct.Global(rounds=9, participation=2)
    assert experiment.baselines == ()
    assert experiment.simulation_settings() == {"batch": 2, "precision": "float32"}


def test_the_file_of_the_demo_is_valid(request):
    demo = request.config.rootpath / "examples" / "demo.toml"
    assert read_file(demo).make_algorithm() == ct.IFCA(k=4, rounds=60, n_init=10)


def test_a_file_is_utf_8_whatever_the_locale(tmp_path, monkeypatch):
    path = tmp_path / "experiment.toml"
    path.write_bytes("# naïve, 90°\nseed = 3\n".encode())
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")
    assert read_file(path).seed == 3


def test_the_seed_of_the_experiment_is_that_of_the_data_unless_it_has_its_own():
    def x(content):
        return Experiment.read({**REGRESSION, **content}).make_data().train.buckets[0].x

    own = {"data": {**REGRESSION["data"], "seed": 5}}
    np.testing.assert_array_equal(x({"seed": 5}), x({"seed": 6, **own}))
    assert not np.array_equal(x({"seed": 5}), x({"seed": 6}))


@pytest.mark.parametrize(
    "content, loss, model",
    [
        ({}, "cross_entropy", {"name": "mlp"}),
        (REGRESSION, "squared", {"name": "linear"}),
        ({**REGRESSION, "loss": "half_squared"}, "half_squared", {"name": "linear"}),
        ({"model": {"name": "linear", "bias": True}}, "cross_entropy", {"name": "linear", "bias": True}),
    ],
)
def test_what_was_left_open_is_chosen_to_fit_the_data(content, loss, model):
    experiment = Experiment.read(content)
    decided = experiment.decided(experiment.make_data().train.spec)
    assert (decided.loss, decided.model) == (loss, model)
    assert experiment.loss == content.get("loss")  # a copy was decided


@pytest.mark.parametrize("name, expected", [("global", ct.Global), ("local", ct.Local)])
def test_a_baseline_gets_the_same_rounds_and_participation(name, expected):
    section = {"name": "ifca", "k": 2, "n_init": 3, "rounds": 17, "participation": 0.25}
    experiment = Experiment.read({**REGRESSION, "seed": 4, "algorithm": section})
    baseline = experiment.baseline(name)
    assert baseline.make_algorithm() == expected(rounds=17, participation=0.25)
    assert baseline.baselines == ()
    assert (baseline.seed, baseline.data, baseline.local) == (4, experiment.data, experiment.local)


# -- what does not ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, message",
    [
        ({"sed": 1}, "sed: there is no such setting."),
        ({"seed": "x"}, "seed: input should be a valid integer"),
        ({"seed": math.nan}, "seed: "),
        ({"seed": -1}, "seed: must be a whole number from 0"),
        ({"seed": 2**63}, "seed: must be a whole number from 0"),
        ({"data": {"name": "rotated-digits", "seed": -1}}, "data.seed: must be a whole number from 0"),
        ({"loss": "hinge"}, "loss: there is no 'hinge'; choose one of cross_entropy, "),
        ({"loss": 3}, "loss: "),
        ({"baselines": "global"}, "baselines: "),
        ({"baselines": ["global", "lokal"]}, "baselines: there is no 'lokal'; choose one of ifca, "),
        ({"algorithm": 3}, "algorithm: must be a section, [algorithm] in a file, not 3."),
        ({"model": None}, "model: must be a section"),
        ({"augment": "crop"}, "augment: must be a section, [augment] in a file, not 'crop'."),
        ({"augment": {"size": 3}}, "augment.name: this setting is required."),
        ({"augment": {"name": "blur"}}, "augment.name: there is no 'blur'; choose one of crop, distort, or "),
        ({"augment": {"name": "crop", "size": "big"}}, "augment.size: input should be a valid integer"),
        ({"augment": {"name": "distort", "contrast": [1]}}, "augment.contrast.1: "),
        ({"simulation": []}, "simulation: must be a section"),
        ({"algorithm": {}}, "algorithm.name: this setting is required."),
        ({"algorithm": {"k": 3}}, "algorithm.name: this setting is required."),
        ({"data": {"name": 5}}, "data.name: there is no 5; choose one of rotated-digits, "),
        ({"data": {"name": ["a"]}}, "data.name: there is no ['a']; choose one of rotated-digits, "),
        ({"data": {"name": "mnist"}}, "data.name: there is no 'mnist'; choose one of rotated-digits, "),
        ({"algorithm": {"name": "afci"}}, "algorithm.name: there is no 'afci'; choose one of ifca, "),
        ({"model": {"name": "resnet"}}, "model.name: there is no 'resnet'; choose one of linear, "),
        ({"local": {"name": "adam"}}, "local.name: there is no 'adam'; choose one of sgd, proximal, or "),
        ({"local": {"name": ".SGD"}}, "local.name: there is no '.SGD'; choose one of sgd, proximal, or "),
        ({"local": {"name": "no way.x"}}, "local.name: there is no 'no way.x'; choose one of sgd, "),
        (
            {"local": {"name": "nowhere.SGD"}},
            "local.name: 'nowhere.SGD' cannot be imported: No module named ",
        ),
        ({"model": {"name": "coterie.models.Net"}}, "model.name: 'coterie.models.Net' cannot be imported: "),
        ({"model": {"name": "coterie.models.mlp"}}, "model.name: 'coterie.models.mlp' is neither a class "),
        (
            {"algorithm": {"name": "math.sin"}},
            "algorithm.name: 'math.sin' is no subclass of coterie.Algorithm.",
        ),
        (
            {"algorithm": {"name": "coterie.SGD"}},
            "algorithm.name: 'coterie.SGD' is no subclass of coterie.Alg",
        ),
        ({"baselines": ["coterie.SGD"]}, "baselines: 'coterie.SGD' is no subclass of coterie.Algorithm."),
        ({"baselines": ["nowhere.Own"]}, "baselines: 'nowhere.Own' cannot be imported: No module named "),
        ({"algorithm": {"name": "fedsoft"}}, "algorithm.k: this setting is required."),
        ({"algorithm": {"name": "ifca", "kk": 3}}, "algorithm.k"),
        ({"algorithm": {"name": "ifca", "k": 3, "kk": 3}}, "algorithm.kk: there is no such setting."),
        ({"algorithm": {"name": "ifca", "k": "four"}}, "algorithm.k: input should be a valid integer"),
        ({"algorithm": {"name": "ifca", "k": 2, "weight": "x"}}, "algorithm.weight: "),
        ({"local": {"name": "sgd", "steps": 1, "lr": "fast"}}, "local.lr: input should be a valid number"),
        ({"model": {"name": "mlp", "hidden": 5}}, "model.hidden: "),
        ({"simulation": {"batc": 5}}, "simulation.batc: there is no such setting."),
        ({"simulation": {"shards": 5}}, "simulation.shards: there is no such setting."),
        ({"simulation": {"precision": "f16"}}, "simulation.precision: "),
        (
            {"algorithm": {"name": "global"}, "baselines": ["fedsoft"]},
            "baselines: fedsoft lacks settings that global does not have: algorithm.k: ",
        ),
    ],
)
def test_a_mistake_is_named_by_its_key(content, message):
    assert refused(content).startswith(message)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"seed = = 3\n", "is not valid TOML: "),
        (b"seed = 3\nseed = 4\n", "is not valid TOML: "),
        (b"# caf\xe9\nseed = 3\n", "is not valid TOML: "),
        (None, "cannot be read: No such file or directory."),
        ("a folder", "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, reason):
    path = tmp_path / "experiment.toml"
    if content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        Experiment.from_file(path)
    assert str(raised.value).startswith(f"{path} {reason}") and "\n" not in str(raised.value)


# -- as a file --------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ['"', "\\", '\\"', "\x00", "\x7f", "\r\n\t", "é", "\u2028", "\U000e0001", "😀", "#", "'''"]
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.sampled_from([1e-300, 1e22, -0.0])
plain = st.booleans() | numbers | texts
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5)
keys = st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True).filter(lambda key: key != "name")
sections = st.builds(lambda name, settings: {"name": name, **settings}, texts, st.dictionaries(keys, values))


@settings(deadline=None, max_examples=25)
@given(
    st.fixed_dictionaries(
        {
            "seed": st.integers(0, 2**63 - 1),
            "baselines": st.lists(texts),
            "data": sections,
            "local": sections,
            "algorithm": sections,
            "simulation": st.dictionaries(keys, values),
        },
        optional={"loss": texts, "model": sections, "augment": sections},
    )
)
def test_what_is_written_reads_back_the_same(content):
    experiment = Experiment(**content)
    back = Experiment(**tomllib.loads(experiment.to_toml()))
    assert back == experiment
    assert difference(experiment, back) is None
    # equality does not tell 1 from 1.0 nor from true
    assert repr(back) == repr(experiment)


def test_settings_survive_the_file_in_their_types():
    section = {"name": "sgd", "steps": 1, "lr": 1e-300, "clip": math.inf, "nesterov": True}
    experiment = Experiment.read({"local": section, "model": {"name": "mlp", "hidden": []}})
    back = Experiment.read(tomllib.loads(experiment.to_toml()))
    assert back == experiment and settings_of(back.local) == settings_of(section)
    assert back.model == {"name": "mlp", "hidden": ()}


# -- which experiment is which ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old, new, words",
    [
        ({"seed": 1}, {"seed": 2}, "its seed is 1, here it is 2"),
        ({}, {"loss": "squared"}, 'its loss is not set, here it is "squared"'),
        (
            {},
            {"data": {"name": "rotated-digits", "clients": 8}},
            "its data.clients is not set, here it is 8",
        ),
        (
            {"algorithm": {"name": "ifca", "k": 2, "rounds": 60}},
            {"algorithm": {"name": "ifca", "k": 2, "rounds": 61}},
            "its algorithm.rounds is 60, here it is 61",
        ),
        (
            {"algorithm": {"name": "ifca", "k": 2, "participation": 1.0}},
            {"algorithm": {"name": "ifca", "k": 2, "participation": 1}},
            "its algorithm.participation is 1.0, here it is 1",
        ),
        (
            {"model": {"name": "mlp", "hidden": [3]}},
            {"model": {"name": "mlp", "hidden": [4]}},
            "its model.hidden is [3], here it is [4]",
        ),
        ({"model": {"name": "mlp"}}, {}, 'its model.name is "mlp", here it is not set'),
        (
            {},
            {"augment": {"name": "crop", "pad": 2}},
            'its augment.name is not set, here it is "crop"',
        ),
    ],
)
def test_the_first_difference_is_named_by_its_key(old, new, words):
    assert difference(Experiment.read(old), Experiment.read(new)) == words


@pytest.mark.parametrize(
    "old, new",
    [
        ({}, {}),
        ({"seed": 3}, {"seed": 3}),
        (
            {"local": {"name": "sgd", "steps": 1, "lr": 1}},
            {"local": {"name": "sgd", "steps": 1, "lr": 1.0}},
        ),
        ({"model": {"name": "mlp", "hidden": [3]}}, {"model": {"hidden": (3,), "name": "mlp"}}),
        ({"baselines": ["global"]}, {"baselines": ("global",)}),
        (
            {"local": {"name": "sgd", "steps": 1, "clip": math.nan}},
            {"local": {"name": "sgd", "steps": 1, "clip": math.nan}},
        ),
    ],
)
def test_the_same_experiment_written_differently_is_the_same(old, new):
    assert difference(Experiment.read(old), Experiment.read(new)) is None
