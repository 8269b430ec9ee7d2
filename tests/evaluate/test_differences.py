"""What distinguishes groups, where it is known."""

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.evaluate.differences import Differences, differences


def table(seed=0):
    """Two groups of three clients: heat does the opposite, speed the same, and group 1 is louder."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(6), 80)
    side = np.where(who % 2, 1, -1)
    heat, speed = rng.normal(60, 8, 480), rng.normal(100, 5, 480)
    noise = rng.normal(0, 1, 480) + side
    y = 3 * side * (heat - 60) / 8 + 2 * (speed - 100) / 5
    return pd.DataFrame({"m": who, "heat": heat, "speed": speed, "noise": noise, "y": y})


@pytest.fixture(scope="module")
def found():
    data = ct.data.table(table(), client="m", label="y")
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.2, steps=20))
    return ct.Oracle(np.arange(6) % 2, rounds=10).fit(data.train, learner, seed=0), data.train


def test_effects_are_what_outputs_rise_by_from_low_to_high(found):
    told = differences(*found)
    assert told.features == ("heat", "speed", "noise") and told.of == ("y",) * 3
    heat, speed, noise = (told.features.index(name) for name in ("heat", "speed", "noise"))
    # of a linear model twice the coefficient of a scaled feature, in units of the target: 2 * 3 and 2 * 2
    rows = table()
    np.testing.assert_allclose(told.effects[:, heat], np.array([-6, 6]) * rows["heat"].std() / 8, rtol=0.05)
    np.testing.assert_allclose(told.effects[:, speed], [4 * rows["speed"].std() / 5] * 2, rtol=0.05)
    assert told.order()[0] == heat
    assert told.means[1, noise] - told.means[0, noise] == pytest.approx(np.sqrt(2), rel=0.2)
    text = str(told)
    assert text.startswith("From low to high values, groups differ most in what these do: heat (y: +")
    assert "speed" not in text
    assert "Their inputs differ in noise (+0." in text and "heat (+" not in text


def test_probabilities_are_of_the_class_in_which_groups_differ_most():
    rows = table()
    rows["y"] = np.where(rows["y"] > 2, "high", np.where(rows["y"] < -2, "low", "middle"))
    data = ct.data.table(rows, client="m", label="y")
    learner = ct.Learner(ct.models.Linear(bias=True), local=ct.SGD(lr=0.5, steps=20))
    told = differences(ct.Oracle(np.arange(6) % 2, rounds=10).fit(data.train, learner, seed=0), data.train)
    heat = told.features.index("heat")
    assert told.probabilities and told.of[heat] in ("y = high", "y = low")
    assert abs(told.effects).max() <= 1 and told.effects[0, heat] * told.effects[1, heat] < 0
    assert " points in group " in str(told)


def test_of_one_group_and_of_images_there_is_nothing_to_tell(found):
    clustering, train = found
    one = ct.Global(rounds=1).fit(train, clustering.learner, seed=0)
    assert differences(one, train) is None
    digits = ct.data.rotated_digits(clients=2, rotations=(0, 90)).train
    images = ct.Oracle([0, 1], rounds=1).fit(digits, ct.Learner(ct.models.Linear()), seed=0)
    assert differences(images, digits) is None


def test_words_for_what_does_not_differ():
    none = Differences(("a",), (0, 1), np.zeros((2, 1)), ("y",), np.zeros((2, 1)), np.ones(1), False)
    assert str(none) == (
        "No feature has another effect in one group than in another. Their inputs are alike in the mean."
    )
