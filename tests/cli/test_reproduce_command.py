"""`coterie reproduce`, as a person and as a program use it."""

import csv
import io
import json
import re
import shutil

import pytest
from rich.console import Console
from support.coins import Coin
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.errors import DataError
from coterie.papers import FIGURES, Figure
from coterie.papers.progress import bar

SMOKE = ("reproduce", "ifca/fig2a", "--scale", "smoke", "--seed", "3")
FILES = {"figure.png", "figure.svg", "table.csv", "table.md", "results.json", "settings.json", "points"}


def invoke(*arguments):
    env = {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    return CliRunner().invoke(app, list(map(str, arguments)), env=env)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished experiment: its folder, and what was printed."""
    path = tmp_path_factory.mktemp("papers") / "a"
    return path, invoke(*SMOKE, "--out", path)


@pytest.mark.slow
def test_the_claim_and_what_was_found_stand_side_by_side(finished):
    path, answer = finished
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    claim = next(i for i, line in enumerate(lines) if line.startswith("paper: the success probability gets"))
    beside = " ".join(lines[claim : claim + 4])
    assert "found: starts of 0 and 1: from a smaller to a larger R" in beside
    assert ["start", "success", "R", "=", "0.1", "1"] in [line.split() for line in lines]
    row = r" *(unscaled|rescaled) +sigma = [\d.]+( +\d+%){2} *"
    assert sum(re.fullmatch(row, line) is not None for line in lines) == 4
    assert f"The figure, the table and all results are in {path}." in answer.stdout


def test_everything_is_in_the_folder(finished):
    path, _ = finished
    assert {p.name for p in path.iterdir()} == FILES
    results = json.loads((path / "results.json").read_text())
    assert (results["name"], results["scale"], results["preset"], results["seed"]) == (
        "ifca/fig2a",
        "smoke",
        "text",
        3,
    )
    assert results["settings"]["rates"] == [0.01, 0.1, 1.0] and results["settings"]["dim"] == 20
    assert len(results["points"]) == 8
    for how in results["points"].values():
        assert {"device", "precision", "jax", "coterie", "commit", "seconds"} <= set(how)
        assert how["precision"] == "float32" and how["seconds"] > 0
    rows = list(csv.DictReader((path / "table.csv").open()))
    assert len(rows) == 8 and [float(row["success"]) for row in rows] == [
        row["success"] for row in results["table"]
    ]
    page = (path / "table.md").read_text()
    assert page.startswith("# IFCA, Figure 2(a)") and page.count("\n| ") == 9 and "- found: " in page


def test_piped_progress_is_a_plain_line_per_point(finished):
    _, answer = finished
    lines = answer.stderr.splitlines()
    assert [line.split(", ")[0] for line in lines] == [f"ifca/fig2a: {4 * n}/32" for n in range(1, 9)]
    assert all("of 4 trials succeed" in line for line in lines)


def test_a_terminal_sees_a_bar_and_the_finished_points():
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with bar(screen, "ifca/fig2a", 16) as show:
        show(2, None)
        show(4, "R=0.1 sigma=0: 1 of 4 trials succeed")
    shown = screen.file.getvalue()
    assert "4/16" in shown and shown.count("1 of 4 trials succeed") == 1


def test_everything_that_is_missing_is_computed_whatever_fails(tmp_path, monkeypatch):
    class Tiny(Coin):
        def one(self, values, seed, done):
            if values["coin"] == "bent" and not (tmp_path / "files").exists():
                raise DataError("there are no files.")
            return super().one(values, seed, done)

    def figure(name, make):
        return Figure(name, name, lambda scale, preset: make(1, scale), ("text",), ("small",))

    there = {"a/coin": figure("a/coin", Coin), "b/coin": figure("b/coin", Tiny)}
    monkeypatch.setattr("coterie.papers.figures.FIGURES", there)
    everything = ("reproduce", "--all", "--scale", "small", "--out", tmp_path / "all")
    answer = invoke(*everything)
    assert answer.exit_code == 2 and "error: b/coin, text: there are no files." in answer.stderr
    assert re.search(r"b/coin +text +2 of 2 +not measured", answer.stdout)
    assert "1 of 2 experiments are in" in answer.stdout
    (tmp_path / "files").touch()
    answer = invoke(*everything)
    assert answer.exit_code == 0, answer.output
    assert re.search(r"b/coin +text +1 of 2 +0 s", answer.stdout) and "a/coin" not in answer.stdout
    assert "2 of 2 experiments are in" in answer.stdout
    assert json.loads(invoke(*everything, "--json").stdout) == {"finished": [], "failed": []}
    answer = invoke("reproduce", "ifca/fig2a", "--all")
    assert (answer.exit_code, answer.stdout) == (2, "") and "give no name" in answer.stderr


def outcome(path):
    results = json.loads((path / "results.json").read_text())
    return {**results, "points": set(results["points"])}


def test_an_interrupted_experiment_continues_and_ends_the_same(finished, tmp_path):
    whole, _ = finished
    part = tmp_path / "part"
    shutil.copytree(whole, part)
    points = sorted((part / "points").iterdir())
    for file in [*points[::2], *(part / name for name in FILES - {"points", "settings.json"})]:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in points[1::2]}
    answer = invoke(*SMOKE, "--out", part, "--json")
    assert answer.exit_code == 0, answer.output
    assert sum("kept from before" in line for line in answer.stderr.splitlines()) == 4
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # not computed again
    assert outcome(part) == outcome(whole)
    assert (part / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert (part / "figure.svg").read_bytes() == (whole / "figure.svg").read_bytes()
    printed = json.loads(answer.stdout)
    assert printed.pop("folder") == str(part)
    assert printed == json.loads((part / "results.json").read_text())


def test_results_of_other_settings_are_not_mixed(finished):
    path, _ = finished
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for options, why in (
        (("--seed", "4"), "seed is 3 there and 4 here"),
        (("--preset", "authors"), 'preset is "text" there and "authors" here'),
        (("--scale", "small"), "R is [0.1, 1.0] there and [0.1, 0.25, 0.5, 0.75, 1.0] here"),
    ):
        answer = invoke(*SMOKE, *options, "--out", path)
        assert answer.exit_code == 2
        assert (
            answer.stderr == f"error: {path} holds results of other settings: {why}; choose another --out.\n"
        )
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_a_damaged_point_is_named(finished, tmp_path):
    part = tmp_path / "part"
    shutil.copytree(finished[0], part)
    victim = sorted((part / "points").iterdir())[1]
    victim.write_bytes(b"nonsense")
    answer = invoke(*SMOKE, "--out", part)
    assert answer.exit_code == 2 and answer.stderr.splitlines()[-1].startswith(
        f"error: {victim} is damaged ("
    )
    victim.unlink()
    assert invoke(*SMOKE, "--out", part).exit_code == 0
    assert outcome(part) == outcome(finished[0])


def test_a_folder_without_settings_or_a_file_is_refused(tmp_path):
    (tmp_path / "x" / "points").mkdir(parents=True)
    (tmp_path / "y").write_text("")
    for name, why in (("x", "holds points but no settings.json"), ("y", "is not a folder")):
        answer = invoke(*SMOKE, "--out", tmp_path / name)
        assert answer.exit_code == 2
        assert answer.stderr == f"error: {tmp_path / name} {why}: choose another --out.\n"


@pytest.mark.parametrize("arguments", [(), ("--list",), ("ifca/fig2a", "--list")])
def test_without_a_name_it_lists_what_there_is(arguments):
    answer = invoke("reproduce", *arguments)
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert "IFCA, Figure 2(a): success against separation R" in lines[0]
    names = json.loads(invoke("reproduce", "--json").stdout)
    assert [entry["name"] for entry in names] == list(FIGURES)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["ifca/fig1"], "there is no 'ifca/fig1' to reproduce; choose one of ifca/fig2a, "),
        (
            ["ifca/fig2a", "--scale", "huge"],
            "--scale huge: choose one of smoke, small, paper for ifca/fig2a.",
        ),
        (["ifca/fig2a", "--preset", "mine"], "--preset mine: choose one of text, authors for ifca/fig2a."),
        (["ifca/fig2a", "--seed", "-1"], "--seed -1: choose a whole number from 0 up to 4294967295."),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path):
    answer = invoke("reproduce", *arguments, "--out", tmp_path / "none")
    assert answer.exit_code == 2 and answer.stdout == ""
    assert answer.stderr.startswith(f"error: {sentence}") and answer.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()
