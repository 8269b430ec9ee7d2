"""The page: what was run, how it ended, and the pictures, in one HTML text without scripts or links."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from coterie.clustering.history import CONTEST
from coterie.models import stacked
from coterie.run.contents import Contents, Measure, Method, Scores, Truth, lost_last, per_client
from coterie.run.report import events, people, pictures, style
from coterie.run.report.words import LISTED, NOTHING, duration, listed, percent, swatch
from coterie.run.summary import human_bytes
from coterie.words import count


def render(contents: Contents) -> str:
    """The whole page."""
    title = contents.run.name + (f" on {contents.data}" if contents.data else "")
    sections = (
        _summary(contents),
        _loss_per_round(contents),
        events.table(contents.run.clustering.history),
        _distances(contents),
        *_clusters(contents),
        people.members(contents),
        _truth(contents.run, contents.truth),
        _per_client(contents),
        _unseen(contents.run, contents.measure),
        people.left_out(contents.run.clustering.history),
        _settings(contents),
    )
    css = files(__package__).joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n"
        + _header(contents, title)
        + "".join(f"<section>\n{section}</section>\n" for section in sections if section)
        + "</main>\n</body>\n</html>\n"
    )


# -- words -----------------------------------------------------------------------------------------------


def headline(contents: Contents) -> str:
    """The result in one or two sentences."""
    found, truth = contents.run.clustering, contents.truth
    clients = len(found.ids)
    if not contents.run.grouping:
        return f"{contents.run.name} trained a model for each of the {count(clients, 'client')}."
    text = f"{contents.run.name} found {count(found.k, 'group')} among {count(clients, 'client')}"
    if truth is not None:
        if len(truth.names) != found.k:
            text += f", where there truly {'is' if len(truth.names) == 1 else 'are'} {len(truth.names)}"
        if truth.wrong:
            be = "is" if truth.wrong == 1 else "are"
            text += f"; {truth.wrong:,} of {count(clients, 'client')} {be} in the wrong group."
        else:
            text += "; every client is in its true group."
    elif found.k > 1:
        sizes = sorted((int(size) for size in found.sizes if size), reverse=True)
        if len(sizes) <= 8:
            text += f", of {listed(f'{size:,}' for size in sizes)} clients."
        else:
            text += f", the largest of {sizes[0]:,} and the smallest of {count(sizes[-1], 'client')}."
    else:
        text += "."
    lost = int((found.assignment < 0).sum())
    if lost:
        text += f" {count(lost, 'client')} never answered and {'has' if lost == 1 else 'have'} no group."
    return text


def comparison(contents: Contents) -> str:
    """The mean test score against the baselines', in one sentence; empty where there is none."""
    measure = contents.measure
    own, *others = [(m.name, _score(m.test, measure)) for m in contents.methods]
    if own[1] == NOTHING:
        return ""
    against = listed(f"{score} for {name}" for name, score in others if score != NOTHING)
    return f"The mean test {measure} is {own[1]}{f', against {against}' if against else ''}."


def _score(scores: Scores | None, measure: Measure) -> str:
    value = math.nan if scores is None else scores.mean[measure]
    if math.isnan(value):
        return NOTHING
    return percent(value) if measure == "accuracy" else f"{value:.4g}"


# -- parts of the page -----------------------------------------------------------------------------------


def _header(contents: Contents, title: str) -> str:
    found = contents.run.clustering
    what = [
        count(len(found.ids), "client"),
        count(len(found.history), "round"),
        f"seed {found.seed}",
    ]
    scores = comparison(contents)
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="what">{" · ".join(what)}</p>\n'
        f'<p class="headline">{escape(headline(contents))}</p>\n'
        + (f'<p class="scores">{escape(scores)}</p>\n' if scores else "")
        + (f'<ul class="clusters">{"".join(_chips(found.sizes))}</ul>\n' if contents.run.grouping else "")
        + "</header>\n"
    )


def _chips(sizes: np.ndarray) -> Iterator[str]:
    largest = [int(j) for j in np.argsort(-sizes, kind="stable") if sizes[j]]
    for j in sorted(largest[:LISTED]):
        yield f"<li>{swatch(j)}cluster {j} · {count(int(sizes[j]), 'client')}</li>"
    if len(largest) > LISTED:
        yield f'<li class="none">and {count(len(largest) - LISTED, "further cluster")}</li>'
    if len(largest) < len(sizes):
        yield f'<li class="none">{count(len(sizes) - len(largest), "empty cluster")}</li>'


def _figure(title: str, caption: str, svg: str) -> str:
    named = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return (
        f"<figure>\n<h2>{escape(title)}</h2>\n<figcaption>{escape(caption)}</figcaption>\n"
        f'<div class="wide">{named}</div>\n</figure>\n'
    )


def _summary(contents: Contents) -> str:
    names = (
        f"test {contents.measure}",
        "misclustering",
        "clusters found",
        "rounds",
        "updates",
        "bytes moved",
        "time",
    )
    rows = []
    for method in contents.methods:
        history = method.clustering.history
        values = (
            _score(method.test, contents.measure),
            percent(method.misclustering),
            f"{method.clustering.k:,}",
            f"{len(history):,}",
            f"{method.updates:,.0f}",
            human_bytes(history.total("bytes_down") + history.total("bytes_up")),
            duration(history.total("seconds")),
        )
        name = method.name + (" *" if method.test is not None and method.test.own_models else "")
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{_cells(values)}</tr>\n')
    restarts = _restarts(contents.run)
    note = f"Test {contents.measure} is the mean over clients."
    if contents.truth is not None:
        note += " Misclustering is the share of clients in the wrong cluster."
    note += " Updates are the local ones that a client carried out, on average."
    if restarts > 1:
        note += f" Updates, bytes and time of {contents.run.name} count all {restarts} restarts."
    if any(method.test is not None and method.test.own_models for method in contents.methods):
        note += " *: clients are served by models of their own."
    return (
        '<h2>Summary</h2>\n<div class="wide"><table class="summary">\n<thead><tr><th scope="col">method</th>'
        + "".join(f'<th scope="col">{name}</th>' for name in names)
        + f"</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table></div>\n"
        + f'<p class="note">{escape(note)}</p>\n'
    )


def _restarts(method: Method) -> int:
    history = method.clustering.history
    return int(history.restarts.shape[1]) if len(history) else 1


def _cells(values: Iterable[str]) -> str:
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def _loss_per_round(contents: Contents) -> str:
    history = contents.run.clustering.history
    if not len(history):
        return ""
    caption = "Mean training loss of the clients that answered, before their update; lower is better."
    if _restarts(contents.run) > 1:
        contest = [event for event in history.events if event.name == CONTEST]
        when = f"after round {contest[0].after} went on" if contest else "in the end was kept"
        caption += f" Of the restarts, the one with the lowest loss {when}."
    methods = [(m.name, m.clustering.history) for m in contents.methods if len(m.clustering.history)]
    return _figure("Loss per round", caption, pictures.loss_per_round(methods))


def _distances(contents: Contents) -> str:
    shown = events.distances(contents.run.clustering.history)
    return "" if shown is None else _figure(*shown)


def _clusters(contents: Contents) -> Iterator[str]:
    """How the clusters came about, and how clear the choice is, where there was one."""
    found, order, truth = contents.run.clustering, contents.order, contents.truth
    models = stacked.count(found.models)
    if models == 1 or not contents.run.grouping:
        return
    ids, final = found.ids[order], found.assignment[order]
    steps = found.history.assignments()[:, order]
    if len(steps):
        caption = (
            "One row per client, one column per round, coloured by the cluster the client was in; grey where "
            "that is not yet known. Where the colours stop changing, the clients have settled."
        )
        if truth is not None:
            caption += " On the left, the true group, in the colour of the cluster that matches it best."
        shades = None if truth is None else [style.colour(j) for j in _group_colours(truth, models)]
        groups = None if truth is None else truth.group[order]
        svg = pictures.moves(steps, final, shades, groups, ids)
        yield _figure("How clients moved between clusters", caption, svg)
    if found.losses is not None:
        caption = (
            "One column per client, one row per cluster model; dark is low. A clear dark block per cluster "
            "means that its clients are served much better by their own model than by any other."
        )
        if len(ids) <= pictures.NAMED:
            caption += " The dot marks the model that the client has."
        if np.isnan(found.losses).any():
            caption += " Grey: no answer at the end."
        yield _figure(
            "Loss of every client under every model",
            caption,
            pictures.heat_map(found.losses[order], final, ids),
        )


def _group_colours(truth: Truth, models: int) -> list[int]:
    """The matching cluster of every true group; a colour that no cluster has where there is none."""
    free = iter(range(models, models + len(truth.names)))
    return [truth.cluster_of[g] if g in truth.cluster_of else next(free) for g in range(len(truth.names))]


def _truth(run: Method, truth: Truth | None) -> str:
    if truth is None:
        return ""
    caption = (
        "Clients by found cluster (rows) and true group (columns). Outlined: the best matching of the two; "
        "clients in other cells are in the wrong group."
    )
    rows, rest = truth.rows[:LISTED], truth.rows[LISTED:]
    body = [_matrix_row(f"{swatch(j)}cluster {j}", truth.table[j], j, truth) for j in rows]
    if rest:
        body.append(
            _matrix_row(count(len(rest), "further cluster"), truth.table[rest].sum(axis=0), None, truth)
        )
    if truth.unassigned.any():
        body.append(_matrix_row("no cluster", truth.unassigned, None, truth))
    facts = [f"Misclustering {percent(run.misclustering)}"] if run.misclustering is not None else []
    for name, value in (
        ("adjusted Rand index", run.adjusted_rand),
        ("parameter distance", run.parameter_distance),
    ):
        if value is not None:
            facts.append(f"{name} {value:.4g}")
    return (
        f"<figure>\n<h2>Found groups against the truth</h2>\n<figcaption>{escape(caption)}</figcaption>\n"
        '<div class="wide"><table class="matrix">\n<thead><tr><th></th>'
        + "".join(f'<th scope="col">true {escape(name)}</th>' for name in truth.names)
        + f"</tr></thead>\n<tbody>\n{''.join(body)}</tbody>\n</table></div>\n</figure>\n"
        + (f'<p class="note">{escape(", ".join(facts))}.</p>\n' if facts else "")
    )


def _matrix_row(head: str, counts: np.ndarray, cluster: int | None, truth: Truth) -> str:
    """`head` is HTML; the row is that of no single cluster where `cluster` is None."""
    cells = []
    for group, clients in enumerate(counts.tolist()):
        matched = cluster is not None and truth.cluster_of.get(group) == cluster
        kind = "match" if matched else "miss" if clients else "zero"
        cells.append(f'<td class="{kind}">{clients:,}</td>')
    return f'<tr><th scope="row">{head}</th>{"".join(cells)}</tr>\n'


def _per_client(contents: Contents) -> str:
    measure, found = contents.measure, contents.run.clustering
    if contents.run.test is None or not math.isfinite(contents.run.test.mean[measure]):
        return ""
    own = per_client(contents.run.test, measure, found.ids)
    methods = [
        (m.name, per_client(m.test, measure, found.ids))
        for m in contents.methods
        if m.test is not None and math.isfinite(m.test.mean[measure])
    ]
    better = f"{'Higher' if measure == 'accuracy' else 'Lower'} is better."
    if len(found.ids) <= pictures.NAMED:
        order = np.lexsort((own, lost_last(found.assignment)))
        caption = (
            f"One place per client, by cluster and {measure}; lines across are means over clients. {better}"
        )
        svg = pictures.scores_by_client(
            [(name, values[order]) for name, values in methods],
            measure,
            found.assignment[order],
            found.ids[order],
        )
    else:
        caption = (
            "Each method's clients from the worst served to the best; the mark is the mean over clients. "
            + better
        )
        svg = pictures.scores_sorted(methods, measure)
    others = listed(name for name, _ in methods[1:]) if len(methods) <= 4 else "the baselines"
    title = f"Test {measure} per client" + (f" against {others}" if others else "")
    return _figure(title, caption, svg)


def _unseen(run: Method, measure: Measure) -> str:
    if run.unseen is None:
        return ""
    text = (
        f"The mean {measure} of {count(run.unseen.clients, 'client')} that took no part in training is "
        f"{_score(run.unseen, measure)}"
    )
    if run.unseen_misclustering is not None:
        wrong = percent(run.unseen_misclustering) if run.unseen_misclustering else "none"
        text += f", and {wrong} of them are in the wrong cluster"
    how = {
        "shard": "each took the model of lowest loss on its own shard, the very examples it is evaluated on",
        "train": "each kept the cluster it has from training",
    }
    text += f"; {how.get(run.unseen.chosen_by, f'clusters were chosen by {run.unseen.chosen_by}')}."
    return f"<h2>Unseen clients</h2>\n<p>{escape(text)}</p>\n"


def _settings(contents: Contents) -> str:
    plain = {key: value for key, value in contents.settings.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in contents.settings.items() if isinstance(value, Mapping)}
    groups = {"experiment": plain, **tables, "computed on": contents.run.clustering.provenance}
    body = "".join(
        f"<div><h3>{escape(name)}</h3><table>"
        + "".join(
            f'<tr><th scope="row">{escape(key)}</th><td>{escape(value)}</td></tr>'
            for key, value in _flat(group)
        )
        + "</table></div>\n"
        for name, group in groups.items()
        if group
    )
    return f'<h2>Settings and provenance</h2>\n<div class="settings">\n{body}</div>\n'


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str):
            yield f"{prefix}{key}", value
        elif isinstance(value, list | tuple):
            yield (
                f"{prefix}{key}",
                ", ".join(v if isinstance(v, str) else json.dumps(v, default=str) for v in value) or "none",
            )
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str)
