"""What a server expects of clients that it does not own."""

import math
from fractions import Fraction

import pytest

from coterie.errors import ConfigError, SettingError
from coterie.federation.flower_settings import FlowerSettings
from coterie.run.config import Experiment


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"min_clients": 0}, "min_clients must be at least 1, not 0."),
        ({"min_clients": -3}, "min_clients must be at least 1, not -3."),
        ({"min_replies": 0}, "not 0."),
        ({"min_replies": -1}, "not -1."),
        ({"min_replies": 0.0}, "not 0.0."),
        ({"min_replies": 1.5}, "not 1.5."),
        ({"min_replies": math.nan}, "not nan."),
        ({"min_replies": True}, "not True."),
        ({"deadline": 0}, "deadline must be positive, not 0."),
        ({"deadline": -1.0}, "deadline must be positive, not -1.0."),
        ({"wait": 0.0}, "wait must be positive, not 0.0."),
        ({"max_norm": 0.0}, "max_norm must be positive, not 0.0."),
        ({"poll": math.nan}, "poll must be positive, not nan."),
    ],
)
def test_what_cannot_be_expected_is_refused(settings, sentence):
    with pytest.raises(SettingError) as raised:
        FlowerSettings(**settings)
    assert str(raised.value).endswith(sentence) and "\n" not in str(raised.value)
    assert next(iter(settings)) in str(raised.value)


@pytest.mark.parametrize(
    "min_replies, asked, needed",
    [
        (1.0, 7, 7),
        (1, 7, 1),
        (3, 7, 3),
        (3, 2, 2),
    ],
)
def test_how_many_must_answer(min_replies, asked, needed):
    assert FlowerSettings(min_replies=min_replies).needed(asked) == needed


def test_a_fraction_is_rounded_up_and_no_further():
    for percent in range(1, 101):
        settings = FlowerSettings(min_replies=percent / 100)
        for asked in range(1, 101):
            assert settings.needed(asked) == math.ceil(Fraction(percent, 100) * asked), (
                f"{percent} % of {asked}"
            )


# -- in an experiment file --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"deadlines": 3}, "flower.deadlines: there is no such setting."),
        ({"deadline": "soon"}, "flower.deadline: "),
        ({"min_clients": 2.5}, "flower.min_clients: "),
        ({"min_replies": "half"}, "flower.min_replies"),
        ({"grid": 1}, "flower.grid: there is no such setting."),
        ({"wait": -1}, "wait must be positive, not -1."),
    ],
)
def test_a_bad_setting_of_an_experiment_is_named(settings, sentence):
    with pytest.raises((ConfigError, SettingError)) as raised:
        Experiment.read({"flower": settings})
    assert sentence in str(raised.value)


@pytest.mark.parametrize("min_replies", [1, 1.0])
def test_one_reply_and_all_replies_are_told_apart_through_a_file(min_replies):
    experiment = Experiment.read({"flower": {"min_replies": min_replies}})
    settings = FlowerSettings(**experiment.flower)
    assert settings.needed(5) == (1 if isinstance(min_replies, int) else 5)
