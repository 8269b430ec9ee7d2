"""Files of data sets: found in a folder, or downloaded, whole or not at all."""

import gzip
import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coterie.data import sources
from coterie.data.sources import Form, Remote, Source
from coterie.errors import DataError, StorageError

CONTENT = bytes(range(256)) * 2000
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves CONTENT at every path; `/whole` ignores ranges, `/missing` is not there."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.breaks = 0  # connections that break half-way
        self.asked = []  # the range that was asked for in each request

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=")[:-1]) if wanted and self.path != "/whole" else 0
        if self.path == "/missing":
            self.send_error(404)
        elif start >= len(CONTENT):
            self.send_error(416)
        else:
            body = CONTENT[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.server.breaks -= 1
            self.wfile.write(body[: len(body) // 2] if self.server.breaks >= 0 else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    return tmp_path / "cache" / "data" / "things"


def things(*urls, checksum=SHA):
    form = Form("a file of bytes", ("a.bin",), lambda files: files[0].read_bytes())
    return Source("Things", ("", "sub"), (form,), (Remote("a.bin", urls, checksum),))


def test_a_file_is_downloaded_once(server, cache):
    source = things(server.url("a"))
    assert source.read(None) == CONTENT == (cache / "a.bin").read_bytes()
    assert source.read(None) == CONTENT and server.asked == [None]
    (cache / "a.bin").write_bytes(b"damaged")
    assert source.read(None) == CONTENT and len(server.asked) == 2


@pytest.mark.parametrize("path", ["a", "whole"])
def test_after_a_broken_connection_the_next_attempt_goes_on(server, cache, path):
    server.breaks = 1
    source = things(server.url(path))
    with pytest.raises(DataError, match=r"^Things cannot be downloaded: http://.*: .*; try again, or name a"):
        source.read(None)
    assert sorted(p.name for p in cache.iterdir()) == [".a.bin.part", ".lock"]
    assert source.read(None) == CONTENT
    whole_chunks = len(CONTENT) // 2 // sources.CHUNK * sources.CHUNK
    assert server.asked == [None, f"bytes={whole_chunks}-"]
    assert sorted(p.name for p in cache.iterdir()) == [".lock", "a.bin"]


def test_what_is_there_of_another_file_is_thrown_away(server, cache):
    cache.mkdir(parents=True)
    (cache / ".a.bin.part").write_bytes(CONTENT + b"more")
    assert things(server.url("a")).read(None) == CONTENT


def test_a_second_address_is_tried(server, cache):
    assert things(server.url("missing"), server.url("a")).read(None) == CONTENT


def test_of_two_that_want_a_file_one_downloads_it(server, cache):
    source, found = things(server.url("a")), []
    threads = [threading.Thread(target=lambda: found.append(source.read(None))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 3 and server.asked == [None]


@pytest.mark.parametrize(
    "path, checksum, sentence",
    [
        ("missing", SHA, r"/missing: 404 Client Error: Not Found"),
        ("a", "md5:" + "0" * 32, rf"does not match the known hash: expected md5:0+ but got {'.' * 32}"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_and_leaves_nothing(server, cache, path, checksum, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        things(server.url(path), checksum=checksum).read(None)
    assert "\n" not in str(caught.value)
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_without_pooch_it_is_said_how_to_get_it(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"pooch is not installed \(pip install 'coterie\[data\]'\)"):
        things("http://127.0.0.1:9/a").read(None)


def test_nobody_answers(cache):
    with pytest.raises(
        DataError, match="Connection refused; try again, or name a folder that holds a file of"
    ):
        things("http://127.0.0.1:9/a").read(None)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(server, cache):
    cache.mkdir(parents=True)
    (cache / ".a.bin.part").symlink_to("/dev/full")
    with pytest.raises(
        StorageError, match=r"cannot write to .*: No space left on device; make room, or name"
    ):
        things(server.url("a")).read(None)
    assert [p.name for p in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_made(server, cache):
    cache.parent.parent.write_text("a file where the cache should be")
    with pytest.raises(StorageError, match="cannot write to "):
        things(server.url("a")).read(None)


def test_the_folder_may_be_named_once_and_for_all(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    (tmp_path / "mine" / "sub" / "a.bin").write_bytes(b"mine")
    (tmp_path / "a.bin").write_bytes(b"named")
    assert things().read(None) == b"mine"
    assert things().read(tmp_path) == b"named"


def test_files_are_found_where_they_may_be(tmp_path):
    both = Form("two files", ("a.bin", "*.b"), lambda a, b: [p.name for p in (*a, *b)])
    other = Form("one file", ("c.bin",), lambda c: "c")
    source = Source("Things", ("", "sub"), (both, other), otherwise="ask your neighbour")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin.gz").touch()
    with pytest.raises(DataError, match=r"sub holds Things in part: \*\.b is missing; ask your neighbour\.$"):
        source.read(tmp_path)
    (tmp_path / "sub" / "2.b").touch()
    (tmp_path / "sub" / "1.b").touch()
    assert source.read(str(tmp_path)) == ["a.bin.gz", "1.b", "2.b"]
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder, sentence in (
        (
            empty,
            r"does not hold Things in a known form: two files \(a.bin, \*.b\); or one file \(c.bin\); ask",
        ),
        (empty / "x", "is not there: name a folder that holds Things; ask your neighbour"),
        (tmp_path / "sub" / "1.b", "is a file: name a folder that holds Things; ask your neighbour"),
        (None, "Things needs folder, a folder that holds it: ask your neighbour"),
    ):
        with pytest.raises(DataError, match=sentence):
            source.read(folder)


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.bin", CONTENT[1:], "is not a thing: the SHA256 of its content is .* and should be"),
        ("a.bin.gz", gzip.compress(CONTENT)[:-9], "cannot be read as a thing: Compressed file ended before"),
        ("a.bin.gz", b"plain", "cannot be read as a thing: Not a gzipped file"),
        ("a.bin.gz", gzip.compress(CONTENT[1:]), "is not a thing: the SHA256"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as caught:
        sources.content(tmp_path / name, "a thing", SHA)
    assert str(tmp_path / name) in str(caught.value) and "get it again" in str(caught.value)
    (tmp_path / "whole.gz").write_bytes(gzip.compress(CONTENT))
    assert sources.content(tmp_path / "whole.gz", "a thing", SHA) == CONTENT
