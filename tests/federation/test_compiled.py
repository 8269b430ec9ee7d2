"""Compiled programs are kept on disk: where, how many, and what if that cannot be."""

import os
import subprocess
import sys

import pytest

from coterie.federation import compiled

PROGRAM = """
import warnings
import jax
import coterie as ct

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    data = ct.data.mixed_regression(k=2, clients=4, examples=3, dim=2, seed=0)
    for _ in range(2):
        simulation = ct.Simulation(data.train)
    learner = ct.Learner(ct.models.Linear(), "squared", ct.SGD(lr=0.1, steps=1))
    found = ct.Global(rounds=1).fit(simulation, learner, seed=0)
print(jax.config.jax_compilation_cache_dir)
print(sum("programs" in str(warning.message) or "cache" in str(warning.message) for warning in said))
print(float(found.history.records[0].loss[0]))
"""


def ran(cache, first="", **environment):
    """Where programs are kept, how many warnings of that there were, and a result."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "COTERIE_"))}
    given = {**clean, "COTERIE_CACHE": str(cache), **environment}
    out = subprocess.run([sys.executable, "-c", first + PROGRAM], env=given, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    folder, warnings, loss = out.stdout.split()
    return folder, int(warnings), float(loss)


@pytest.mark.slow
def test_they_are_kept_in_our_cache_and_read_from_it(tmp_path):
    folder, warnings, loss = ran(tmp_path)
    assert folder == str(tmp_path / "xla") and warnings == 0
    names = {file.name for file in (tmp_path / "xla").iterdir()}
    assert any("one_round" in name for name in names)
    assert ran(tmp_path)[2] == loss
    assert {file.name for file in (tmp_path / "xla").iterdir()} == names  # nothing was compiled anew


def garbage(content):
    return b"no program"


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [garbage, cut, lambda content: b""])
def test_what_is_damaged_is_compiled_again_said_once_and_replaced(tmp_path, damaged):
    loss = ran(tmp_path)[2]
    whole = {file: file.read_bytes() for file in (tmp_path / "xla").iterdir()}
    for file, content in whole.items():
        file.write_bytes(damaged(content))
    assert ran(tmp_path)[1:] == (1, loss)
    assert all(file.stat().st_size > len(content) / 2 for file, content in whole.items())
    assert ran(tmp_path)[1:] == (0, loss)


@pytest.mark.slow
def test_a_full_disk_is_said_once_and_leaves_nothing_half_written(tmp_path):
    """A file that may not grow stands for it: a part of an entry is written, and then no more."""
    limited = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
"""
    _, warnings, loss = ran(tmp_path, first=limited)
    assert warnings == 1
    assert not any(file.stat().st_size >= 2000 for file in (tmp_path / "xla").iterdir())
    assert ran(tmp_path)[1:] == (0, loss)


@pytest.mark.slow
def test_a_folder_that_cannot_be_used_is_said_once_and_costs_no_result(tmp_path):
    (tmp_path / "xla").write_text("a file, and no folder")
    folder, warnings, loss = ran(tmp_path)
    assert folder == "None" and warnings == 1
    assert loss == ran(tmp_path / "other")[2]


@pytest.mark.slow
@pytest.mark.parametrize("of_the_user", [{"JAX_ENABLE_COMPILATION_CACHE": "false"}, "elsewhere"])
def test_what_the_user_says_of_it_comes_first(tmp_path, of_the_user):
    if of_the_user == "elsewhere":
        of_the_user = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "elsewhere")}
    folder, warnings, _ = ran(tmp_path, **of_the_user)
    assert folder == of_the_user.get("JAX_COMPILATION_CACHE_DIR", "None") and warnings == 0
    assert not (tmp_path / "xla").exists()


def test_the_oldest_go_first_where_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_BYTES", 25)
    for age, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    compiled._make_room(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]
