"""The IFCA paper's sentences about its Figure 2, judged on results planted on either side of them."""

import pytest
from support.planted_figure2 import planted

from coterie.papers import find

RISING = [("a", lambda values: values["R"]), ("c", lambda values: values["m"] * values["n"])]


def verdicts(panel, results):
    """What is said of the caption's trend, by the scale of the starts."""
    found = panel.findings(results)[: len(panel.start)]
    for finding, words in zip(found, ("starts of 0 and 1:", "starts rescaled to norm R:"), strict=False):
        assert "caption of Figure 2" in finding.paper and finding.found.startswith(words)
        assert finding.found.endswith("do not decide it.") == (finding.agrees is None)
    return [finding.agrees for finding in found]


def finding(panel, results, start_of_sentence):
    (one,) = (f for f in panel.findings(results) if f.paper.startswith(start_of_sentence))
    return one


@pytest.mark.parametrize("preset, starts", [("text", 2), ("authors", 1)])
@pytest.mark.parametrize("name, rising", RISING)
def test_the_trend_is_judged_by_what_was_found(name, rising, preset, starts):
    panel = find(f"ifca/fig2{name}", "paper", preset)
    highest = max(rising(point.values) for point in panel.points())

    def verdict(best):
        return verdicts(panel, planted(panel, best, rules=("matched", "nearest")))

    assert verdict(lambda p, t: 0.0 if t < 40 * rising(p.values) / highest else 9.0) == [True] * starts
    assert verdict(lambda p, t: 0.0 if t >= 40 * rising(p.values) / highest else 9.0) == [False] * starts
    assert verdict(lambda p, t: 9.0) == [None] * starts
    assert verdict(lambda p, t: 0.0) == [None] * starts


@pytest.mark.parametrize("name, rising", RISING)
def test_starts_of_either_scale_are_judged_on_their_own(name, rising):
    panel = find(f"ifca/fig2{name}", "paper", "text")
    highest = max(rising(point.values) for point in panel.points())

    def best(p, t):
        up = t < 40 * rising(p.values) / highest
        return 0.0 if up == (p.values["start"] == "rescaled") else 9.0

    results = planted(panel, best)
    assert verdicts(panel, results) == [False, True]
    hard, easy = ("R = 0.1, sigma = 0", "R = 1, sigma = 0") if name == "a" else ("m = 50", "m = 400, n = 200")
    for found, first, last in zip(panel.findings(results)[:2], ("90%", "10%"), ("0%", "100%"), strict=True):
        if name == "a":
            assert f"from {first} at {hard} to {last} at {easy};" in found.found
        else:
            assert f"to {last} at {easy}" in found.found


def test_both_scales_of_the_start_are_compared_where_there_are_both():
    panel = find("ifca/fig2b", "paper", "text")
    results = planted(panel, lambda p, t: 0.0 if p.values["start"] == "rescaled" and t < 10 else 9.0)
    found = finding(panel, results, "randomly initialize")
    assert found.agrees is None
    assert "starts of 0 and 1: 0% of all trials succeed; starts rescaled to norm R: 25%" in found.found
    authors = find("ifca/fig2b", "paper", "authors")
    sentences = [f.paper for f in authors.findings(planted(authors, lambda p, t: 9.0))]
    assert not any("randomly initialize" in sentence for sentence in sentences)


def test_successes_that_are_no_recoveries_are_counted_where_they_are():
    panel = find("ifca/fig2c", "paper", "text")
    found = finding(panel, planted(panel, lambda p, t: 0.0266), "A trial is dubbed successful").found
    assert found.count("0 of 840 successes do not tell the true models apart") == 2
    assert "without them" not in found
    panel = find("ifca/fig2a", "paper", "text")

    def copies(p):
        return (p.values["start"], p.values["R"], p.values["sigma"]) == ("rescaled", 0.1, 0.4)

    # everything succeeds from R = 0.5 on, and at R = 0.1 with much noise without telling the models apart
    results = planted(
        panel,
        lambda p, t: 0.0 if p.values["R"] >= 0.5 or (copies(p) and t < 30) else 9.0,
        lambda p, t: 0.1 if copies(p) else 1.0,
    )
    assert verdicts(panel, results) == [True, False]  # success falls from R = 0.1 to R = 0.25
    found = finding(panel, results, "A trial is dubbed successful").found
    assert "starts of 0 and 1: 0 of 480 successes do not tell the true models apart;" in found
    assert (
        "starts rescaled to norm R: 30 of 510 successes do not tell the true models apart "
        "(30 at R = 0.1, sigma = 0.4); without them, success rises in 24, stays in 16 and falls in 0 of 40"
    ) in found


def test_rules_are_told_apart_and_where_more_data_could_help_at_all():
    panel = find("ifca/fig2c", "paper", "text")
    results = planted(panel, lambda p, t: 0.0 if p.values["m"] * p.values["n"] > 7556 else 9.0)
    rules = finding(panel, results, "dist = (1/k)").found
    # 2 of 7 m with n=50, 5 with n=100 and all with n=200
    assert "index by index 0%" in rules and "best matching 71%" in rules and "released code, 0%" in rules
    known = finding(panel, results, "more data and/or").found
    assert "mn of about 7,556" in known and known.count("0% on average below that and 100% above") == 2
