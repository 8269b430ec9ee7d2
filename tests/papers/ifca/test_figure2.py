"""Figure 2 of the IFCA paper: what is computed, and what is measured."""

import pytest
from support.planted_figure2 import planted

from coterie.errors import ConfigError
from coterie.papers import find, reproduce
from coterie.papers.experiment import SCALES

PANELS = [f"ifca/fig2{letter}" for letter in "abcd"]
STARTS = {"text": {"unscaled", "rescaled"}, "authors": {"unscaled"}}


@pytest.mark.parametrize("preset", STARTS)
@pytest.mark.parametrize(
    "name, k, m, n, separations, sigmas, rates",
    [
        ("a", 2, {100}, {100}, {0.1, 0.25, 0.5, 0.75, 1.0}, {0.0, 0.1, 0.2, 0.4}, (0.01, 0.1, 1.0)),
        ("b", 4, {400}, {100}, {0.1, 0.25, 0.5, 0.75, 1.0}, {0.0, 0.1, 0.2, 0.4}, (0.5, 1.0, 2.0)),
        ("c", 2, {50, 70, 100, 150, 200, 300, 400}, {50, 100, 200}, {0.1}, {0.1}, (0.01, 0.1, 1.0)),
        ("d", 4, {100, 200, 300, 400, 800}, {50, 100, 200}, {0.5}, {0.1}, (0.5, 1.0, 2.0)),
    ],
)
def test_the_paper_s_own_numbers(name, k, m, n, separations, sigmas, rates, preset):
    panel = find(f"ifca/fig2{name}", "paper", preset)
    if preset == "authors" and name in "cd":
        separations = {0.25} if name == "c" else {0.75}  # what the saved plots hold
    points = panel.points()
    grid = len(m) * len(n) * len(separations) * len(sigmas) * len(STARTS[preset])
    assert len(points) == len({p.name for p in points}) == grid
    values = {"m": m, "n": n, "R": separations, "sigma": sigmas, "start": STARTS[preset]}
    for letter, expected in values.items():
        assert {p.values[letter] for p in points} == expected
    assert (panel.dim, panel.trials) == (1000, 40)
    for point in points:
        problem = panel.problem(point)
        assert (problem.k, problem.dim, problem.starts, problem.rounds) == (k, 1000, 10, 300)
        assert problem.rates == rates and problem.clients % k == 0
        assert problem.rescaled_truth == (preset == "text")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PANELS)
def test_unknowns_per_example_are_as_in_the_paper_at_every_scale(name, scale):
    def ratios(panel):
        problems = map(panel.problem, panel.points())
        return {round(p.dim * p.k / (p.clients * p.examples), 9) for p in problems}

    panel = find(name, scale, "text")
    assert ratios(panel) <= ratios(find(name, "paper", "text"))
    assert all(panel.problem(p).clients % panel.k == 0 for p in panel.points())
    assert any("d/(mn/k)" in note for note in panel.notes()) == (scale != "paper")


def test_the_released_code_s_rules():
    a, c = (find(f"ifca/fig2{letter}", "paper", "authors") for letter in "ac")
    assert a.rule(a.points()[0]) == ("nearest", 0.001)
    assert c.rule(c.points()[0]) == ("nearest", 0.0)


@pytest.mark.parametrize("name", PANELS)
def test_what_is_not_in_the_text_is_said(name):
    for preset in STARTS:
        notes = " ".join(find(name, "paper", preset).notes())
        taken = "R and sigma" if name[-1] in "ab" else "sigma = 0.1 and the values of m and n"
        assert f"{taken} are not in the text: they are the released code's" in notes
        assert ("does not say at what scale starts are drawn" in notes) == (preset == "text")
        assert "of norm about 22.4" in notes


def test_a_trial_succeeds_by_its_best_start_and_step_size_within_six_tenths_of_sigma():
    panel = find("ifca/fig2a", "smoke", "text")
    found = planted(panel, lambda point, t: 0.0599 if t < 3 else 0.0601)
    rows = {(row["start"], row["sigma"], row["R"]): row for row in panel.table(found)}
    row = rows["rescaled", 0.1, 1.0]
    assert (row["success"], row["matched"], row["nearest"], row["rule"]) == (0.75, 0.75, 0.0, "matched")
    assert row["matched + 0.001"] == 1.0
    assert row["low"] < 0.75 < row["high"] and row["median distance"] == pytest.approx(0.0599)


def test_success_and_recovery_are_counted_apart():
    panel = find("ifca/fig2a", "smoke", "text")
    # trial 0 recovers, 1 and 2 are near all true models at once, 3 is far from them
    found = planted(panel, lambda p, t: 9.0 if t == 3 else 0.0, lambda p, t: 0.51 if t == 0 else 0.49)
    assert {(row["success"], row["told apart"]) for row in panel.table(found)} == {(0.75, 0.25)}
    # a run that is far away recovers nothing, however well it tells them apart
    for result in found.values():
        result["told_apart"][:, 0] = 1.0
    assert {row["told apart"] for row in panel.table(found)} == {0.25}


def test_the_error_of_least_squares_stands_beside_the_median():
    panel = find("ifca/fig2c", "paper", "text")
    rows = {(row["m"], row["n"]): row for row in panel.table(planted(panel, lambda p, t: 9.0))}
    # sigma sqrt(d / (N - d - 1)) with N = mn/k = 15,000
    assert rows[150, 200]["least squares, known clusters"] == pytest.approx(0.02673, abs=5e-6)
    # 1,750 examples of 1,000 coordinates, and 1,250
    assert rows[70, 50]["least squares, known clusters"] == pytest.approx(0.1 * (1000 / 749) ** 0.5)
    tiny = find("ifca/fig2a", "paper", "text")
    fewer = type(tiny)(**{**vars(tiny), "m": (20,)})  # as many unknowns as examples
    assert fewer.least_squares(fewer.points()[-1]) is None


def test_without_noise_the_printed_rule_is_never_met_and_a_thousandth_is_allowed():
    panel = find("ifca/fig2a", "smoke", "text")
    found = planted(panel, lambda point, t: 0.0009, rules=("matched", "nearest", "printed"))
    row = next(row for row in panel.table(found) if row["sigma"] == 0)
    assert row["matched"] == row["printed"] == row["nearest"] == 0
    assert row["success"] == 1 and row["rule"] == "matched + 0.001"
    assert any("sigma = 0:" in note for note in panel.notes())


@pytest.mark.parametrize("name, preset", [("ifca/fig2a", "authors"), ("ifca/fig2d", "text")])
def test_pictures_are_whole_and_the_same_for_the_same_results(name, preset):
    from coterie.papers.pictures import rendered

    panel = find(name, "small", preset)
    rules = ("matched", "nearest", "printed")
    found = planted(panel, lambda p, t: 0.0 if t % 3 else 9.0, lambda p, t: t % 2, rules)
    pictures = rendered(lambda: panel.draw(found))
    assert pictures["png"].startswith(b"\x89PNG") and pictures["svg"].rstrip().endswith(b"</svg>")
    svg = pictures["svg"].decode()
    assert f"Figure 2({name[-1]})" in svg and "starts of 0 and 1" in svg
    assert ("starts rescaled to norm R" in svg) == (preset == "text")
    assert pictures["svg"] == rendered(lambda: panel.draw(found))["svg"]


def test_marks_are_hollow_where_most_successes_are_no_recoveries():
    panel = find("ifca/fig2a", "small", "text")
    for share, hollow in ((1.0, 0), (0.0, len(panel.points()))):
        found = planted(panel, lambda p, t: 0.0, lambda p, t, share=share: share)
        axes = panel.draw(found).axes
        marks = [line for part in axes for line in part.lines if line.get_markerfacecolor() == "white"]
        assert len(marks) == hollow


def test_overview_has_a_row_per_line_and_a_column_per_place():
    panel = find("ifca/fig2d", "paper", "text")
    often = {"unscaled": 10, "rescaled": 20}  # each is counted on its own
    rows = panel.overview(planted(panel, lambda p, t: 0.0 if t < often[p.values["start"]] else 9.0))
    lines = [(start, f"n = {n}") for start in ("unscaled", "rescaled") for n in (50, 100, 200)]
    assert [(row["start"], row["success"]) for row in rows] == lines
    assert list(rows[0])[2:] == ["m = 100", "200", "300", "400", "800"]
    assert rows[1]["300"] == "25%" and rows[4]["300"] == "50%"


def test_a_smoke_run_measures_what_rules_imply(tmp_path):
    found = reproduce("ifca/fig2b", "smoke", "authors", seed=1, out=tmp_path / "b")
    assert found["settings"]["start"] == ("unscaled",) and len(found["table"]) == 4
    for row in found["table"]:
        assert row["nearest"] >= row["matched"] >= row["printed"]
        assert row["success"] >= row["told apart"] and row["success"] >= row["nearest"]
        assert row["median distance"] > 0
    assert len(found["findings"]) == 3


@pytest.mark.parametrize(
    "name, scale, preset, trials, sentence",
    [
        (
            "ifca/fig9",
            "small",
            "text",
            None,
            "there is no 'ifca/fig9' to reproduce; choose one of ifca/fig2a",
        ),
        (
            "ifca/fig2a",
            "large",
            "text",
            None,
            "--scale large: choose one of smoke, small, paper for ifca/fig2a",
        ),
        (
            "ifca/fig2a",
            "full",
            "text",
            None,
            "--scale full: choose one of smoke, small, paper for ifca/fig2a",
        ),
        ("srfca/digits", "paper", "text", None, "--scale paper: choose one of smoke, small, full for srfca"),
        ("ifca/fig2a", "small", "code", None, "--preset code: choose one of text, authors"),
        ("mixed-regression/fig1", "paper", "authors", None, "--preset authors: choose one of text"),
        ("mixed-regression/fig1", "paper", "text", 0, "--trials 0: choose a whole number from 1 up"),
    ],
)
def test_what_there_is_not_is_said_in_a_sentence(name, scale, preset, trials, sentence):
    with pytest.raises(ConfigError, match=sentence):
        find(name, scale, preset, trials=trials)
