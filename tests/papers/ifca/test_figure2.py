"""Figure 2 of the IFCA paper: what is computed, and what is made of it."""

import numpy as np
import pytest

from coterie.errors import ConfigError
from coterie.papers import FIGURES, find
from coterie.papers.experiment import PRESETS, SCALES

PANELS = [f"ifca/fig2{letter}" for letter in "abcd"]


def results(experiment, best, rule="matched"):
    """Results in which the best start of trial t at a point is `best(point, t)` away, by all rules or one."""
    found = {}
    for point in experiment.points():
        distance = np.full((experiment.trials, experiment.starts, len(experiment.rates)), np.inf)
        distance[:, 1, 1] = [best(point, t) for t in range(experiment.trials)]
        far = np.full_like(distance, np.inf)
        found[point.name] = {
            r: distance if rule in (r, "all") else far for r in ("matched", "nearest", "printed")
        }
    return found


@pytest.mark.parametrize(
    "name, k, m, n, separations, sigmas, rates",
    [
        ("a", 2, {100}, {100}, {0.1, 0.25, 0.5, 0.75, 1.0}, {0.0, 0.1, 0.2, 0.4}, (0.01, 0.1, 1.0)),
        ("b", 4, {400}, {100}, {0.1, 0.25, 0.5, 0.75, 1.0}, {0.0, 0.1, 0.2, 0.4}, (0.5, 1.0, 2.0)),
        ("c", 2, {50, 70, 100, 150, 200, 300, 400}, {50, 100, 200}, {0.1}, {0.1}, (0.01, 0.1, 1.0)),
        ("d", 4, {100, 200, 300, 400, 800}, {50, 100, 200}, {0.5}, {0.1}, (0.5, 1.0, 2.0)),
    ],
)
def test_the_paper_s_own_numbers(name, k, m, n, separations, sigmas, rates):
    experiment = find(f"ifca/fig2{name}", "paper", "text")
    points = experiment.points()
    assert len(points) == len({p.name for p in points}) == len(m) * len(n) * len(separations) * len(sigmas)
    for letter, values in {"m": m, "n": n, "R": separations, "sigma": sigmas}.items():
        assert {p.values[letter] for p in points} == values
    assert (experiment.dim, experiment.trials) == (1000, 40)
    for point in points:
        problem = experiment.problem(point)
        assert (problem.k, problem.dim, problem.starts, problem.rounds) == (k, 1000, 10, 300)
        assert problem.rates == rates and problem.rescaled and problem.clients % k == 0


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PANELS)
def test_unknowns_per_example_are_as_in_the_paper_at_every_scale(name, scale):
    def ratios(experiment):
        problems = map(experiment.problem, experiment.points())
        return {round(p.dim * p.k / (p.clients * p.examples), 9) for p in problems}

    experiment = find(name, scale, "text")
    assert ratios(experiment) <= ratios(find(name, "paper", "text"))
    assert all(experiment.problem(p).clients % experiment.k == 0 for p in experiment.points())
    assert any("d/(mn/k)" in note for note in experiment.notes()) == (scale != "paper")


def test_the_authors_code_differs_where_it_is_said_to():
    for name, text, saved in (("c", 0.1, 0.25), ("d", 0.5, 0.75)):
        for preset, separation in (("text", text), ("authors", saved)):
            points = find(f"ifca/fig2{name}", "paper", preset).points()
            assert {point.values["R"] for point in points} == {separation}
    a = find("ifca/fig2a", "paper", "authors")
    assert not a.problem(a.points()[0]).rescaled
    assert a.rule(a.points()[0]) == ("nearest", 0.001)
    c = find("ifca/fig2c", "paper", "authors")
    assert c.rule(c.points()[0]) == ("nearest", 0.0)


def test_a_trial_succeeds_by_its_best_start_and_step_size_within_six_tenths_of_sigma():
    experiment = find("ifca/fig2a", "smoke", "text")
    found = results(experiment, lambda point, t: 0.0599 if t < 3 else 0.0601)
    rows = {(row["sigma"], row["R"]): row for row in experiment.table(found)}
    row = rows[0.1, 1.0]
    assert (row["success"], row["matched"], row["nearest"], row["rule"]) == (0.75, 0.75, 0.0, "matched")
    assert row["matched + 0.001"] == 1.0
    assert row["low"] < 0.75 < row["high"] and row["median distance"] == pytest.approx(0.0599)


def test_without_noise_the_printed_rule_is_never_met_and_a_thousandth_is_allowed():
    experiment = find("ifca/fig2a", "smoke", "text")
    found = results(experiment, lambda point, t: 0.0009, rule="all")
    row = next(row for row in experiment.table(found) if row["sigma"] == 0)
    assert row["matched"] == row["printed"] == row["nearest"] == 0
    assert row["success"] == 1 and row["rule"] == "matched + 0.001"
    assert any("sigma = 0" in note for note in experiment.notes())


@pytest.mark.parametrize(
    "name, rising",
    [("a", lambda values: values["R"]), ("c", lambda values: values["m"] * values["n"])],
)
def test_the_claim_is_checked_against_what_was_found(name, rising):
    experiment = find(f"ifca/fig2{name}", "paper", "text")
    highest = max(rising(point.values) for point in experiment.points())

    def verdict(best):
        finding = experiment.findings(results(experiment, best))[0]
        assert finding.found.endswith("do not decide it.") == (finding.agrees is None)
        return finding.agrees

    assert verdict(lambda p, t: 0.0 if t < 40 * rising(p.values) / highest else 9.0) is True
    assert verdict(lambda p, t: 0.0 if t >= 40 * rising(p.values) / highest else 9.0) is False
    assert verdict(lambda p, t: 9.0) is None
    assert verdict(lambda p, t: 0.0) is None


def test_findings_tell_the_rules_apart_and_where_more_data_could_help_at_all():
    experiment = find("ifca/fig2c", "paper", "text")
    enough = lambda p, t: 0.0 if p.values["m"] * p.values["n"] > 7556 else 9.0  # noqa: E731
    _, rules, known = experiment.findings(results(experiment, enough))
    # 2 of 7 m with n=50, 5 with n=100 and all with n=200
    assert "index by index 0%" in rules.found and "best matching 71%" in rules.found
    assert "mn of about 7,556" in known.found and "0% on average below that and 100% above" in known.found


@pytest.mark.parametrize("name", PANELS)
def test_pictures_are_whole_and_the_same_for_the_same_results(name):
    from coterie.papers.pictures import rendered

    experiment = find(name, "small", "text")
    found = results(experiment, lambda p, t: 0.0 if t % 3 else 9.0)
    pictures = rendered(lambda: experiment.draw(found))
    assert pictures["png"].startswith(b"\x89PNG") and pictures["svg"].rstrip().endswith(b"</svg>")
    assert f"Figure 2({name[-1]})" in pictures["svg"].decode()
    assert pictures["svg"] == rendered(lambda: experiment.draw(found))["svg"]


def test_overview_has_a_row_per_line_and_a_column_per_place():
    experiment = find("ifca/fig2d", "paper", "text")
    rows = experiment.overview(results(experiment, lambda p, t: 0.0 if t < 10 else 9.0))
    assert [row["success"] for row in rows] == ["n = 50", "n = 100", "n = 200"]
    assert list(rows[0])[1:] == [f"m = {m}" for m in (100, 200, 300, 400, 800)]
    assert rows[1]["m = 300"] == "25%"


def test_what_there_is_not_is_said_in_a_sentence():
    with pytest.raises(ConfigError, match="there is no 'ifca/fig9' to reproduce; choose one of ifca/fig2a"):
        find("ifca/fig9", "small", "text")
    with pytest.raises(ConfigError, match="--scale large: choose one of smoke, small, paper for ifca/fig2a"):
        find("ifca/fig2a", "large", "text")
    with pytest.raises(ConfigError, match="--preset code: choose one of text, authors"):
        find("ifca/fig2a", "small", "code")
    assert set(PANELS) <= set(FIGURES) and set(PRESETS) == {"text", "authors"}
