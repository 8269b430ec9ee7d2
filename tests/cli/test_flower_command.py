"""`coterie flower`: new, keys, up."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.flower.new import new_project


def invoke(*arguments):
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


def sentence(*arguments):
    """What is said of a mistake: one sentence, exit code 2."""
    result = invoke(*arguments)
    assert result.exit_code == 2 and result.exception.__class__ is SystemExit, result.output
    *_, line = result.stderr.strip().splitlines()
    assert "Traceback" not in result.output
    assert line.startswith("error: ") and line.endswith(".")
    return line.removeprefix("error: ")


@pytest.fixture
def project(tmp_path):
    new_project(tmp_path / "study", nodes=2)
    return tmp_path / "study"


def test_help_tells_what_there_is():
    text = invoke("--help").output
    assert all(command in text for command in ("new", "keys", "up"))
    for command in ("new", "keys", "up"):
        assert invoke(command, "--help").exit_code == 0


def test_new_lists_its_files_and_says_how_to_go_on(tmp_path):
    result = invoke("new", tmp_path / "study", "--nodes", 3)
    assert result.exit_code == 0
    for name in ("pyproject.toml", "experiment.toml", "README.md", "study_app.py", ".gitignore"):
        assert str(tmp_path / "study" / name) in result.stdout and (tmp_path / "study" / name).exists()
    assert f"coterie flower up {tmp_path / 'study'} --nodes 3" in result.stdout
    assert "not empty" in sentence("new", tmp_path / "study")


def test_keys_lists_what_it_made_and_says_what_it_kept(tmp_path):
    first = invoke("keys", tmp_path / "k", "--host", "a.example.org", "--node", "a", "--node", "b")
    assert first.exit_code == 0
    written = {path.relative_to(tmp_path / "k").as_posix() for path in map(Path, first.stdout.split())}
    assert written == {
        *("ca.pem", "ca.key", "superlink.pem", "superlink.key"),
        *("nodes/a", "nodes/a.pub", "nodes/b", "nodes/b.pub"),
    }
    assert all((tmp_path / "k" / name).exists() for name in written)
    again = invoke("keys", tmp_path / "k", "--node", "a")
    assert again.exit_code == 0 and "is there already: kept" in again.stdout


def test_keys_and_up_need_to_know_what_to_make_and_of_which_data(project, tmp_path):
    assert "--host" in sentence("keys", tmp_path / "k") and not (tmp_path / "k").exists()
    assert "holds no Flower app" in sentence("up", tmp_path)
    assert "there is no such folder" in sentence("up", project, "--data", tmp_path / "nowhere")
    (tmp_path / "files").mkdir()
    assert "holds no .csv" in sentence("up", project, "--data", tmp_path / "files")
    for name in ("a.csv", "a.npz"):
        (tmp_path / "files" / name).write_text("x,y\n1,2\n")
    assert "two files" in sentence("up", project, "--data", tmp_path / "files")
    assert "leave out --nodes" in sentence("up", project, "--data", tmp_path / "files", "--nodes", 2)


def test_up_refuses_a_port_that_is_taken(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of this machine is taken" in sentence("up", project, "--port", port)


def descendants_of(project):
    """Processes that were started for this project and are still there."""
    mark = f"FLWR_HOME={project / '.flwr'}".encode()
    alive = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes() and (entry / "cmdline").read_bytes():
                alive.append(int(entry.name))
        except OSError:
            continue
    return alive


@contextmanager
def up(project, *options):
    """`coterie flower up` with two nodes as a process of its own, once it is ready; Ctrl-C at the end."""
    command = [sys.executable, "-m", "coterie", "flower", "up", str(project), "--nodes", "2", "--port", "0"]
    said, progress = project.parent / "said", project.parent / "progress"
    with open(said, "w") as output, open(progress, "w") as errors:
        # not measured: coverage makes every start of a process far slower
        env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        env["PYTHONUNBUFFERED"] = "1"
        process = subprocess.Popen([*command, *options], stdout=output, stderr=errors, env=env)
        try:
            until = time.monotonic() + 180
            while "Ready" not in progress.read_text():
                assert process.poll() is None and time.monotonic() < until, progress.read_text()
                time.sleep(0.2)
            yield said.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert "All stopped." in progress.read_text()
    assert descendants_of(project) == []


@pytest.mark.slow
def test_up_says_when_it_is_ready_and_stops_everything(project):
    with up(project) as text:
        assert re.search(r"SuperLink +127\.0\.0\.1:\d+ \(TLS, nodes with keys\)", text)
        assert "node-0" in text and "node-1" in text
        assert f"FLWR_HOME={project / '.flwr'} flwr run {project} local --stream" in text
        assert len(descendants_of(project)) >= 3


@pytest.mark.slow
def test_up_says_that_it_is_ready_in_json(tmp_path):
    project = tmp_path / "a folder" / "study"
    new_project(project, nodes=2)
    with up(project, "--insecure", "--json") as text:
        ready = json.loads(text)
        host, port = ready["superlink"].split(":")
        with socket.create_connection((host, int(port)), timeout=10):
            pass  # it listens there
    assert ready["nodes"] == ["node-0", "node-1"] and ready["root_certificates"] is None
    assert Path(ready["project"]) == project
    assert (Path(ready["logs"]) / "superlink.log").exists()
    home, *command = shlex.split(ready["command"])
    assert home == f"FLWR_HOME={project / '.flwr'}"
    assert command == ["flwr", "run", str(project), "local", "--stream"]


@pytest.mark.parametrize("command", ["new", "keys", "up"])
def test_without_flower_it_says_how_to_get_it(tmp_path, monkeypatch, command):
    for name in [name for name in sys.modules if name.startswith(("flwr", "coterie.flower"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    answer = CliRunner().invoke(app, ["flower", command, str(tmp_path / "a")])
    assert answer.exit_code == 2
    assert answer.stderr == "error: this needs Flower: pip install 'coterie[flower]'.\n"
    assert not (tmp_path / "a").exists()
