"""What is kept about how results were computed."""

import subprocess
from pathlib import Path

import jax
import pytest

import coterie
from coterie.papers import provenance


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a folder of its own, as if it were ours."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(coterie, "__file__", str(folder / "__init__.py"))
    provenance.commit.cache_clear()
    yield folder
    provenance.commit.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_device_precision_and_versions_are_told():
    told = provenance.provenance("float32")
    assert told["jax"] == jax.__version__ and told["coterie"] == coterie.__version__
    assert told["precision"] == "float32" and told["device"] == jax.devices()[0].device_kind


def test_a_checkout_has_a_commit_and_changes_are_told(package):
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-qm", "all")
    head = git(package, "rev-parse", "HEAD")
    assert provenance.commit() == head
    (package / "__init__.py").write_text("x = 1")
    provenance.commit.cache_clear()
    assert provenance.commit() == f"{head} + changes"


def test_an_installation_inside_another_checkout_has_none(package):
    git(package.parent, "init", "-q")
    assert provenance.commit() is None
