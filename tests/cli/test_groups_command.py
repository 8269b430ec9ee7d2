"""`coterie groups`, as a person and as a program use it."""

import json

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app

FILE = """
loss = "squared"
[data]
name = "mixed-regression"
k = 1
clients = 6
examples = 12
dim = 2
noise = 1.0
[local]
name = "sgd"
lr = 0.05
steps = 5
"""


def invoke(*arguments):
    return CliRunner().invoke(app, ["groups", *map(str, arguments)], env={"NO_COLOR": "1"})


@pytest.mark.slow
def test_an_experiment_file_in_and_the_answer_out(tmp_path):
    path = tmp_path / "alike.toml"
    path.write_text(FILE)
    answer = invoke("--config", path, "--rounds", 3)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("No groups")
    plain = json.loads(invoke("--config", path, "--rounds", 3, "--json").stdout)
    assert plain["any"] is False and plain["p"] > 0.05 and plain["accuracy"] is None
    assert plain["found"] == [1, 1] and len(plain["loss"]) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--config", "none.toml"), "none.toml cannot be read"),
        (("--rounds", 0), "rounds must be a whole number from 1 up, not 0"),
        (("--set", "data.name=nothing"), "data.name: there is no 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says):
    answer = invoke(*arguments)
    assert answer.exit_code == 2 and says in answer.stderr and "Traceback" not in answer.stderr
