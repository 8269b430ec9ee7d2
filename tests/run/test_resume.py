"""A run that was interrupted, at whatever moment, ends bit-identical to one that never was."""

import contextlib
import errno
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.observers import Killed
from typer.testing import CliRunner

from coterie.algorithms.observer import Observer, Place
from coterie.cli.main import app
from coterie.errors import StorageError
from coterie.federation import tuning
from coterie.run import folder as folder_module
from coterie.run.config import Experiment
from coterie.run.execute import execute
from coterie.run.folder import RunFolder

# minibatches, restarts and partial participation: randomness in every place where a run has it
CONTENT = {
    "seed": 3,
    "data": {"name": "mixed-regression", "clients": 12, "examples": 12, "dim": 3},
    "local": {"name": "sgd", "lr": 0.05, "epochs": 1, "batch_size": 5},
    "algorithm": {
        "name": "ifca",
        "k": 2,
        "rounds": 3,
        "participation": 0.5,
        "n_init": 2,
        "keep_best_after": 2,
    },
    "baselines": ["global"],
}
SHORT = Experiment.read(CONTENT)
LONG = Experiment.read({**CONTENT, "algorithm": {**CONTENT["algorithm"], "rounds": 12}})


class Watch(Observer):
    """Calls `show(name of the method, moment)`, after the moment was recorded."""

    def __init__(self, show, name):
        self.show, self.name = show, name

    def after(self, moment):
        self.show(self.name, moment)


def run(experiment, path, resume=False, every=0.0, show=lambda name, moment: None):
    def progress(name, rounds):
        return contextlib.nullcontext(Watch(show, name))

    execute(experiment, RunFolder(path), resume=resume, checkpoint_every=every, progress=progress)


def stopping_at(name, done, error=Killed):
    """A `show` that stops a method after so many rounds."""

    def show(now, moment):
        if (now, moment.place.done) == (name, done):
            raise error

    return show


REMINDED = {"asks", "bytes_down", "bytes_spared", "bytes_up", "losses", "updates"}


def result(path, reminded=False):
    """All that a run has found, of its baselines too; not how many seconds it took.

    Nor what it cost where clients were `reminded` of what they had kept.
    """
    found, left_out = {}, {"seconds"} | (REMINDED if reminded else set())
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.name == "rounds.jsonl":
            lines = map(json.loads, file.read_text().splitlines())
            # as text, since NaN is not equal to itself
            found[name] = [json.dumps({k: v for k, v in line.items() if k not in left_out}) for line in lines]
        elif file.name == "clustering.json":  # its digests are of seconds, too
            content = json.loads(file.read_text())
            found[name] = {k: v for k, v in content.items() if k not in {"rounds", "digest"}}
        elif file.is_file() and not file.name.startswith((".", "checkpoint", "batch")):
            found[name] = file.read_bytes()
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What the short run finds when it is left alone."""
    path = tmp_path_factory.mktemp("short")
    run(SHORT, path)
    found = result(path)
    assert {"models.safetensors", "baselines/global/models.safetensors", "evaluation.json"} < found.keys()
    assert len(found["rounds.jsonl"]) == 3 + 2  # with the contest and the last exchange
    return found


@pytest.fixture(scope="module")
def long_uninterrupted(tmp_path_factory):
    path = tmp_path_factory.mktemp("long")
    run(LONG, path)
    return result(path)


# -- every moment at which something is on its way to the disk --------------------------------------------


@contextlib.contextmanager
def failing(at, failure):
    """Let the first `at` calls that write to the disk through, and no other; yields how many there were.

    A line of rounds.jsonl that is on its way when it happens ends up half written.
    """
    fsync, replace, calls = os.fsync, os.replace, itertools.count()

    def check(file=None):
        if next(calls) < at:
            return
        if file is not None:
            os.ftruncate(file, max(0, os.fstat(file).st_size - 7))
        raise failure

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", check)
        patched.setattr(os, "replace", lambda *a: (check(), replace(*a)))
        yield lambda: next(calls)
    assert os.fsync is fsync


def moments(path):
    with failing(10**9, Killed()) as count:
        run(SHORT, path)
        return count()


@pytest.mark.slow
def test_killed_at_any_write_it_ends_the_same(uninterrupted, tmp_path):
    total = moments(tmp_path / "count")
    assert total > 40  # two baselines' worth of lines, checkpoints, results
    for moment in range(total):
        path = tmp_path / str(moment)
        with failing(moment, Killed()), pytest.raises(Killed):
            run(SHORT, path)
        run(SHORT, path, resume=True)
        assert result(path) == uninterrupted, f"killed at write {moment}"


@pytest.mark.slow
def test_with_a_full_disk_at_any_write_it_says_so_and_ends_the_same(uninterrupted, tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    total = moments(tmp_path / "count")
    for moment in (0, total // 3, total - 1):  # the next test but two tries a disk that is really full
        path = tmp_path / str(moment)
        with failing(moment, full), pytest.raises(StorageError, match="No space left on device") as raised:
            run(SHORT, path)
        assert "\n" not in str(raised.value)
        run(SHORT, path, resume=True)
        assert result(path) == uninterrupted, f"full at write {moment}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_by_an_exception_it_ends_the_same(uninterrupted, tmp_path, error):
    with pytest.raises(error):
        run(SHORT, tmp_path, show=stopping_at("ifca", 2, error))
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 2
    run(SHORT, tmp_path, resume=True)
    assert result(tmp_path) == uninterrupted


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stops=st.lists(
        st.tuples(st.sampled_from(["ifca", "global"]), st.integers(1, 12)), min_size=1, max_size=3
    ),
    every=st.integers(0, 6),
)
def test_stopped_after_any_rounds_it_ends_the_same(
    long_uninterrupted, tmp_path_factory, monkeypatch, stops, every
):
    """Checkpoints come every so many rounds: a clock that ticks when it is looked at."""
    clock = itertools.count()
    monkeypatch.setattr(folder_module.time, "monotonic", lambda: next(clock))
    path = tmp_path_factory.mktemp("stopped")
    for stop in stops:
        with contextlib.suppress(Killed):
            run(LONG, path, resume=True, every=every, show=stopping_at(*stop))
    run(LONG, path, resume=True, every=every)
    assert result(path) == long_uninterrupted


def test_the_interval_of_checkpoints_is_no_part_of_the_experiment(tmp_path, uninterrupted):
    with failing(12, Killed()), pytest.raises(Killed):
        run(SHORT, tmp_path, every=0)
    run(SHORT, tmp_path, resume=True, every=1e9)
    assert result(tmp_path) == uninterrupted


# -- before, after and between pauses ---------------------------------------------------------------------

PAUSING = {
    "srfca": {"threshold": "40%", "rounds": 2, "refines": 2, "participation": 0.75, "final_rounds": 2},
    "srfca, warm": {"name": "srfca", "threshold": "40%", "rounds": 2, "refines": 1, "warm": True},
    "srfca, resampled": {
        "name": "srfca",
        "threshold": "40%",
        "rounds": 1,
        "resample": True,
        "distance": "l2",
    },
    "srfca, held out": {"name": "srfca", "rounds": 2, "refines": 2, "init_steps": 2},
    "discover": {"rounds": 3, "alone": 4, "sweep": 2},
    "cfl": {"rounds": 6, "warmup": 1, "eps1": 10.0, "eps2": 0.001, "gamma": 0.0},
    "fedsoft": {"k": 2, "rounds": 5, "interval": 2, "select": 3},
    "one-shot-kmeans": {"k": 2, "rounds": 2, "alone": 2, "participation": 0.5},
    "local-kmeans": {"name": "one-shot-kmeans", "k": 2, "rounds": 0, "alone": 2},
    "local": {"rounds": 3, "participation": 0.5},
    "oracle": {"rounds": 2, "aggregate": "fedadam"},
    "fedx": {"k": 2, "rounds": 2, "n_init": 2, "init": {"name": "moment-descent", "iterations": 2}},
    "ifca": {
        "k": 3,
        "rounds": 4,
        "n_init": 2,
        "participation": 0.5,
        "init": {"name": "farthest-loss", "rounds": 1},
        "settle": 1,
        "empty": "revive",
        "aggregate": "fedavgm",
    },
    "ifca, without k": {
        "name": "ifca",
        "rounds": 2,
        "init": {"name": "components", "rounds": 2, "threshold": "40%"},
    },
}


def experiment_with(kind):
    section = {"name": kind, **PAUSING[kind]}
    return Experiment.read({**CONTENT, "loss": "half_squared", "baselines": [], "algorithm": section})


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAUSING)
def test_stopped_at_any_moment_it_ends_the_same(kind, tmp_path):
    """Right after a pause, between rounds, right before a pause, and after the last one."""
    experiment, places, reminded = experiment_with(kind), [], kind == "discover"
    run(experiment, tmp_path / "whole", show=lambda name, moment: places.append(moment.place))
    expected = result(tmp_path / "whole", reminded)
    assert places[0] == Place() and len(places) > 1
    for number in range(len(places)):
        path, still = tmp_path / str(number), itertools.count()

        def stop(name, moment, number=number, still=still):
            if next(still) == number:
                raise Killed

        with pytest.raises(Killed):
            run(experiment, path, show=stop)
        seen = []
        run(experiment, path, resume=True, show=lambda name, moment, seen=seen: seen.append(moment.place))
        assert result(path, reminded) == expected, f"stopped at {places[number]}"
        assert seen == places[number + 1 :]  # it went on from there


@pytest.mark.slow
def test_those_moments_are_before_after_and_between_pauses(tmp_path):
    """Else the test above would not see what it should."""
    places = []
    run(experiment_with("srfca"), tmp_path, show=lambda name, moment: places.append(moment.place))
    after_a_pause = [p for p in places if p.done == p.first < p.last]
    between = [p for p in places if p.first < p.done < p.last]
    before_a_pause = [p for p in places if p.first < p.done == p.last]
    assert [p.done for p in after_a_pause] == [0, 2, 4]
    assert [p.done for p in between] == [1, 3, 5]
    assert [p.done for p in before_a_pause] == [2, 4, 6]
    ended = []
    run(experiment_with("cfl"), tmp_path / "cfl", show=lambda name, moment: ended.append(moment.place))
    assert ended[-1] == Place(6, 6, 6, ended=True)
    found = [json.loads(line) for line in (tmp_path / "cfl" / "rounds.jsonl").read_text().splitlines()]
    assert {"split", "last look"} <= {line.get("name") for line in found}


# -- a disk that is really full ---------------------------------------------------------------------------

PAGE = 4096


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 pages."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={40 * PAGE}", "none", str(tmp_path)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_really_full(uninterrupted, small_disk):
    (small_disk / "experiment.toml").write_text(SHORT.to_toml())
    out, ballast = small_disk / "run", small_disk / "ballast"
    command = ["run", "--config", str(small_disk / "experiment.toml"), "--out", str(out)]
    command += ["--checkpoint-every", "0"]
    refused = []
    for free in range(1, 15, 2):
        room = os.statvfs(small_disk).f_bavail
        ballast.write_bytes(b"x" * PAGE * (room - free))
        answer = CliRunner().invoke(app, command)
        if answer.exit_code:
            last = answer.stderr.splitlines()[-1]
            assert answer.exit_code == 2 and isinstance(answer.exception, SystemExit)
            assert last.startswith("error: cannot write ") and "No space left on device" in last
            checkpoint = out / "checkpoint.safetensors"
            refused.append(checkpoint.exists())
        ballast.unlink()
        answer = CliRunner().invoke(app, [*command, "--resume"])
        assert answer.exit_code == 0, answer.stderr
        assert result(out) == uninterrupted
        assert not list(out.rglob("*.part"))
        shutil.rmtree(out)
    assert True in refused and False in refused  # it was full before and after there was a checkpoint


@pytest.mark.slow
def test_a_resumed_run_keeps_the_batches_it_began_with(tmp_path, monkeypatch):
    """Batching decides rounding, and what is fastest may be measured differently the next time."""
    experiment = Experiment.read(
        {
            **CONTENT,
            "baselines": [],
            "algorithm": {"name": "global", "rounds": 4},
            "simulation": {"batch": "tune"},
        }
    )

    def measured(cache, fastest):
        """As in a new process on a machine on which `fastest(candidates)` is the fastest."""
        jax.clear_caches()
        monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / cache))
        monkeypatch.setattr(tuning, "_quickest", fastest)

    measured("cache-a", min)
    run(experiment, tmp_path / "whole")
    measured("cache-b", min)
    with pytest.raises(Killed):
        run(experiment, tmp_path / "stopped", show=stopping_at("global", 2))
    notes = json.loads((tmp_path / "stopped" / "batch.json").read_text())
    measured("cache-c", max)
    run(experiment, tmp_path / "stopped", resume=True)
    after = json.loads((tmp_path / "stopped" / "batch.json").read_text())
    assert notes and notes.items() <= after.items()
    whole, stopped = result(tmp_path / "whole"), result(tmp_path / "stopped")
    assert stopped["rounds.jsonl"] == whole["rounds.jsonl"]
    assert stopped["models.safetensors"] == whole["models.safetensors"]


# -- killed for real --------------------------------------------------------------------------------------

OPTIONS = shlex.split(
    "--data mixed-regression --clients 12 --set data.examples=12 --set data.dim=3 --seed 3 "
    "--algorithm ifca --k 2 --n-init 2 --rounds 600 --participation 0.5 --baselines global "
    "--set local.lr=0.05 --set local.batch_size=5 --set local.steps=3 --checkpoint-every 0.02"
)


def start(path, *options):
    """The command in a process of its own, as a user starts it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # it compiles longer than it computes
    with open(path.with_suffix(".err"), "a") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie", "run", "--out", str(path), *(options or OPTIONS)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
        )


def finish(path, *options):
    process = start(path, *options)
    assert process.wait(timeout=120) == 0, path.with_suffix(".err").read_text()


def kill_when(path, moment, *options):
    process = start(path, *options)
    deadline = time.monotonic() + 120
    while not moment() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL, path.with_suffix(".err").read_text()


def lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


@pytest.mark.slow
def test_killed_again_and_again_it_ends_the_same(tmp_path):
    whole, path = tmp_path / "whole", tmp_path / "killed"
    finish(whole)
    expected = result(whole)
    assert len(expected["rounds.jsonl"]) == 600 + 2  # with the contest and the last exchange

    began = time.monotonic()
    kill_when(path, lambda: time.monotonic() > began + 0.3)  # before anything was written
    assert not path.exists()
    kill_when(path, (path / "experiment.toml").exists, *OPTIONS, "--resume")  # while it compiles
    assert lines(path / "rounds.jsonl") == 0
    kill_when(path, lambda: lines(path / "rounds.jsonl") >= 100, "--resume", "--checkpoint-every", "0.02")
    assert (path / "checkpoint.safetensors").exists() and not (path / "clustering.json").exists()
    baseline = path / "baselines" / "global"
    kill_when(path, lambda: lines(baseline / "rounds.jsonl") >= 200, "--resume", "--checkpoint-every", "0")
    assert (path / "evaluation.json").exists() and not (baseline / "clustering.json").exists()
    finish(path, "--resume")
    assert result(path) == expected
