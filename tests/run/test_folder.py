"""The run folder: whose it is, and what is written into it as a run happens."""

import dataclasses
import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

import coterie as ct
from coterie import storage
from coterie.algorithms.algorithm import State
from coterie.algorithms.observer import Moment, Place
from coterie.clustering.history import RoundLog
from coterie.data import Spec
from coterie.errors import CoterieError, RunFolderError, StorageError
from coterie.models import stacked
from coterie.run import folder as folder_module
from coterie.run.config import Experiment
from coterie.run.folder import CHECKPOINT, EXPERIMENT, OURS, Recorder, RunFolder

ONE = Experiment.read({"seed": 1})
OTHER = Experiment.read({"seed": 2})


def sentence(raised):
    message = str(raised.value)
    assert "\n" not in message and message.endswith(".")
    return message


def claim(path, experiment=ONE, resume=False, overwrite=False):
    RunFolder(path).claim(experiment, resume, overwrite)


def names(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


# -- whose it is ------------------------------------------------------------------------------------------


def test_a_new_folder_is_made_and_says_whose_it_is(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "a")
    assert not folder.exists
    folder.claim(ONE, resume=False, overwrite=False)
    assert folder.exists and not folder.finished
    assert folder.experiment() == ONE
    assert names(folder.path) == [EXPERIMENT] and Recorder(folder).saved() is None
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")  # other things may be there
    for name, overwrite in (("b", False), ("c", True)):
        claim(tmp_path / name, overwrite=overwrite)
        assert RunFolder(tmp_path / name).experiment() == ONE


def test_the_same_run_again_needs_to_be_told_what_to_do(tmp_path):
    claim(tmp_path)
    with pytest.raises(RunFolderError) as raised:
        claim(tmp_path)
    assert f"{tmp_path} already holds this run" in sentence(raised)
    assert "--resume" in str(raised.value) and "--overwrite" in str(raised.value)
    claim(tmp_path, resume=True)
    assert RunFolder(tmp_path).experiment() == ONE


@pytest.mark.parametrize("resume", [False, True])
def test_another_experiments_folder_is_refused_and_left_alone(tmp_path, resume):
    claim(tmp_path)
    with pytest.raises(RunFolderError) as raised:
        claim(tmp_path, OTHER, resume=resume)
    assert "belongs to another experiment: its seed is 1, here it is 2." in sentence(raised)
    assert RunFolder(tmp_path).experiment() == ONE


def fill(path):
    """All that a run with a baseline writes, and beside it what a user put there."""
    claim(path)
    for where in (path, path / "baselines" / "global"):
        for name in OURS:
            if not (where / name).exists():
                storage.write_text(where / name, "old")
    strangers = ["notes.txt", "baselines/notes.txt", "baselines/global/notes.txt", "baselines/own/notes.txt"]
    for name in (*strangers, "plots/rounds.jsonl"):
        storage.write_text(path / name, "mine")
    return sorted([*strangers, "plots/rounds.jsonl"])


def test_overwriting_removes_what_a_run_has_written_and_nothing_else(tmp_path):
    strangers = fill(tmp_path)
    claim(tmp_path, OTHER, overwrite=True)
    assert names(tmp_path) == sorted([*strangers, EXPERIMENT])
    assert RunFolder(tmp_path).experiment() == OTHER
    claim(tmp_path / "plain")
    RunFolder(tmp_path / "plain").baseline("local").claim(ONE, resume=False, overwrite=False)
    claim(tmp_path / "plain", OTHER, overwrite=True)
    assert os.listdir(tmp_path / "plain") == [EXPERIMENT]  # of a baseline, its folder too


def test_what_is_left_when_overwriting_is_killed_never_passes_for_the_new_run(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    unlink, left = Path.unlink, 0

    def unlink_some(self, missing_ok=False):
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        unlink(self, missing_ok)

    for moment in range(3 * len(OURS)):  # of the run and of the two folders below baselines/
        path = tmp_path / str(moment)
        fill(path)
        left = moment
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", unlink_some)
            with pytest.raises(Killed):
                claim(path, OTHER, overwrite=True)
        with pytest.raises(RunFolderError, match="another experiment"):
            claim(path, OTHER, resume=True)
        claim(path, OTHER, overwrite=True)
        assert RunFolder(path).experiment() == OTHER and not (path / CHECKPOINT).exists()
    left = 3 * len(OURS)
    fill(tmp_path / "enough")
    monkeypatch.setattr(Path, "unlink", unlink_some)
    claim(tmp_path / "enough", OTHER, overwrite=True)  # there were no further moments


@pytest.mark.parametrize("name", sorted(set(OURS) - {EXPERIMENT}))
@pytest.mark.parametrize("resume", [False, True])
def test_files_of_a_run_without_its_experiment_are_not_continued(tmp_path, name, resume):
    (tmp_path / name).write_text("whose?")
    with pytest.raises(RunFolderError) as raised:
        claim(tmp_path, resume=resume)
    assert f"{tmp_path} holds files of a run but no experiment.toml" in sentence(raised)
    assert names(tmp_path) == [name]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"seed = ", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"sed = 3", "sed: there is no such setting."),
        (b"[algorithm]\nname = 'fedsoft'", "algorithm.k: this setting is required."),
    ],
)
def test_a_damaged_experiment_is_named(tmp_path, content, reason):
    (tmp_path / EXPERIMENT).write_bytes(content)
    for use in (RunFolder(tmp_path).experiment, lambda: claim(tmp_path, resume=True)):
        with pytest.raises(RunFolderError) as raised:
            use()
        assert sentence(raised).startswith(f"{tmp_path / EXPERIMENT} is damaged: ")
        assert reason in str(raised.value)
    claim(tmp_path, overwrite=True)
    assert RunFolder(tmp_path).experiment() == ONE


def test_an_experiment_that_was_changed_after_the_run_began_is_refused(tmp_path):
    claim(tmp_path)
    file = tmp_path / EXPERIMENT
    file.write_text(file.read_text().replace("seed = 1", "seed = 2"))
    for experiment in (ONE, OTHER):  # to take the changed file for the experiment does not help
        with pytest.raises(RunFolderError, match="was changed after the run began") as raised:
            claim(tmp_path, experiment, resume=True)
        sentence(raised)
    copy = tmp_path / "copy.toml"
    copy.write_text(file.read_text())
    claim(tmp_path / "another", Experiment.read(Experiment.from_file(copy)))
    assert RunFolder(tmp_path / "another").experiment() == OTHER


def test_two_processes_do_not_compute_in_one_folder(tmp_path):
    folder, other = (RunFolder(tmp_path / "runs" / "a") for _ in range(2))
    with folder.claimed(ONE, resume=False, overwrite=False):
        for options in ({"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}):
            with (
                pytest.raises(RunFolderError, match="another process computes in") as raised,
                other.claimed(ONE, **options),
            ):
                pass
            sentence(raised)
        assert folder.experiment() == ONE
    with other.claimed(ONE, resume=True, overwrite=False):
        pass


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_no_folder(tmp_path, overwrite):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError) as raised:
        claim(tmp_path / "file", overwrite=overwrite)
    assert sentence(raised) == f"{tmp_path / 'file'} is not a folder: choose another --out."
    with pytest.raises(StorageError) as raised:
        claim(tmp_path / "file" / "run", overwrite=overwrite)
    assert f"cannot write {tmp_path / 'file' / 'run'}" in sentence(raised)
    assert (tmp_path / "file").read_text() == "mine"


# -- what is written --------------------------------------------------------------------------------------

IDS, SPEC = np.array(["a", "b", "c", "d"]), Spec((3,), "float32", (), "float32")
ROUNDS = 9  # until the next pause


def state_after(done):
    """The states of two starts after so many rounds."""
    models = {"w": jnp.arange(12.0).reshape(2, 2, 3) / 7 + done, "b": jnp.full((2, 2), done, jnp.float32)}
    return State(models, jnp.full((2, 4), done, jnp.int32))


def place_after(done):
    return Place(done, first=min(1, done), last=ROUNDS, ended=done == ROUNDS)


def moment(done, new):
    return Moment(state_after(done), place_after(done), IDS, SPEC, new)


def log_of(number):
    return RoundLog(
        round=number,
        loss=[1 / (number + 3), float("nan")],
        changed=[1, 0],
        sizes=[[1], []],
        moved=[[[0, 0]], []],
        asked=4,
        answered=4,
        bytes_down=8,
        bytes_up=8,
        seconds=0.1,
    )


def begin(folder, every=0.0):
    """A recorder of a run that begins, or goes on from where the folder says."""
    recorder = Recorder(folder, every)
    found = recorder.saved()
    if found is None:
        recorder.after(moment(0, []))
    else:
        recorder.resumed(moment(found.place.done, found.records))
    return recorder


def record(folder, rounds, every=0.0):
    """Go through rounds as an algorithm does."""
    recorder = begin(folder, every)
    for t in range(rounds):
        recorder.after(moment(t + 1, [log_of(t)]))


def kept(folder, done):
    """Whether the folder holds a run with so many rounds behind it, just as it was."""
    found = Recorder(folder).saved()
    arrays = {name: np.asarray(a) for name, a in stacked.named(state_after(done)).items()}
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].tobytes() == array.tobytes() and found.arrays[name].dtype == array.dtype
    assert found.place == place_after(done)
    assert type(found.place.done) is int and type(found.place.ended) is bool
    assert found.ids.tolist() == IDS.tolist() and found.spec == SPEC
    assert found.source == str(folder.path / CHECKPOINT)
    return same_logs(found.records, [log_of(t) for t in range(done)])


def same_logs(a, b):
    # as lines: NaN is not equal to itself
    return [log.to_line() for log in a] == [log.to_line() for log in b]


@pytest.fixture
def folder(tmp_path):
    claim(tmp_path)
    return RunFolder(tmp_path)


def test_every_round_is_a_line_at_once(folder):
    recorder = begin(folder, every=1e9)
    for t in range(3):
        recorder.after(moment(t + 1, [log_of(t)]))
        lines = (folder.path / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == list(range(t + 1))
    assert not (folder.path / CHECKPOINT).exists()


@pytest.mark.parametrize("rounds", [0, 5, ROUNDS])  # 0: the start, which may have taken long
def test_a_run_continues_from_its_checkpoint(folder, rounds):
    record(folder, rounds)
    assert kept(folder, rounds)


def test_several_rounds_can_be_recorded_at_once(folder):
    begin(folder).after(moment(3, [log_of(t) for t in range(3)]))
    assert kept(folder, 3)


def test_the_state_is_kept_every_so_many_seconds(folder, monkeypatch):
    now = 100.0
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: now)
    recorder = begin(folder, every=5)
    rounds_kept = []
    for t, seconds in enumerate([3, 1, 1, 4.9, 0.1, 30, 1]):
        now += seconds
        recorder.after(moment(t + 1, [log_of(t)]))
        found = Recorder(folder).saved()
        rounds_kept.append(0 if found is None else len(found.records))
    assert rounds_kept == [0, 0, 3, 3, 5, 6, 6]


@pytest.mark.parametrize(
    "tail", [b"", b"{", b'{"round":3,"lo', b"\xff\xfe\x00", log_of(3).to_line().encode()]
)
def test_rounds_after_the_checkpoint_are_computed_again(folder, tail):
    record(folder, rounds=3)
    rounds = folder.path / "rounds.jsonl"
    whole = rounds.read_bytes()
    rounds.write_bytes(whole + tail)
    assert kept(folder, 3)
    assert rounds.read_bytes() == whole + tail  # to look changes nothing
    recorder = begin(folder)
    assert rounds.read_bytes() == whole
    recorder.after(moment(4, [log_of(3)]))
    assert kept(folder, 4)


def test_without_a_checkpoint_all_rounds_are_computed_again(folder):
    record(folder, rounds=3, every=1e9)
    assert Recorder(folder).saved() is None
    begin(folder, every=1e9)
    assert (folder.path / "rounds.jsonl").read_bytes() == b""


def test_a_run_that_goes_on_from_elsewhere_is_written_down_from_its_beginning(folder):
    record(folder, rounds=5)
    recorder = Recorder(folder, every=0.0)
    recorder.resumed(moment(2, [log_of(0), log_of(1)]))
    recorder.after(moment(3, [log_of(2)]))
    assert kept(folder, 3)


def metadata(**changes):
    spec = json.dumps(asdict(SPEC))
    usual = {"place": "[3, 1, 9, false]", "lines": "3", "rounds": "", "clients": '["a"]', "spec": spec}
    return {name: word for name, word in {**usual, **changes}.items() if word is not None}


def rewritten(**changes):
    """Replace a checkpoint by one that says other things of itself."""
    return lambda path: storage.write_arrays(path, {"models": np.zeros((1, 1))}, metadata(**changes))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), ""),
        (lambda path: path.write_bytes(path.read_bytes()[:9]), ""),
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.write_bytes(b"\xff" * 200), ""),
        (lambda path: storage.write_arrays(path, {"models": np.zeros((1, 1))}), "clients"),
        (rewritten(clients=None), "clients"),
        (rewritten(place=None), "place"),
        (rewritten(place="many"), ""),
        (rewritten(place="3"), ""),
        (rewritten(place="[1, 2, 3, false, 5]"), ""),
        (rewritten(place='["a", "b", "c", "d"]'), ""),
        (rewritten(lines="many"), "many"),
        (rewritten(rounds=None), "rounds"),
        (rewritten(spec="{}"), ""),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused(folder, damage, reason):
    record(folder, rounds=3)
    damage(folder.path / CHECKPOINT)
    for look in (Recorder(folder).saved, folder.began_with):
        with pytest.raises(RunFolderError) as raised:
            look()
        message = sentence(raised)
        assert message.startswith(f"{folder.path / CHECKPOINT} does not fit this experiment (")
        assert reason in message and message.endswith("): start again with --overwrite.")


DATA = ct.data.mixed_regression(clients=4, k=2, dim=3, examples=6, seed=0)
LEARNER = ct.Learner(ct.models.Linear(bias=True), "squared", ct.SGD(lr=0.05, steps=1))


def fitted(folder, algorithm, train=DATA.train, learner=LEARNER):
    return algorithm.fit(train, learner, seed=1, observers=[Recorder(folder, every=0.0)])


def changed(path, **arrays):
    with safe_open(path, framework="numpy") as file:
        words = file.metadata()
    kept = {**storage.read_arrays(path), **arrays}
    storage.write_arrays(path, {name: a for name, a in kept.items() if a is not None}, words)


WEIGHT, BIAS = "models.layers.0.weight", "models.layers.0.bias"


@pytest.mark.parametrize(
    "changes, reason",
    [
        (
            {WEIGHT: np.zeros((2, 2, 1, 4), np.float32)},
            f"'{WEIGHT}' has shape (2, 2, 1, 4), not (2, 2, 1, 3)",
        ),
        ({WEIGHT: np.zeros((2, 3), np.float32)}, f"'{WEIGHT}' has shape (2, 3), not (2, 2, 1, 3)"),
        (
            {WEIGHT: np.zeros((1, 2, 1, 3), np.float32)},
            f"'{WEIGHT}' has shape (1, 2, 1, 3), not (2, 2, 1, 3)",
        ),
        ({"assignment": np.zeros((2, 5), np.int32)}, "'assignment' has shape (2, 5), not (2, 4)"),
        ({"assignment": None}, "'assignment' is on one side only"),
        ({BIAS: None}, f"'{BIAS}' is on one side only"),
        ({BIAS: None, WEIGHT: None}, "it has no models"),
        ({"extra": np.zeros(1)}, "'extra' is on one side only"),
    ],
)
def test_a_checkpoint_of_other_arrays_is_refused(folder, changes, reason):
    algorithm = ct.IFCA(k=2, rounds=2, n_init=2)
    fitted(folder, algorithm)
    changed(folder.path / CHECKPOINT, **changes)
    before = (folder.path / "rounds.jsonl").read_bytes()
    with pytest.raises(RunFolderError) as raised:
        fitted(folder, algorithm)
    message = sentence(raised)
    assert message.startswith(f"{folder.path / CHECKPOINT} does not fit this experiment (")
    assert reason in message and message.endswith("): start again with --overwrite.")
    assert (folder.path / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "algorithm, learner, train",
    [
        (ct.IFCA(k=2, rounds=2, n_init=3), LEARNER, DATA.train),
        (ct.IFCA(k=2, rounds=2, n_init=2, settle=2), LEARNER, DATA.train),
        (ct.FedSoft(2, rounds=2), LEARNER, DATA.train),
        (
            ct.IFCA(k=2, rounds=2, n_init=2),
            dataclasses.replace(LEARNER, model=ct.models.MLP((4,))),
            DATA.train,
        ),
        (ct.IFCA(k=2, rounds=2, n_init=2), LEARNER, DATA.train[[0, 1, 2]]),
    ],
)
def test_a_run_of_something_else_is_not_continued(folder, algorithm, learner, train):
    fitted(folder, ct.IFCA(k=2, rounds=2, n_init=2))
    with pytest.raises(CoterieError) as raised:
        fitted(folder, algorithm, train, learner)
    assert "does not fit this experiment" in sentence(raised) or "with other clients" in sentence(raised)


@pytest.mark.parametrize(
    "keep, reason",
    [
        (lambda lines: lines[:2], "lacks rounds that were computed"),
        (lambda lines: [], "lacks rounds that were computed"),
        (lambda lines: None, "lacks rounds that were computed"),
        (lambda lines: [lines[0], lines[1][:20] + b"\n", lines[2]], "is damaged"),
        (lambda lines: [lines[0], b"\xff\n", lines[2]], "is damaged"),
        (lambda lines: [lines[0], b"{}\n", lines[2]], "is damaged"),
        (lambda lines: [lines[0], b"3\n", lines[2]], "is damaged"),
        (lambda lines: [lines[0], lines[1].replace(b'"asked":4', b'"asked":5'), lines[2]], "was changed"),
    ],
)
def test_rounds_that_are_missing_or_damaged_are_refused(folder, keep, reason):
    record(folder, rounds=3)
    rounds = folder.path / "rounds.jsonl"
    left = keep(rounds.read_bytes().splitlines(keepends=True))
    if left is None:
        rounds.unlink()
    else:
        rounds.write_bytes(b"".join(left))
    with pytest.raises(RunFolderError) as raised:
        begin(folder)
    assert sentence(raised).startswith(f"{rounds} {reason}")
    assert "--overwrite" in str(raised.value)
    assert not rounds.exists() or rounds.read_bytes() == b"".join(left)  # nothing is made worse


@pytest.mark.parametrize("full_at", [1, 2])
def test_a_full_disk_leaves_the_earlier_checkpoint_intact(folder, monkeypatch, full_at):
    """The first write of a round is its line, the second the checkpoint."""
    record(folder, rounds=3)
    recorder = begin(folder)
    before = (folder.path / CHECKPOINT).read_bytes()
    calls = 0

    def fsync(file):
        nonlocal calls
        calls += 1
        if calls >= full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(StorageError) as raised:
            recorder.after(moment(4, [log_of(3)]))
    assert "No space left on device" in str(raised.value) and "\n" not in str(raised.value)
    assert calls == full_at
    assert (folder.path / CHECKPOINT).read_bytes() == before
    assert kept(folder, 3)
    assert sorted(os.listdir(folder.path)) == [CHECKPOINT, EXPERIMENT, "rounds.jsonl"]
