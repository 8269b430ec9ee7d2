"""Results on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.evaluate.comparison import ONE_EACH, ONE_FOR_ALL, Comparison
from coterie.evaluate.groups import Gain
from coterie.run.summary import Summary, human_bytes
from coterie.words import in_order

NAMES = 20  # clients of a group that are named


def show_summary(console: Console, summary: Summary) -> None:
    """Print the methods of a run side by side, and the found groups against the true ones."""
    regression = all(row.accuracy is None for row in summary.rows)
    table = Table(
        title=f"{summary.data}, {summary.clients} clients, held-out examples",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,  # all of it in 80 columns
    )
    table.add_column("method", overflow="fold")
    for title in (
        "loss" if regression else "accuracy",
        "mis-\nclustered",
        "clusters",
        "updates",
        "moved",
        "time",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for row in summary.rows:
        table.add_row(
            row.method + ("*" if row.own_models else ""),
            _number(row.loss, "{:.4f}") if regression else _number(row.accuracy, "{:.1%}"),
            _number(row.misclustering, "{:.1%}"),
            str(row.clusters),
            f"{row.updates:,.0f}",
            human_bytes(row.bytes_moved) if row.bytes_moved else "–",
            f"{row.seconds:.1f} s",
        )
    console.print(table)
    console.print("[dim]updates: local ones of a client, in all starts; moved: to and from all clients[/]")
    if any(row.own_models for row in summary.rows):
        console.print("[dim]*: clients are served by models of their own[/]")
    console.print()
    if summary.matrix:
        console.print(_matrix(summary))
    if summary.members:
        show_members(console, summary.found, summary.members)


def show_comparison(console: Console, found: Comparison) -> None:
    """Print the methods of a comparison side by side, what to make of it, and who belongs together."""
    table = Table(
        title=f"{found.data}, {len(found.found.ids)} clients, held-out examples",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for title in ("accuracy" if found.classifies else "loss", "over global", "over local", "groups", "alike"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in found.rows:
        value = row.loss if row.accuracy is None else row.accuracy
        table.add_row(
            row.method,
            f"{value:.4f}" if row.accuracy is None else f"{value:.1%}",
            "–" if row.method == ONE_FOR_ALL else _gain(row.over_global, found.classifies),
            "–" if row.method == ONE_EACH else _gain(row.over_local, found.classifies),
            f"{row.groups:.3g}",
            _number(row.agreement, "{:.2f}"),
            style="bold" if row.method == found.grouping else None,
        )
    console.print(table)
    points = " (points)" if found.classifies else ""
    console.print(
        f"over: what a client gains{points}, with a 95 % interval; alike: groups of two seeds (adjusted Rand "
        f"index); model: {found.model}\n",
        style="dim",
        highlight=False,
    )
    console.print(str(found), highlight=False)
    if found.groups.any:
        console.print()
        own = found.found
        groups = [j for j, size in enumerate(own.sizes) if size]
        show_members(console, groups, [[*map(str, own.ids[own.assignment == j])] for j in groups])


def _gain(gain: Gain, points: bool) -> str:
    scale, form = (100, ".1f") if points else (1, ".3f")
    return f"{scale * gain.mean:+{form}} ± {scale * (gain.high - gain.mean):{form}}"


def _matrix(summary: Summary) -> Table:
    assert summary.matrix
    table = Table(title="Clients by group", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    for j in range(len(summary.matrix[0])):
        table.add_column(f"true {j}", justify="right")
    for cluster, row in zip(summary.found, summary.matrix, strict=True):
        table.add_row(f"found {cluster}", *(f"[bold]{n}[/]" if n else "[dim]·[/]" for n in row))
    return table


def show_members(console: Console, found: Sequence[int], members: Sequence[Sequence[str]]) -> None:
    """Print who is in which group."""
    table = Table(title="Who belongs together", title_justify="left", box=SIMPLE_HEAD, show_header=False)
    for cluster, names in zip(found, members, strict=True):
        more = f" and {len(names) - NAMES:,} more" if len(names) > NAMES else ""
        table.add_row(f"group {cluster}", Text(", ".join(in_order(names)[:NAMES]) + more))
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
