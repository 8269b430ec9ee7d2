"""What a person sees while rounds are computed."""

import io
import re

import pytest
from rich.console import Console
from support.observers import moment

from coterie.clustering.history import RoundLog
from coterie.run.progress import bar, every_round, lines, rate, status


def log_of(number, loss=(0.5,), sizes=((3, 1),), seconds=0.25):
    restarts = len(loss)
    return RoundLog(
        round=number,
        loss=list(loss),
        changed=[0] * restarts,
        sizes=[list(s) for s in sizes],
        moved=[[] for _ in loss],
        asked=4,
        answered=4,
        bytes_down=0,
        bytes_up=0,
        seconds=seconds,
    )


def console(terminal, width=140):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, _environ={})


def plain(of):
    """What a console was told, without colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", of.file.getvalue())


def printed(rounds, steps):
    """The lines for a run whose rounds come in the given steps."""
    out, done = console(False, width=20), 0  # a long line is not broken
    with lines(out, "ifca", rounds) as show:
        for step in steps:
            show.after(moment([log_of(done + i) for i in range(step)], done + step))
            done += step
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    "log, words",
    [
        (log_of(0), ("0.5000", "clusters 3 1")),
        (log_of(0, (0.5, 0.25), ((4,), (2, 2))), ("0.2500", "clusters 2 2")),
        (log_of(0, (float("nan"), 0.75), ((4,), (2, 2))), ("0.7500", "clusters 2 2")),
        (log_of(0, (float("nan"),), ((4,),)), ("nan", "clusters 4")),
        (log_of(0, (0.1,), ((1,) * 8,)), ("0.1000", "clusters 1 1 1 1 1 1 1 1")),
        (log_of(0, (0.1,), ((1,) * 9,)), ("0.1000", "9 clusters")),
    ],
)
def test_the_best_restart_is_shown(log, words):
    assert status(log) == words


def test_rounds_per_second_are_those_of_the_rounds_given():
    assert rate([log_of(0, seconds=0.25)]) == "4.0"
    assert rate([log_of(0, seconds=0.5), log_of(1, seconds=1.5)]) == "1.0"
    assert rate([log_of(0, seconds=0.0)]) == "–"


def test_about_every_tenth_round_is_a_plain_line():
    assert printed(50, [1] * 50) == [
        f"ifca: round {done}/50, loss 0.5000, clusters 3 1, 4.0 rounds/s" for done in range(5, 51, 5)
    ]


@pytest.mark.parametrize(
    "rounds, steps, shown",
    [
        (3, [1, 1, 1], [1, 2, 3]),
        (25, [1] * 25, [*range(2, 25, 2), 25]),
        (100, [30, 5, 1, 1, 3, 60], [30, 40, 100]),
        (100, [95, 1, 1, 1, 1, 1], [95, 100]),
    ],
)
def test_lines_come_with_whole_tenths_however_rounds_come(rounds, steps, shown):
    assert [int(line.split("/")[0].split()[-1]) for line in printed(rounds, steps)] == shown


def test_on_a_terminal_a_bar_tells_round_loss_sizes_and_speed():
    out = console(True)
    with bar(out, "ifca", 50) as show:
        show.after(moment([log_of(0)], 1))
        show.after(moment([log_of(1, (0.125,), ((2, 2),))], 2))
    last = plain(out).splitlines()[-1]
    for part in ("ifca", "2/50", "loss 0.1250", "clusters 2 2", "4.0 rounds/s", "━"):
        assert part in last
    assert "\x1b[" in out.file.getvalue()
    out = console(True)
    with bar(out, "ifca", 50):
        pass  # before there are rounds
    assert "0/50" in plain(out) and "clusters –" in plain(out)


def test_a_run_that_goes_on_is_shown_as_far_as_it_is():
    before = moment([log_of(t) for t in range(20)], 20)
    out = console(True)
    with bar(out, "ifca", 50) as show:
        show.resumed(before)
    assert "20/50" in plain(out).splitlines()[-1]
    for look, shown in ((lines, ["20/50", "25/50"]), (every_round, [f"{t + 1}/50" for t in range(25)])):
        out = console(False)
        with look(out, "ifca", 50) as show:
            show.resumed(before)
            for t in range(20, 25):
                show.after(moment([log_of(t)], t + 1))
        assert re.findall(r"round (\S+),", plain(out)) == shown


@pytest.mark.parametrize("look", [bar, lines, every_round])
def test_a_moment_without_rounds_changes_nothing(look):
    silent, other = console(False), console(False)
    with look(silent, "ifca", 50):
        pass
    with look(other, "ifca", 50) as show:
        show.after(moment([], 0))
        show.resumed(moment([], 0))
    assert plain(other) == plain(silent)
