"""What happened between the rounds: how clusters were found, split and merged."""

from __future__ import annotations

from html import escape

from coterie.clustering.history import FINISH, Event, History
from coterie.run.report import pictures
from coterie.run.report.words import NOTHING, duration
from coterie.run.summary import human_bytes

SHOWN = 40  # of more events, the first and the last


def table(history: History) -> str:
    """A table of the events; empty where there were none but the last exchange, which all runs have."""
    events = history.events
    if all(event.name == FINISH for event in events):
        return ""
    half = SHOWN // 2
    some = events if len(events) <= SHOWN else [*events[:half], *events[-half:]]
    rows = [_row(event) for event in some]
    if len(some) < len(events):
        more = f'<tr><td colspan="5">{len(events) - len(some)} more</td></tr>\n'
        rows.insert(half, more)
    names = ("after round", "what happened", "exchanges", "bytes moved", "time")
    return (
        '<h2>Between the rounds</h2>\n<div class="wide"><table class="events">\n<thead><tr>'
        + "".join(f'<th scope="col">{name}</th>' for name in names)
        + f"</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
    )


def _row(event: Event) -> str:
    moved = event.bytes_down + event.bytes_up
    values = (
        str(event.asks) if event.asks else NOTHING,
        human_bytes(moved) if moved else NOTHING,
        duration(event.seconds),
    )
    return (
        f"<tr><td>{event.after or 'the start'}</td><td>{escape(event.text)}</td>"
        + "".join(f"<td>{value}</td>" for value in values)
        + "</tr>\n"
    )


def distances(history: History) -> tuple[str, str, str] | None:
    """Title, caption and picture of the distances by which clients were grouped, where there are any."""
    for event in history.events:
        content = event.details.get("histogram")
        if content:
            gap = event.details.get("gap")
            together = (
                "Each client and its nearest belong together, who are no farther apart than the dashed line"
                if event.details.get("with_nearest")
                else "Two that are no farther apart than the dashed line belong together"
            )
            caption = (
                "All pairs of clients by the distance of the models that they trained alone. "
                f"{together}, as do those whom others connect so. {event.text}"
            )
            svg = pictures.distances(content["edges"], content["counts"], event.details["threshold"], gap)
            return "How far apart the clients are", caption, svg
    return None
