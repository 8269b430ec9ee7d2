"""What the report and the terminal tell of what happened between the rounds."""

import dataclasses
import io

from rich.console import Console
from support.observers import moment

from coterie.clustering.history import Event, History, RoundLog
from coterie.run import progress
from coterie.run.report import events


def event(after=0, text="3 clusters & more.", **details):
    return Event(
        after=after,
        name="one-shot",
        text=text,
        details=details,
        moved=[[[0, 1], [2, 0]]],
        sizes=[[1, 1]],
        asks=2,
        bytes_down=1500,
        bytes_up=500,
        seconds=2.0,
    )


def log(number, moved=()):
    return RoundLog(number, [1.0], [len(moved)], [[1, 2]], [list(moved)], 3, 3, 100, 50, 0.5)


HISTOGRAM = {"edges": [0.0, 1.0, 2.0, 3.0], "counts": [4, 0, 9]}


def test_events_count_and_move_clients():
    history = History([event(), log(0), log(1, [[1, 1]]), event(2), log(2)], clients=3)
    assert len(history) == 3 and [e.after for e in history.events] == [0, 2]
    assert history.total("bytes_down") == 2 * 1500 + 3 * 100
    assert history.total("seconds") == 2 * 2.0 + 3 * 0.5
    # a regrouping after a round is seen in the row of that round
    assert history.assignments().tolist() == [[1, -1, 0], [1, 1, 0], [1, 1, 0]]
    # but the last exchange leaves the rows as they were
    last = dataclasses.replace(event(1), name="finish", moved=[[[1, 2]]])
    history = History([log(0, [[0, 1], [1, 0], [2, 0]]), last], clients=3)
    assert history.assignments().tolist() == [[1, 0, 0]]
    assert history.total("bytes_down") == 100 + 1500


def test_the_table_tells_when_what_and_at_which_cost():
    page = events.table(History([event(), log(0), event(1)], 3))
    assert page.count("<tr>") == 3
    assert "<td>the start</td><td>3 clusters &amp; more.</td><td>2</td><td>2.0 kB</td><td>2.0 s</td>" in page
    assert "<td>1</td><td>3 clusters" in page
    assert events.table(History([log(0)], 3)) == ""
    last = dataclasses.replace(event(1), name="finish")  # all runs have that one: alone it is no news
    assert events.table(History([log(0), last], 3)) == ""
    assert events.table(History([event(), log(0), last], 3)).count("<tr>") == 3


def test_of_very_many_events_some_are_left_out():
    page = events.table(History([event(t) for t in range(events.SHOWN + 5)], 3))
    assert page.count("<tr>") == events.SHOWN + 2 and "5 more" in page


def test_the_histogram_is_that_of_the_event_that_has_one():
    history = History([event(), event(threshold=1.5, gap=[1.0, 2.0], histogram=HISTOGRAM), log(0)], 3)
    title, caption, svg = events.distances(history)
    assert "far apart" in title and "3 clusters & more." in caption
    assert "<svg" in svg and "threshold 1.5" in svg
    assert "Two that are no farther apart than the dashed line belong together" in caption
    known = {"threshold": 1.5, "histogram": HISTOGRAM, "with_nearest": True}
    _, caption, _ = events.distances(History([event(**known)], 3))
    assert "Each client and its nearest belong together" in caption and "Two that" not in caption
    assert events.distances(History([event(), log(0)], 3)) is None


def test_on_a_terminal_events_are_told_as_they_happen():
    for look in (progress.bar, progress.lines, progress.every_round):
        text = io.StringIO()
        with look(Console(file=text, width=200), "srfca", 4) as show:
            show.after(moment([event()], 0))
            show.after(moment([log(3)], 4))
        assert text.getvalue().count("srfca: 3 clusters & more.") == 1
