"""The benchmarks run and print their ratios; how large these are is not for a test on a busy machine."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = {
    "candidates.py": [
        *("--clients", "6", "--examples", "11", "--features", "12", "--width", "20"),
        *("--rows", "4", "--warps", "2"),
    ],
    "collapse.py": ["--seeds", "1", "--rounds", "2", "--clients", "4"],
    "convolution.py": ["--networks", "CNN", "--width", "4", "--clients", "2", "2", "--examples", "3", "3"],
    "cohort.py": ["--clients", "6", "--examples", "4"],
    "mnist_round.py": ["--clients", "4", "--examples", "5"],
    "pairwise.py": ["--clients", "6", "--examples", "4", "--features", "8", "--hidden", "4"],
    "peers.py": ["--clients", "8", "--examples", "20"],
    "roofline.py": ["--clients", "4", "--examples", "5", "--pairs", "3", "--regressions", "8", "--seconds"],
    "million.py": ["--clients", "20", "40"],
    "processes.py": ["--clients", "4", "--examples", "5", "--devices", "2"],
    "restarts.py": ["--clients", "4", "--examples", "5", "--starts", "2"],
    "sample_space.py": ["--clients", "4", "--examples", "5", "--features", "30"],
    "scaling.py": ["--clients", "6"],
    "streaming.py": ["--gigabytes", "0.0001"],
    "start.py": ["--clients", "4", "--examples", "5", "--rounds", "4"],
    "synthetic.py": ["--clients", "8", "--examples", "3", "--dim", "5", "--rounds", "2"],
}


def printed(name, *options):
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), *options],
        # at these sizes they compile far longer than they compute
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "COTERIE_BENCHMARK_PAIRS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_benchmark_is_known_here():
    needs_mnist = "precision.py"
    others = {"measure.py", "torch_ifca.py", "compare.py", "took.py", needs_mnist}
    assert {p.name for p in FOLDER.glob("*.py")} == {*TINY, *others}


@pytest.mark.parametrize("name", TINY)
def test_prints_ratios_and_no_bare_times(name):
    lines = printed(name, *TINY[name]).splitlines()
    if name in ("cohort.py", "peers.py"):  # where PyTorch is missing, there is nothing to compare with
        compared = [line for line in lines if "PyTorch" in line and "not installed" not in line]
        assert bool(compared) == (importlib.util.find_spec("torch") is not None)
    lines = [line for line in lines if "pip install" not in line]
    assert lines or name == "peers.py"
    assert all(re.search(r"\d(x|%)", line) for line in lines)


def test_what_became_worse_by_more_than_a_fifth_is_named(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    compare = importlib.import_module("compare")
    before = {
        "faster": {"ratio": 2.0, "less": False},
        "slower": {"ratio": 2.0, "less": False},
        "a little slower": {"ratio": 2.0, "less": False},
        "longer": {"ratio": 2.0, "less": True},
        "shorter": {"ratio": 2.0, "less": True},
        "gone": {"ratio": 2.0, "less": True},
    }
    after = {"faster": 3.0, "slower": 1.5, "a little slower": 1.8, "longer": 2.5, "shorter": 1.0, "new": 1.0}
    now = {what: {"ratio": ratio, "less": what in ("longer", "shorter")} for what, ratio in after.items()}
    assert compare.worse(now, before) == ["longer: 2.50, was 2.00", "slower: 1.50, was 2.00"]


def test_a_missing_peer_is_one_sentence_that_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    measure = importlib.import_module("measure")
    assert not measure.installed("no_such_package", "Peer")
    assert (
        capsys.readouterr().out
        == "Peer is not installed: `pip install no_such_package` to compare with it.\n"
    )
    assert measure.installed("numpy", "NumPy") and not capsys.readouterr().out


@pytest.mark.torch
def test_what_does_other_work_is_no_peer(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(FOLDER))
    peers = importlib.import_module("peers")
    shards, models = peers.problem(8, 20)
    ours = peers.coterie_round(shards, models, "float32")
    peers.check_same(peers.torch_round(shards, models, peers.LR, peers.STEPS), ours, models)
    with pytest.raises(AssertionError, match="of their way apart"):
        peers.check_same(peers.torch_round(shards, models, peers.LR, peers.STEPS - 1), ours, models)
