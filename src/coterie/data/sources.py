"""Where the files of data sets come from: a folder of the user's, our cache, or their publisher."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from coterie import storage
from coterie.errors import DataError, StorageError

T = TypeVar("T")
CHUNK = 2**16  # bytes of a download that are written at once
PATIENCE = 30  # seconds that a server may be silent


@dataclass(frozen=True)
class Remote:
    """A published file: what it is called, where it is, and its checksum, where one is published."""

    name: str
    urls: tuple[str, ...]
    checksum: str | None = None


@dataclass(frozen=True)
class Form(Generic[T]):
    """One form that the files of a data set may have.

    Attributes
    ----------
    what
        What it is called.
    files
        Their names, or patterns such as `*train*.parquet`, each of one file or more. `.gz` may follow.
    read
        Makes the data set of the paths that each of the names stands for.
    """

    what: str
    files: tuple[str, ...]
    read: Callable[..., T]

    def missing_in(self, folder: Path) -> list[str]:
        return [name for name in self.files if not _matching(folder, name)]


@dataclass(frozen=True)
class Source(Generic[T]):
    """The files of a data set, in any of several forms.

    Attributes
    ----------
    name
        What the data set is called.
    places
        Where the files may be, below the folder that a user names.
    forms
        The forms that are read, the most usual one first.
    published
        The files to download where the user names no folder; they must make up one of the forms.
    otherwise
        How to get files that nobody publishes in such a form.
    """

    name: str
    places: tuple[str, ...]
    forms: tuple[Form[T], ...]
    published: tuple[Remote, ...] = ()
    otherwise: str = "leave folder out to have it downloaded"

    def read(self, folder: str | Path | None) -> T:
        """The data set: from that folder, else from the one that COTERIE_DATA names, else downloaded."""
        folder = folder or os.environ.get("COTERIE_DATA")
        form, files = self._found(Path(folder).expanduser() if folder else self._downloaded())
        return form.read(*files)

    def _found(self, folder: Path) -> tuple[Form[T], list[list[Path]]]:
        if not folder.is_dir():
            what = "a file" if folder.exists() else "not there"
            raise DataError(f"{folder} is {what}: name a folder that holds {self.name}; {self.otherwise}.")
        candidates = [(folder / place, form) for form in self.forms for place in self.places]
        where, form = min(candidates, key=lambda c: len(c[1].missing_in(c[0])) / len(c[1].files))
        missing = form.missing_in(where)
        if not missing:
            return form, [_matching(where, name) for name in form.files]
        if len(missing) < len(form.files):
            raise DataError(
                f"{where} holds {self.name} in part: {', '.join(missing)} {'are' if missing[1:] else 'is'} "
                f"missing; {self.otherwise}."
            )
        forms = "; or ".join(f"{form.what} ({', '.join(form.files)})" for form in self.forms)
        raise DataError(f"{folder} does not hold {self.name} in a known form: {forms}; {self.otherwise}.")

    def _downloaded(self) -> Path:
        if not self.published:
            raise DataError(f"{self.name} needs folder, a folder that holds it: {self.otherwise}.")
        folder = storage.cache() / "data" / self.name.lower()
        for remote in self.published:
            try:
                download(remote, folder)
            except _Unavailable as error:
                raise DataError(
                    f"{self.name} cannot be downloaded: {error}; try again, or name a folder that holds "
                    f"{self.forms[0].what} ({', '.join(self.forms[0].files)})."
                ) from error
        return folder


def _matching(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(name)) or sorted(folder.glob(f"{name}.gz"))


# -- reading -------------------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a reader makes of a damaged file, or of another one, into a sentence."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"{path} cannot be read as {what}: {reason.strip().splitlines()[0].rstrip('.')}; it is truncated "
            "or something else, get it again."
        ) from error


def content(path: Path, what: str, checksum: str | None = None) -> bytes:
    """What is in a file, unpacked if it is gzipped; its checksum, `sha256:...`, is that of what is in it."""
    with reading(path, what):
        packed = path.suffix == ".gz" and not path.name.endswith(".tar.gz")
        found = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    check(found, path, what, checksum)
    return found


def check(found: bytes, path: Path | str, what: str, checksum: str | None) -> None:
    """Refuse bytes that are not the published ones."""
    if checksum is None:
        return
    kind, _, wanted = checksum.partition(":")
    actual = hashlib.new(kind, found, usedforsecurity=False).hexdigest()
    if actual != wanted:
        raise DataError(
            f"{path} is not {what}: the {kind.upper()} of its content is {actual} and should be {wanted}; it "
            "is truncated or something else, get it again."
        )


# -- downloading ---------------------------------------------------------------------------------------------


class _Unavailable(Exception):
    """A file that could not be had."""


def download(remote: Remote, folder: Path) -> None:
    """Have a published file in a folder: whole, or not at all under its name.

    What arrived before a connection broke is kept beside it, and the next attempt goes on from there. One
    process at a time downloads: nodes of one machine wait for whoever was first.
    """
    try:
        import pooch
        from requests import RequestException
    except ImportError as error:
        raise _Unavailable("pooch is not installed (pip install 'coterie[data]')") from error
    reasons = []
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for url in remote.urls:
                try:
                    pooch.retrieve(
                        url, remote.checksum, remote.name, folder, downloader=_resume(folder / remote.name)
                    )
                    return
                except (RequestException, ValueError) as error:  # ValueError: the checksum is wrong
                    reasons.append(f"{url}: {_in_short(error)}")
    raise _Unavailable("; ".join(reasons))


def _resume(path: Path) -> Callable[[str, Any, Any], None]:
    """A downloader for `pooch` that goes on where an earlier one was interrupted."""
    part = path.with_name(f".{path.name}.part")

    def download(url: str, output: Any, _: Any) -> None:
        import requests

        have = part.stat().st_size if part.exists() else 0
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with requests.get(url, headers=headers, stream=True, timeout=PATIENCE) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                part.unlink()  # all of it was there, or it is of another file
                return download(url, output, _)
            answer.raise_for_status()
            resumed = answer.status_code == requests.codes.partial_content
            total = int(answer.headers.get("Content-Length", 0)) + have * resumed
            try:
                with open(part, "ab" if resumed else "wb") as file, _bar(path.name, total) as arrived:
                    for chunk in answer.iter_content(CHUNK):
                        file.write(chunk)
                        arrived(file.tell())
                    if file.tell() < total:
                        raise requests.ConnectionError(f"{file.tell()} of {total} bytes have arrived")
            except requests.RequestException:
                raise
            except OSError:
                part.unlink(missing_ok=True)  # the disk is full: leave nothing there
                raise
        part.replace(output)

    return download


@contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=total or None)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write to {folder}: {error.strerror or error}; make room, or name another cache folder "
            "in COTERIE_CACHE."
        ) from error


def _in_short(error: Exception) -> str:
    """The reason behind an error of a library that wraps it several times."""
    while True:
        inner = error.__cause__ or error.__context__ or next(iter(error.args), None)
        inner = getattr(inner, "reason", None) or inner
        if not isinstance(inner, Exception):
            break
        error = inner
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
