"""What happened, round by round."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import History, Round
from coterie.clustering.history import Event, RoundLog, from_line

CLIENTS, RESTARTS = 4, 2


def log(round_=0, moved=((), ()), loss=(1.5, 2.5), **rest):
    fields = {
        "sizes": [[3, 1], [2, 2]],
        "asked": 4,
        "answered": 3,
        "bytes_down": 100,
        "bytes_up": 10,
        "seconds": 0.25,
        "missing": {"no answer": ["c"]},
        "losses": 16,
        "updates": 6,
    } | rest
    moves = [[list(move) for move in restart] for restart in moved]
    return RoundLog(
        round=round_, loss=list(loss), changed=[len(moves[0]), len(moves[1])], moved=moves, **fields
    )


LOGS = [
    log(0, moved=([(0, 1), (2, 0)], [(1, 1)]), loss=(3.0, 4.0), bytes_up=5),
    log(1, moved=([(2, 1), (3, 1)], []), loss=(2.0, 3.5), bytes_up=6),
    log(2, moved=([], [(1, 0), (0, 0)]), loss=(1.0, 3.0), bytes_up=7, seconds=0.5),
]


def test_assignments_replay_the_moves_of_the_kept_restart():
    assert History(LOGS, CLIENTS, 0).assignments().tolist() == [[1, -1, 0, -1], [1, -1, 1, 1], [1, -1, 1, 1]]
    assert History(LOGS, CLIENTS, 1).assignments().tolist() == [
        [-1, 1, -1, -1],
        [-1, 1, -1, -1],
        [0, 0, -1, -1],
    ]


@given(st.lists(st.lists(st.integers(-1, 2), min_size=CLIENTS, max_size=CLIENTS), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_course_of_events_is_replayed(rows):
    before, logs = [-1] * CLIENTS, []
    for t, row in enumerate(rows):
        moves = [(i, row[i]) for i in range(CLIENTS) if row[i] != before[i]]
        logs.append(log(t, moved=(moves, ())))
        before = row
    assert History(logs, CLIENTS).assignments().tolist() == rows


def test_a_round_is_that_of_the_kept_restart():
    history = History(LOGS, CLIENTS, 1)
    assert history[2] == Round(2, 3.0, 2, (2, 2), 4, 3, 100, 7, 0.5, {"no answer": ("c",)}, 0)
    assert [r.loss for r in history] == [4.0, 3.5, 3.0]
    assert [r.changed for r in history] == [1, 0, 2]
    np.testing.assert_array_equal(history.restarts, [[3.0, 4.0], [2.0, 3.5], [1.0, 3.0]])  # of the others too
    assert [history.total(name) for name in ("bytes_up", "seconds", "asked")] == [18, 1.0, 12]


def test_it_is_a_sequence():
    history = History(LOGS, CLIENTS)
    assert len(history) == 3
    assert history[-1].round == 2
    assert [r.round for r in history[1:]] == [1, 2]
    assert [r.round for r in history[::-2]] == [2, 0]
    assert history[5:] == []
    assert history[0] in history
    with pytest.raises(IndexError):
        history[3]
    nothing = History([], CLIENTS)
    assert len(nothing) == len(nothing.restarts) == nothing.total("bytes_up") == 0
    assert nothing.assignments().shape == (0, CLIENTS)


def test_what_happened_between_rounds_counts_in_the_total_and_is_one_line_too():
    split = Event(2, "split", "cluster 0 was split.", {"into": 2}, [[], []], [[3, 1], [2, 2]], 1, 40, 20, 0.5)
    last = dataclasses.replace(split, after=3, name="finish", losses=9, updates=4)
    history = History([*LOGS[:2], split, LOGS[2], last], CLIENTS)
    assert [history.total(name) for name in ("losses", "updates", "asks")] == [3 * 16 + 9, 3 * 6 + 4, 2]
    assert history.total("bytes_down") == 3 * 100 + 2 * 40
    assert len(history) == 3 and history.events == [split, last]
    for event in (split, last):
        assert "\n" not in event.to_line() and from_line(event.to_line()) == event


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=RESTARTS, max_size=RESTARTS),
    st.integers(0, 10**12),
)
@settings(max_examples=25, deadline=None)
def test_a_log_is_one_line_of_json_and_back(loss, bytes_down):
    one = log(7, moved=([(0, 1)], [(3, 2)]), loss=loss, bytes_down=bytes_down)
    line = one.to_line()
    assert "\n" not in line and json.loads(line)["round"] == 7
    assert from_line(line) == one
    assert np.isnan(from_line(log(loss=(float("nan"), 1.0)).to_line()).loss[0])
