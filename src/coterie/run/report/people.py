"""Clients by name: who belongs together, and who was left out of a round, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

import numpy as np

from coterie.clustering.history import History
from coterie.models import stacked
from coterie.run.contents import Contents
from coterie.run.report.words import LISTED, swatch
from coterie.words import count, in_order

NAMES = 60  # named one by one in a row
ROWS = 24  # clients with rows of their own


def members(contents: Contents) -> str:
    """The clients of every cluster, where no truth says it better."""
    found = contents.run.clustering
    if contents.truth is not None or not contents.run.grouping or stacked.count(found.models) == 1:
        return ""
    largest = [int(j) for j in np.argsort(-found.sizes, kind="stable") if found.sizes[j]]
    rows = [
        _row(f"{swatch(j)}cluster {j}", _names(found.ids[found.assignment == j]))
        for j in sorted(largest[:LISTED])
    ]
    if len(largest) > LISTED:
        rows.append(_row(count(len(largest) - LISTED, "further cluster"), ""))
    lost = found.ids[found.assignment < 0]
    if len(lost):
        rows.append(_row("no cluster", _names(lost)))
    return (
        "<h2>Who belongs together</h2>\n"
        f'<div class="wide"><table class="people">\n<tbody>\n{"".join(rows)}</tbody>\n</table></div>\n'
    )


def left_out(history: History) -> str:
    """Clients that were left out of rounds, those of most rounds first, with the reasons."""
    rounds: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for record in history:
        for reason, names in record.missing.items():
            for name in names:
                rounds[name][reason].append(record.round + 1)
    if not rounds:
        return ""
    worst = sorted(rounds, key=lambda name: (-sum(map(len, rounds[name].values())), name))
    rows = [
        _row(escape(name), escape(_spans(numbers)), escape(reason))
        for name in worst[:ROWS]
        for reason, numbers in rounds[name].items()
    ]
    if len(worst) > ROWS:
        rows.append(_row(f"and {count(len(worst) - ROWS, 'further client')}", "", ""))
    return (
        "<h2>Left out</h2>\n"
        '<p class="note">Clients that did not count in some rounds, most often first; they were asked '
        "again in the next.</p>\n"
        '<div class="wide"><table class="people">\n<thead><tr><th scope="col">client</th>'
        '<th scope="col">rounds</th><th scope="col">reason</th></tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
    )


def _row(head: str, *cells: str) -> str:
    """A row of a table; all are HTML."""
    return f'<tr><th scope="row">{head}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>\n'


def _names(ids: np.ndarray) -> str:
    names = ", ".join(map(escape, in_order(ids.tolist())[:NAMES]))
    return names + (f" and {len(ids) - NAMES:,} more" if len(ids) > NAMES else "")


def _spans(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as 1–3, 7."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans)
