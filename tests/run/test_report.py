"""The report: one file, the right words, the right counts, whatever the run was."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import coterie as ct
from coterie import storage
from coterie.clustering.history import CONTEST, Event, History, RoundLog
from coterie.errors import RunFolderError
from coterie.models import stacked
from coterie.run.contents import Truth, read
from coterie.run.execute import evaluation
from coterie.run.report import pictures, style, write_report
from coterie.run.report.page import headline
from coterie.run.report.words import duration

NASTY = '<b>&"'


@dataclasses.dataclass
class Run:
    """What a run folder is made of."""

    found: ct.Clustering
    evaluation: dict[str, Any]

    def save(self, folder: Path, settings: str = "seed = 0\n", **changed: Any) -> Path:
        """As `coterie run` leaves it, with some entries of the evaluation changed."""
        self.found.save(folder)
        storage.write_json(folder / "evaluation.json", self.evaluation | changed)
        storage.write_text(folder / "experiment.toml", settings)
        return folder

    def but(self, **changed: Any) -> Run:
        """The same with another assignment, or whatever else of the clustering."""
        return Run(dataclasses.replace(self.found, **changed), self.evaluation)

    def with_models(self, which: list[int], name: str) -> Run:
        """A method that has these of the models, and clients in them by turns."""
        models = jax.tree.map(lambda leaf: np.asarray(leaf)[which], self.found.models)
        assignment = np.arange(len(self.found.ids), dtype=np.int32) % len(which)
        return self.but(models=models, assignment=assignment, losses=None, algorithm={"name": name})


@pytest.fixture(scope="module")
def digits() -> Run:
    """Eight clients in two clusters, all where they belong."""
    data = ct.data.rotated_digits(clients=8, rotations=(0, 180), unseen=0, seed=0)
    spec = data.train.spec
    learner = ct.Learner(ct.models.Linear(), loss="cross_entropy", local=ct.SGD(lr=0.1, steps=2)).for_data(
        spec
    )
    rng = np.random.default_rng(0)
    final = np.repeat([1, 0], 4).astype(np.int32)
    moved = [[[i, int(i > 1)] for i in range(8)], [[0, 1], [1, 1]], [[i, 0] for i in range(4, 8)]]
    logs = [
        RoundLog(t, [2 / (t + 1), 3.0], [len(pairs), 0], [[4, 4], [8, 0]], [pairs, []], 8, 8, 900, 700, 0.5)
        for t, pairs in enumerate(moved)
    ]
    found = ct.Clustering(
        ids=data.train.ids,
        assignment=final,
        models=stacked.from_matrix(rng.standard_normal((2, 10 * 64)), learner.shapes(spec)),
        learner=learner,
        spec=spec,
        history=History(logs, 8),
        losses=rng.random((8, 2), np.float32),
        algorithm=ct.IFCA(k=2, rounds=3, n_init=2).settings(),
        seed=0,
        provenance=ct.Simulation(data.train).describe(),
    )
    result = {
        "data": data.name,
        "truth": [0] * 4 + [1] * 4,
        "misclustering": 0.0,
        "adjusted_rand": 1.0,
        "parameter_distance": None,
        "test": scores(found.ids, "train"),
        "unseen": scores(np.array(["a", "b"]), "shard"),
        "unseen_misclustering": 0.5,
    }
    return Run(found, result)


def scores(ids: np.ndarray, chosen_by: str) -> dict[str, Any]:
    """Some scores, of the form that evaluations are written in."""
    accuracy, loss = np.linspace(0.5, 1, len(ids)), np.linspace(1, 0.1, len(ids))
    rows = {"id": ids.tolist(), "accuracy": accuracy.tolist(), "loss": loss.tolist()}
    return {"accuracy": accuracy.mean(), "loss": loss.mean(), "chosen_by": chosen_by, "per_client": rows}


@pytest.fixture(scope="module")
def regression() -> Run:
    data = ct.data.mixed_regression(k=2, clients=6, examples=8, dim=2, seed=0)
    learner = ct.Learner(ct.models.Linear(), loss="squared", local=ct.SGD(lr=0.1, steps=2))
    federation = ct.Simulation(data.train, batch=6)
    found = ct.IFCA(k=2, rounds=2, init=data.models).fit(federation, learner, seed=0)
    return Run(found, evaluation(found, data))


def report(folder: Path) -> str:
    return write_report(folder).read_text()


def whole(run: Run, folder: Path) -> Path:
    run.save(folder)
    run.with_models([0], "global").save(folder / "baselines" / "global")
    run.with_models([0, 1] * 4, "local").save(folder / "baselines" / "local", misclustering=None)
    return folder


class Tags(HTMLParser):
    """Every tag with its attributes, and the text of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "tags must be nested"

    def handle_data(self, data: str) -> None:
        self.text += data


def titles(page: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", page)


def test_a_classification_with_baselines_has_every_picture(digits: Run, tmp_path: Path) -> None:
    page = report(whole(digits, tmp_path))
    assert titles(page) == [
        "Summary",
        "Loss per round",
        "How clients moved between clusters",
        "Loss of every client under every model",
        "Found groups against the truth",
        "Test accuracy per client against Global and Local",
        "Unseen clients",
        "Settings and provenance",
    ]
    found = Tags(page)
    assert found.open == []
    images = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert len(images) == 4 and all(a["role"] == "img" and a["aria-label"] for a in images)
    assert page.count("<figure>") == page.count("<figcaption>") == 5
    assert "The mean test accuracy is 75.0%, against 75.0% for Global and 75.0% for Local." in page
    for words in ("IFCA on rotated digits", "8 clients · 3 rounds · seed 0", "1 other restart of IFCA"):
        assert words in found.text
    assert "50.0% of them are in the wrong cluster; each took the model of lowest loss on its own" in page


def test_restarts_that_ended_early_are_told(digits: Run, tmp_path: Path) -> None:
    logs = digits.found.history.logs
    alone = dataclasses.replace(logs[2], loss=[logs[2].loss[0], np.nan], sizes=[[4, 4], []])
    event = Event(2, CONTEST, "start 1 went on.", {"start": 0}, [[], []], [[4, 4], [8, 0]], 1, 0, 0, 0.0)
    run = digits.but(history=History([*logs[:2], event, alone], 8))
    assert "the one with the lowest loss after round 2 went on." in report(run.save(tmp_path / "early"))
    assert "the one with the lowest loss in the end was kept." in report(digits.save(tmp_path / "late"))


def test_the_page_needs_nothing_else(digits: Run, tmp_path: Path) -> None:
    page = report(whole(digits, tmp_path))
    found = Tags(page)
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in found.tags}
    for _, attributes in found.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    assert "http:" not in page and "https:" not in page and "@import" not in page
    assert all(link.startswith("#") for link in re.findall(r"url\((.*?)\)", page))


def test_the_same_run_gives_the_same_page(digits: Run, tmp_path: Path) -> None:
    folder = digits.save(tmp_path)
    first = report(folder)
    assert write_report(folder) == folder / "report.html"
    assert (folder / "report.html").read_text() == first


def test_pictures_do_not_depend_on_the_users_matplotlib(digits: Run) -> None:
    import matplotlib

    def draw() -> str:
        return pictures.loss_per_round([("IFCA", digits.found.history)])

    plain = draw()
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.grid": True}):
        assert draw() == plain


@pytest.mark.parametrize(
    "assignment, sentence",
    [
        ([1, 1, 1, 1, 0, 0, 0, 0], "IFCA found 2 groups among 8 clients; every client is in its true group."),
        (
            [1, 1, 1, 0, 0, 0, 0, 0],
            "IFCA found 2 groups among 8 clients; 1 of 8 clients is in the wrong group.",
        ),
        (
            [1, 1, 0, 0, 0, 0, 0, 0],
            "IFCA found 2 groups among 8 clients; 2 of 8 clients are in the wrong group.",
        ),
        (
            [0] * 8,
            "IFCA found 1 group among 8 clients, where there truly are 2; 4 of 8 clients are in the wrong",
        ),
        ([1, 1, 1, 1, 0, 0, 0, -1], "1 client never answered and has no group."),
    ],
)
def test_headline(digits: Run, tmp_path: Path, assignment: list[int], sentence: str) -> None:
    run = digits.but(assignment=np.array(assignment, np.int32))
    assert sentence in headline(read(run.save(tmp_path)))


def test_counts_of_the_matrix(digits: Run, tmp_path: Path) -> None:
    page = report(digits.but(assignment=np.array([1, 1, 1, 0, 0, 0, 0, -1], np.int32)).save(tmp_path))
    table = re.search('<table class="matrix">.*?</table>', page, re.DOTALL)
    assert table
    rows = re.findall("<tr><th scope=.row.>(?:<span.*?</span>)?(.*?)</th>(.*?)</tr>", table[0])
    cells = {name: re.findall('class="(.*?)">(.*?)<', row) for name, row in rows}
    assert cells == {
        "cluster 1": [("match", "3"), ("zero", "0")],
        "cluster 0": [("miss", "1"), ("match", "3")],
        "no cluster": [("zero", "0"), ("miss", "1")],
    }
    assert list(cells) == ["cluster 1", "cluster 0", "no cluster"]  # in the order of the groups they match


def test_truth_counts_what_misclustering_counts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        labels, found = rng.integers(0, 4, 30), rng.integers(-1, 6, 30)
        truth = Truth([f"group {g}" for g in labels], found)
        assert truth.wrong == round(30 * ct.metrics.misclustering(found, labels))
        assert sorted(truth.rows) == sorted(set(found.tolist()) - {-1})


def test_a_regression_shows_losses(regression: Run, tmp_path: Path) -> None:
    page = report(regression.save(tmp_path))
    assert "Test loss per client" in titles(page)
    assert '<th scope="col">test loss</th>' in page
    assert "The mean test loss is" in page
    assert not re.search(r"\bnan\b", Tags(page).text, re.IGNORECASE)


def test_one_model_one_round_and_nothing_known(regression: Run, tmp_path: Path) -> None:
    history = History(regression.found.history.logs[:1], 6)
    run = regression.with_models([0], "ifca").but(history=history)
    page = report(run.save(tmp_path, truth=None, test=None))
    assert titles(page) == ["Summary", "Loss per round", "Settings and provenance"]
    assert "IFCA found 1 group among 6 clients." in page


def test_a_clustering_saved_without_a_run_around_it_and_with_an_empty_cluster(
    digits: Run, tmp_path: Path
) -> None:
    digits.but(assignment=np.zeros(8, np.int32)).found.save(tmp_path)
    page = report(tmp_path)
    assert "<h1>IFCA</h1>" in page and "n_init" in page
    assert "cluster 0 · 8 clients" in page and "1 empty cluster<" in page


def test_local_as_the_run_itself(digits: Run, tmp_path: Path) -> None:
    page = report(digits.with_models([0, 1] * 4, "local").save(tmp_path))
    assert "Local trained a model for each of the 8 clients." in page
    assert "Found groups against the truth" not in titles(page) and "cluster 0 ·" not in page


def test_text_is_escaped(digits: Run, tmp_path: Path) -> None:
    ids = np.array([NASTY, "$x$", "\x07bell", "客户", *digits.found.ids[4:]])
    page = report(
        digits.but(ids=ids).save(
            tmp_path, f"note = '{NASTY}note'\n[a.b]\nc = ['{NASTY}', 1]\n", data=f"{NASTY}data"
        )
    )
    assert "<b>" not in page and "\x07" not in page
    text = Tags(page).text
    for words in (NASTY, "$x$", "客户", f"{NASTY}data", f"{NASTY}note", f"{NASTY}, 1"):
        assert words in text


def test_thousands_of_clients_and_hundreds_of_rounds(digits: Run, tmp_path: Path) -> None:
    clients, rounds = 4800, 300
    rng = np.random.default_rng(0)
    final = np.repeat([0, 1], clients // 2).astype(np.int32)
    logs = []
    for t in range(rounds):
        moved = rng.choice(clients, clients // (t + 1), replace=False)
        pairs = np.stack([moved, rng.integers(0, 2, len(moved))], axis=1).tolist()
        logs.append(RoundLog(t, [2 / (t + 1)], [len(moved)], [[1, 1]], [pairs], 10, 10, 10, 10, 0.5))
    run = digits.but(
        ids=np.array([f"client-{i}" for i in range(clients)]),
        assignment=final,
        history=History(logs, clients),
        losses=rng.random((clients, 2), np.float32),
    )
    run.save(tmp_path, truth=(1 - final).tolist(), test=scores(run.found.ids, "train"), unseen=None)
    page = report(tmp_path)
    assert "IFCA found 2 groups among 4,800 clients; every client is in its true group." in page
    assert len(titles(page)) == 7
    assert len(page) < 1_500_000
    assert "client-17<" not in page


def test_unfinished_and_missing_runs_say_what_to_do(digits: Run, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no finished clustering"):
        write_report(tmp_path)
    (digits.save(tmp_path / "stopped") / "evaluation.json").unlink()
    with pytest.raises(RunFolderError, match="not finished"):
        write_report(tmp_path / "stopped")
    folder = whole(digits, tmp_path / "run")
    (folder / "baselines" / "local" / "clustering.json").unlink()
    with pytest.raises(RunFolderError, match=f"not finished.*coterie run --resume --out {folder}`"):
        write_report(folder)
    (folder / "clustering.json").unlink()
    with pytest.raises(RunFolderError, match=f"not finished.*coterie run --resume --out {folder}`"):
        write_report(folder)


@pytest.mark.parametrize(
    "file, content",
    [
        ("experiment.toml", "seed = = 0"),
        ("evaluation.json", '{"test": {"accuracy": 1}}'),
        ("evaluation.json", '{"truth": [0, 1]}'),
        ("evaluation.json", "{"),
        ("evaluation.json", "[]"),
    ],
)
def test_damaged_files_are_named(digits: Run, tmp_path: Path, file: str, content: str) -> None:
    folder = digits.save(tmp_path)
    storage.write_text(folder / file, content)
    with pytest.raises(RunFolderError, match=file):
        write_report(folder)


def test_clusters_have_colours_of_their_own() -> None:
    assert len({style.colour(j) for j in range(21)}) == 21


@pytest.mark.parametrize(
    "seconds, text", [(0.04, "0.0 s"), (59.99, "60.0 s"), (125, "2 min 5 s"), (7260, "2 h 1 min")]
)
def test_time_in_human_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_groups_are_told_by_size_and_name_where_no_truth_is_known(digits: Run, tmp_path: Path) -> None:
    assert "Who belongs together" not in report(digits.save(tmp_path / "known"))
    names = np.array([f"ward {i}" for i in range(7)] + [NASTY])
    run = digits.but(ids=names, assignment=np.array([1, 0, 1, 0, 1, 0, -1, 1], np.int32))
    page = report(run.save(tmp_path / "unknown", truth=None, misclustering=None, test=None))
    assert "IFCA found 2 groups among 8 clients, of 4 and 3 clients" in page
    assert "Found groups against the truth" not in titles(page)
    assert "<td>–</td>" in page  # misclustering
    text = Tags(page).text
    assert re.search(r"Who belongs together\s+cluster 0\s*ward 1, ward 3, ward 5\s", text)
    assert re.search(r"cluster 1\s*" + re.escape(NASTY) + ", ward 0, ward 2, ward 4", text)
    assert re.search(r"no cluster\s*ward 6\s", text)


def test_who_was_left_out_is_told_with_the_rounds_and_the_reason(digits: Run, tmp_path: Path) -> None:
    assert "Left out" not in report(digits.save(tmp_path / "all there"))
    missing = [{"lost its connection": ["a"]}, {"lost its connection": ["a", "b"]}, {NASTY: ["a"]}]
    logs = [
        dataclasses.replace(log, missing=out)
        for log, out in zip(digits.found.history.logs, missing, strict=True)
    ]
    run = digits.but(history=ct.clustering.History(logs, 8))
    text = Tags(report(run.save(tmp_path / "some away"))).text
    assert re.search(r"Left out\s.*\sa\s*1–2\s*lost its connection\s", text, re.DOTALL)
    assert re.search(r"b\s*2\s*lost its connection", text) and re.search(r"a\s*3\s*" + re.escape(NASTY), text)
