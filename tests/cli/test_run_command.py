"""`coterie run`, as a person and as a program use it."""

import gc
import importlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager, nullcontext

import pytest
import typer
from typer.testing import CliRunner

import coterie
from coterie.algorithms.observer import Moment, Observer, Place
from coterie.cli.main import app
from coterie.cli.stop import stoppable
from coterie.errors import ConfigError

cli = importlib.import_module("coterie.cli.main")  # `coterie.cli.main` is the function

SMALL = [
    *("--data", "mixed-regression", "--clients", "8", "--set", "data.dim=3", "--set", "data.examples=6"),
    *("--k", "2", "--n-init", "2", "--rounds", "20", "--seed", "5", "--set", "local.steps=2"),
]


def invoke(*arguments):
    """Run the command in this process; columns are wide, so that help is not wrapped."""
    env = {"COLUMNS": "300", "TERM": "dumb", "NO_COLOR": "1"}
    return CliRunner().invoke(app, list(map(str, arguments)), env=env)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its folder, and what was printed."""
    path = tmp_path_factory.mktemp("runs") / "a"
    return path, invoke("run", *SMALL, "--out", path)


def test_a_run_prints_its_results_and_leaves_everything_in_its_folder(finished):
    path, answer = finished
    assert answer.exit_code == 0, answer.output
    for name in (
        "experiment.toml",
        "rounds.jsonl",
        "clustering.json",
        "models.safetensors",
        "evaluation.json",
    ):
        assert (path / name).exists()
        assert (path / "baselines" / "global" / name).exists()
        assert (path / "baselines" / "local" / name).exists()
    # with the contest of the starts and the last exchange
    assert len((path / "rounds.jsonl").read_text().splitlines()) == 20 + 2
    found = coterie.load(path)
    assert len(found.assignment) == 8 and found.algorithm["k"] == 2 and found.seed == 5
    rows = [line.split() for line in answer.stdout.splitlines()]
    methods = ["ifca", "global", "local"]
    assert [row[0] for row in rows if len(row) > 5 and row[0] in methods] == methods
    assert ["true", "0", "true", "1"] in rows
    assert f"The run is in {path}. See it in pictures: coterie report {path}" in answer.stdout


def test_piped_progress_is_plain_lines_on_stderr(finished):
    _, answer = finished
    lines = answer.stderr.splitlines()
    assert re.fullmatch(r"ifca: of 2 starts, start [12] has .*", lines.pop(5)), answer.stderr
    form = r"(ifca|global|local): round \d+/20, loss \d+\.\d{4}, clusters( \d+)+, [\d.]+ rounds/s"
    assert all(re.fullmatch(form, line) for line in lines), answer.stderr
    rounds = [line.split(", ")[0] for line in lines]
    many = [f"{name}: round {t}/20" for name in ("ifca", "global") for t in range(2, 21, 2)]
    assert rounds == [*many, "local: round 20/20"]  # clients carry out all rounds in one exchange
    assert "\x1b" not in answer.stderr


def test_json_is_one_object_and_nothing_else(finished):
    path, _ = finished
    answer = invoke("run", *SMALL, "--out", path, "--resume", "--json")
    assert answer.exit_code == 0 and answer.stdout.count("\n") == 1
    content = json.loads(answer.stdout)
    assert content["folder"] == str(path) and content["clients"] == 8
    assert [row["method"] for row in content["rows"]] == ["ifca", "global", "local"]
    assert all(row["rounds"] == 20 and row["accuracy"] is None for row in content["rows"])
    assert sum(map(sum, content["matrix"])) == 8


def test_a_finished_run_is_not_computed_again(finished):
    path, _ = finished
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    answer = invoke("run", "--resume", "--out", path)
    assert answer.exit_code == 0 and answer.stderr == ""
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_overwrite_computes_it_again(finished, tmp_path):
    path = tmp_path / "b"
    assert invoke("run", *SMALL, "--baselines", "none", "--out", path).exit_code == 0
    answer = invoke("run", *SMALL, "--baselines", "none", "--seed", "6", "--out", path, "--overwrite")
    assert answer.exit_code == 0, answer.output
    assert coterie.load(path).seed == 6 and not (path / "baselines").exists()


@pytest.mark.slow
def test_a_run_in_which_nobody_answers_still_ends(tmp_path):
    path = tmp_path / "a"
    few = ["--rounds", 1, "--baselines", "none", "--set", "simulation.drop=0.999999"]
    answer = invoke("run", *SMALL, *few, "--out", path, "--json")
    assert answer.exit_code == 0, answer.output
    row = json.loads(answer.stdout)["rows"][0]
    assert row["loss"] is not None
    assert json.loads((path / "evaluation.json").read_text())["test"]["chosen_by"] == "shard"
    assert invoke("run", "--out", path, "--resume").exit_code == 0


@pytest.mark.parametrize("rounds", [1, 30])
def test_a_run_that_diverges_says_so(tmp_path, rounds):
    few = ["--rounds", rounds, "--baselines", "none", "--set", "local.lr=1e30"]
    answer = invoke("run", *SMALL, *few, "--out", tmp_path / "a")
    assert answer.exit_code == 2
    assert "training diverged in" in answer.stderr and "lower the learning rate" in answer.stderr


def test_a_report_of_it_can_be_made(finished):
    path, _ = finished
    answer = invoke("report", path)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.strip() == f"The report is {(path / 'report.html').resolve().as_uri()}"
    assert (path / "report.html").stat().st_size > 1000


# -- what is run ------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """What the command would run, without running it."""
    calls = []

    def execute(experiment, folder, **options):
        calls.append((experiment, folder, options))
        raise ConfigError("enough")

    monkeypatch.setattr(cli, "execute", execute)

    def of(*arguments):
        answer = invoke("run", *arguments)
        assert answer.stderr == "error: enough\n", answer.output
        return calls[-1]

    return of


def test_without_options_the_defaults_are_run(asked):
    experiment, folder, options = asked()
    assert experiment.algorithm == {"name": "discover", "rounds": 60}
    assert experiment.data == {"name": "rotated-digits"}
    assert experiment.local == {"name": "sgd", "lr": 0.1, "steps": 10}
    assert experiment.seed == 0 and experiment.baselines == ("global", "local")
    assert str(folder.path) == "runs/discover-rotated-digits-0"
    # told how many groups there are, it is a method that has to know
    told = {"name": "ifca", "k": 4, "rounds": 60, "n_init": 5}
    assert asked("--algorithm", "ifca")[0].algorithm == told
    assert asked("--k", 3)[0].algorithm == told | {"k": 3}
    assert asked("--n-init", 2)[0].algorithm == told | {"n_init": 2}
    assert asked("--k", 3, "--algorithm", "fedsoft")[0].algorithm == {"name": "fedsoft", "rounds": 60, "k": 3}
    folder = asked("--algorithm", "global", "--data", "mixed-regression", "--seed", 3)[1]
    assert str(folder.path) == "runs/global-mixed-regression-3"
    assert (options["resume"], options["overwrite"], options["checkpoint_every"]) == (False, False, 5.0)
    experiment, _, options = asked("--checkpoint-every", 0.5)
    assert options["checkpoint_every"] == 0.5 and "checkpoint" not in experiment.to_toml()


@pytest.mark.parametrize(
    "option, section, expected",
    [
        (("--k", 3), "algorithm", {"name": "ifca", "k": 3, "rounds": 60, "n_init": 5}),
        (("--rounds", 7), "algorithm", {"name": "discover", "rounds": 7}),
        (("--n-init", 2), "algorithm", {"name": "ifca", "k": 4, "rounds": 60, "n_init": 2}),
        (("--algorithm", "global"), "algorithm", {"name": "global", "rounds": 60}),
        (("--algorithm", "local", "--rounds", 7), "algorithm", {"name": "local", "rounds": 7}),
        (("--data", "mixed-regression"), "data", {"name": "mixed-regression"}),
        (("--clients", 8), "data", {"name": "rotated-digits", "clients": 8}),
        (("--seed", 9), "seed", 9),
        (("--baselines", "none"), "baselines", ()),
        (("--baselines", "local, global"), "baselines", ("local", "global")),
        (("--set", "local.lr=0.05"), "local", {"name": "sgd", "lr": 0.05, "steps": 10}),
        (("--set", " loss = squared "), "loss", "squared"),
        (
            ("--set", "data.rotations=[0, 180]"),
            "data",
            {"name": "rotated-digits", "rotations": [0, 180]},
        ),
        (("--set", "seed=3", "--set", "seed=4"), "seed", 4),
        (("--set", "simulation.batch=auto"), "simulation", {"batch": "auto"}),
        (
            ("--set", "model.name=linear", "--set", "model.bias=true"),
            "model",
            {"name": "linear", "bias": True},
        ),
    ],
)
def test_an_option_changes_one_setting(asked, option, section, expected):
    assert getattr(asked(*option)[0], section) == expected


@pytest.mark.parametrize("text, value", [("0.5", 0.5), ("1.0", 1.0), ("1", 1), ("20", 20)])
def test_participation_is_a_fraction_or_a_number(asked, text, value):
    share = asked("--participation", text)[0].algorithm["participation"]
    assert share == value and type(share) is type(value)


def test_options_come_before_the_file(asked, tmp_path):
    config = tmp_path / "experiment.toml"
    config.write_text(
        """
        seed = 7
        [data]
        name = "mixed-regression"
        dim = 3
        [algorithm]
        name = "ifca"
        k = 3
        rounds = 9
        """
    )
    experiment, folder, _ = asked("--config", config, "--k", 2, "--out", tmp_path / "x")
    assert experiment.algorithm == {"name": "ifca", "k": 2, "rounds": 9}
    assert experiment.data == {"name": "mixed-regression", "dim": 3} and experiment.seed == 7
    assert folder.path == tmp_path / "x"
    # another algorithm has other settings, but as many rounds
    assert asked("--config", config, "--algorithm", "global")[0].algorithm == {"name": "global", "rounds": 9}
    # the same one keeps them
    assert asked("--config", config, "--algorithm", "ifca")[0].algorithm["k"] == 3
    # another data set has other settings
    assert asked("--config", config, "--data", "inverted-digits")[0].data == {"name": "inverted-digits"}
    # the former one can be asked for again
    config.write_text("[algorithm]\nname = 'global'\n")
    assert asked("--config", config, "--algorithm", "ifca")[0].algorithm["k"] == 4


def test_a_file_or_a_folder_of_the_users_own_is_named_like_a_data_set(asked, tmp_path):
    experiment, folder, _ = asked("--data", "plant/readings.csv", "--client", "machine", "--label", "fault")
    table = {"name": "table", "source": "plant/readings.csv", "client": "machine", "label": "fault"}
    assert experiment.data == table
    assert str(folder.path) == "runs/discover-readings-0"
    experiment, folder, _ = asked("--data", tmp_path, "--label", "fault", "--set", "data.test=0.5")
    assert experiment.data == {"name": "folder", "path": str(tmp_path), "label": "fault", "test": 0.5}
    assert folder.path.name == f"discover-{tmp_path.name}-0"


def test_resuming_without_options_continues_the_default_run(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default = tmp_path / "runs" / "discover-rotated-digits-0"
    default.mkdir(parents=True)
    (default / "experiment.toml").write_text("[algorithm]\nname = 'ifca'\nk = 3\n")
    assert asked("--resume")[0].algorithm["k"] == 3
    # where there is nothing yet, it begins
    experiment, _, options = asked("--resume", "--out", tmp_path / "new", "--k", 5)
    assert experiment.algorithm["k"] == 5 and options["resume"]


# -- help -------------------------------------------------------------------------------------------------


def test_help_tells_of_every_command_and_option():
    command = typer.main.get_command(app)
    assert set(command.commands) == {"run", "report", "reproduce", "groups", "compare", "flower"}
    for name, sub in command.commands.items():
        answer = invoke(name, "--help")
        text = plain(answer.stdout)
        assert answer.exit_code == 0 and "Usage:" in text
        assert sub.help.split(":")[0] in text
        for option in sub.params:
            assert option.opts[0] in text
            if option.param_type_name == "option":  # older releases of Typer do not show that of an argument
                assert option.help and option.help.replace("`", "").split(".")[0] in text
    assert "[default: discover;" in plain(invoke("run", "--help").stdout)
    for arguments in ([], ["--help"]):
        text = plain(invoke(*arguments).stdout)
        assert "Find the groups hidden among federated clients" in text
        assert "run" in text and "report" in text and "--version" in text


# -- in a process of its own ------------------------------------------------------------------------------


def test_the_version_of_the_installed_command():
    command = os.path.join(os.path.dirname(sys.executable), "coterie")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"coterie {coterie.__version__}\n" and answer.stderr == ""


@pytest.mark.slow
def test_on_a_terminal_progress_is_a_bar_and_json_is_still_json(tmp_path):
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "coterie", "run", *SMALL, "--baselines", "none", "--json"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "a")],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(controller)
    content, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown.decode()
    assert json.loads(content)["rows"][0]["rounds"] == 20
    text = shown.decode()
    assert "\x1b[" in text
    last = plain(text).replace("\r", "\n").strip().splitlines()[-1]
    for part in ("ifca", "━", "20/20", "loss 0.", "clusters ", "rounds/s"):
        assert part in last
    assert tomllib.loads((tmp_path / "a" / "experiment.toml").read_text())["baselines"] == []


# -- Ctrl-C -----------------------------------------------------------------------------------------------


class Presses(Observer):
    """Presses Ctrl-C after the third round: at once, or where Python drops what that raises."""

    def __init__(self, dropped):
        self.dropped = dropped

    def press(self, *_):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # a signal is heard of between two steps of Python
            pass

    def after(self, moment):
        if moment.place.done != 3 or not self.dropped:
            return None if moment.place.done < 3 else self.press()
        gc.callbacks.append(self.press)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(self.press)


@pytest.fixture
def foreground():
    """As in a terminal, wherever these tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_ends_a_run_and_says_how_to_go_on(finished, tmp_path, monkeypatch, dropped):
    monkeypatch.setattr(cli, "lines", lambda console, name, rounds: nullcontext(Presses(dropped)))
    out = tmp_path / "a run"
    answer = invoke("run", *SMALL, "--out", out, "--checkpoint-every", 0)
    assert answer.exit_code == 130
    assert answer.stderr == (
        f"stopped: what was computed is kept; go on with: coterie run --resume --out '{out}'\n"
    )
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = (out / "rounds.jsonl").read_text().splitlines()
    assert len(before) == 3
    monkeypatch.undo()
    assert invoke("run", "--resume", "--out", out).exit_code == 0
    assert (out / "rounds.jsonl").read_text().splitlines()[:3] == before
    for name in ("models.safetensors", "baselines/global/models.safetensors"):
        assert (out / name).read_bytes() == (finished[0] / name).read_bytes()


@pytest.mark.usefixtures("foreground")
def test_in_the_background_it_is_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable(lambda: "never") as stop:
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.asked


@pytest.mark.usefixtures("foreground")
@pytest.mark.parametrize("speaks", [True, False])
def test_of_several_processes_one_says_so(capsys, speaks):
    with pytest.raises(typer.Exit) as raised, stoppable(lambda: "here.", speaks):
        os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.exit_code == 130
    assert capsys.readouterr().err == ("stopped: here.\n" if speaks else "")


def test_ctrl_c_before_anything_is_computed(tmp_path, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "execute", pressed)
    answer = invoke("run", *SMALL, "--out", tmp_path / "a")
    assert (answer.exit_code, answer.stderr) == (130, "stopped: nothing was computed yet.\n")


@pytest.mark.usefixtures("foreground")
@pytest.mark.parametrize("dropped", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_ends_a_reproduction(tmp_path, monkeypatch, dropped):
    presses = Presses(dropped)

    @contextmanager
    def shown(console, name, steps):
        yield lambda done, said: said and presses.after(Moment(None, Place(3), None, None, ()))

    monkeypatch.setattr("coterie.papers.progress.lines", shown)
    out = tmp_path / "a"
    answer = invoke("reproduce", "ifca/rates", "--scale", "smoke", "--out", out)
    assert answer.exit_code == 130
    assert answer.stderr == "stopped: finished points are kept; the same command goes on.\n"
    assert len(list((out / "points").iterdir())) == 1
