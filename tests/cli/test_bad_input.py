"""A user's mistake: one sentence, exit code 2, never a traceback."""

import errno
import os

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app

REGRESSION = ["--data", "mixed-regression", "--clients", "8", "--k", "2", "--rounds", "2"]


def refused(*arguments):
    """The sentence with which the command refuses."""
    answer = CliRunner().invoke(app, list(map(str, arguments)))
    assert answer.exit_code == 2, answer.output
    assert isinstance(answer.exception, SystemExit)
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1 and answer.stderr.startswith("error: "), answer.stderr
    return answer.stderr.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a.csv"], "--data a.csv: say which column names the clients and which one"),
        (["a.parquet", "--client", "c"], "--data a.parquet: say which column names the clients"),
        ([".", "--client", "c", "--label", "y"], "--client is for one file with all clients; . has a file"),
        (["a.csv", "--client", "c", "--label", "y"], "a.csv cannot be read: there is no such file."),
        (["rotated-digits", "--label", "y"], "data.label: there is no such setting."),
        (["digits"], "data.name: there is no 'digits'; choose one of rotated-digits, "),
    ],
)
def test_data_must_be_there_and_of_the_right_kind(tmp_path, arguments, message):
    assert refused("run", "--out", tmp_path / "run", "--data", *arguments).startswith(message)
    assert refused("groups", "--data", *arguments).startswith(message)
    assert refused("compare", "--out", tmp_path / "run", "--data", *arguments).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "rounds must be a whole number from 1 up, not 0."),
        (["--seeds", "0"], "seeds must be a whole number from 1 up, not 0."),
        (["--config", "nowhere.toml"], "nowhere.toml cannot be read: No such file or directory."),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(tmp_path, arguments, message):
    out = tmp_path / "run"
    assert refused("compare", "--data", "mixed-regression", "--out", out, *arguments) == message
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        # settings that make no sense
        (["--k", "0"], "k must be at least 1, not 0."),
        (["--k", "9"], "k=9 clusters need at least as many clients; there are 8."),
        (["--rounds", "0"], "rounds must be at least 1, not 0."),
        (["--n-init", "0"], "n_init must be at least 1, not 0."),
        (["--participation", "0"], "participation must be a fraction above 0"),
        (["--participation", "1.5"], "participation must be a fraction above 0"),
        (["--participation", "9"], "participation=9 asks for more than the 8 clients there are."),
        (["--participation", "abc"], "algorithm.participation: input should be a valid number"),
        (["--seed", "-1"], "seed: must be a whole number from 0"),
        (["--set", "local.lr=-0.1"], "lr must be a positive number, not -0.1."),
        (["--set", "local.lr=fast"], "local.lr: input should be a valid number"),
        (["--set", "local.steps=0"], "steps must be a whole number from 1 up, not 0."),
        (["--set", "local.epochs=1"], "a local update needs either steps or epochs, and not both."),
        (
            ["--set", "simulation.batch=0"],
            "batch must be 'auto', 'tune' or a number of clients",
        ),
        (["--set", "simulation.drop=1"], "drop must be a probability below 1"),
        # names and keys that there are not
        (
            ["--algorithm", "afci"],
            "algorithm.name: there is no 'afci'; choose one of ifca, fedx, srfca, discover, cfl, "
            "fedsoft, one-shot-kmeans, oracle, global, local, or give the import path of your own, such "
            "as 'mypackage.MyClass'.",
        ),
        (
            ["--algorithm", "mine.Own"],
            "algorithm.name: 'mine.Own' cannot be imported: No module named 'mine'.",
        ),
        (
            ["--algorithm", "coterie.SGD"],
            "algorithm.name: 'coterie.SGD' is no subclass of coterie.Algorithm.",
        ),
        (["--baselines", "global,.x"], "baselines: there is no '.x'; choose one of ifca, "),
        (["--data", "mnist"], "data.name: there is no 'mnist'; choose one of rotated-digits, "),
        (["--baselines", ""], "baselines: there is no ''; choose one of ifca, "),
        (["--algorithm", "global", "--set", "algorithm.k=2"], "algorithm.k: there is no such setting."),
        (["--set", "nonsense.key=1"], "nonsense: there is no such setting."),
        (["--set", "algorithm.kk=1"], "algorithm.kk: there is no such setting."),
        (["--set", "algorithm.k.k=1"], "algorithm.k: there is no such setting."),
        # --set that cannot be understood
        (["--set", "seed"], "a setting is given as KEY=VALUE, such as local.lr=0.05, not 'seed'."),
        (["--set", "=3"], "a setting is given as KEY=VALUE, such as local.lr=0.05, not '=3'."),
        (["--set", ""], "a setting is given as KEY=VALUE, such as local.lr=0.05, not ''."),
        (["--set", "algorithm=3"], "algorithm: must be a section, [algorithm] in a file, not 3."),
        (["--set", "data.name=null"], "data.name: this setting is required."),
        # a learner that does not fit the data
        (["--set", "loss=cross_entropy"], "cross_entropy needs integer class labels"),
        (
            ["--set", "model.name=linear", "--set", "model.outputs=3"],
            "the model gives outputs of shape (3,) but the targets have shape ().",
        ),
        (["--set", "augment.name=crop"], "Crop needs images, of shape (height, width) or "),
        # options that contradict each other
        (["--resume", "--overwrite"], "--resume continues a run and --overwrite replaces it"),
    ],
)
def test_a_mistake_in_the_options_is_one_sentence(tmp_path, arguments, message):
    out = tmp_path / "run"
    assert refused("run", *REGRESSION, "--out", out, *arguments).startswith(message)
    assert not out.exists()  # what cannot be run leaves no trace


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--set", "data.rotations=[0, 45]"], "rotation 45 is not a multiple of 90 degrees."),
        (["--set", "data.rotations=[]"], "40 clients cannot fill 0 clusters"),
        (["--set", "data.rotations=up"], "data.rotations: "),
        (["--algorithm", "global", "--baselines", "fedsoft"], "baselines: fedsoft lacks settings"),
        (["--algorithm", "global", "--baselines", "ifca"], "baselines: ifca: k must be given"),
        (["--clients", "3"], "3 clients cannot fill 4 clusters"),
        (["--clients", "1000000"], "cannot split 1438 examples over 250000 clients"),
        (
            ["--set", "model.name=mlp", "--set", "model.outputs=3"],
            "the model gives outputs of shape (3,) but the labels need (10,): one output per class.",
        ),
    ],
)
def test_a_mistake_on_top_of_the_defaults_is_one_sentence(tmp_path, arguments, message):
    assert refused("run", "--out", tmp_path / "run", *arguments).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["ruin"], "ruin"),
        (["run", "--kk", "3"], "--kk"),
        (["report"], "Missing argument"),
        (["run", "--k", "two"], "--k"),
        (["run", "--rounds", "1.5"], "--rounds"),
        (["run", "--checkpoint-every", "-1"], "--checkpoint-every"),
    ],
)
def test_a_command_or_option_that_there_is_not_is_refused(arguments, word):
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2 and word in answer.stderr and "Traceback" not in answer.output


# -- experiment files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content, message",
    [
        (b"seed = = 3", "is not valid TOML: "),
        (None, "cannot be read: No such file or directory."),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, message):
    config = tmp_path / "experiment.toml"
    if content is not None:
        config.write_bytes(content)
    assert refused("run", "--config", config, "--k", 3).startswith(f"{config} {message}")


# -- folders ----------------------------------------------------------------------------------------------


def test_there_must_be_a_run_to_resume_or_to_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refused("run", "--resume", "--out", tmp_path / "nowhere")
    assert message == f"{tmp_path / 'nowhere'} holds no run (experiment.toml is missing)."
    assert refused("run", "--resume").startswith("runs/discover-rotated-digits-0 holds no run")
    for path in (tmp_path, tmp_path / "nowhere"):
        assert str(path) in refused("report", path)
    assert os.listdir(tmp_path) == []


@pytest.fixture
def locked(tmp_path):
    """A folder that may not be looked into."""
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o000)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: to root no folder is locked
    yield folder
    os.seteuid(user)
    folder.chmod(0o700)


def test_a_folder_that_may_not_be_used_is_named(locked):
    for command in (
        ["run", *REGRESSION, "--out", locked / "run"],
        ["run", *REGRESSION, "--out", locked / "run", "--overwrite"],
        ["run", "--resume", "--out", locked / "run"],
        ["run", "--config", locked / "experiment.toml"],
        ["report", locked / "run"],
    ):
        message = refused(*command)
        assert "Permission denied" in message and str(locked) in message


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refused("run", *REGRESSION, "--out", tmp_path / "run")
    assert message.startswith(
        f"cannot write {tmp_path / 'run' / 'experiment.toml'}: No space left on device."
    )
    assert os.listdir(tmp_path / "run") == []
