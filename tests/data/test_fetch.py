"""The data folder, and downloads: resumed where they broke off, checked, and never half-written under their name."""

import fcntl
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from tacit.data import fetch
from tacit.data.fetch import Remote
from tacit.errors import TacitError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Host:
    """A web host on this machine and what it should do wrong."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True  # it can begin in the middle
    stops: list[int] = field(default_factory=list)  # how many bytes the next answers send before they break off
    status: list[int] = field(default_factory=list)  # what the next answers are instead of a file
    asked: list[str] = field(default_factory=list)  # the range of each request


def handler(host: Host) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:  # the name that http.server calls
            wanted = self.headers.get("Range", "")
            host.asked.append(wanted)
            if host.status:
                self.send_error(host.status.pop(0))
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and host.ranges else 0
            if start and start >= len(host.content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(host.content) - start))
            self.end_headers()
            end = start + host.stops.pop(0) if host.stops else len(host.content)
            self.wfile.write(host.content[start:end])

    return Handler


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    host = Host()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(host)) as server:
        host.url = f"http://127.0.0.1:{server.server_port}/file.bin"
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield host
        server.shutdown()
        thread.join()


def remote(host: Host, checksum: str = MD5) -> Remote:
    return Remote("SET/raw/file.bin", (host.url,), checksum)


def names(tmp_path: Path) -> list[str]:
    """All files but the lock, which stays after a failure."""
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    return sorted(path.name for path in files if path.suffix != ".lock")


@pytest.mark.parametrize("checksum", [MD5, hashlib.sha256(CONTENT).hexdigest()])
def test_a_file_is_fetched_once(host: Host, tmp_path: Path, checksum: str) -> None:
    path = fetch.fetch(remote(host, checksum))
    assert path == tmp_path / "data/SET/raw/file.bin"
    assert path.read_bytes() == CONTENT
    assert fetch.fetch(remote(host, checksum)) == path
    assert host.asked == [""]
    assert names(tmp_path) == ["file.bin"]


def test_a_file_that_is_there_is_never_replaced(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "data/SET/raw/file.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"packed differently")
    assert fetch.fetch(remote(host)).read_bytes() == b"packed differently"
    assert host.asked == []


def test_a_broken_connection_is_taken_up_again(host: Host, tmp_path: Path) -> None:
    host.stops = [262_144, 65_536]
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["", "bytes=262144-", "bytes=327680-"]
    assert names(tmp_path) == ["file.bin"]


def test_a_later_run_goes_on_where_the_last_broke_off(host: Host, tmp_path: Path) -> None:
    host.stops = [262_144, 0]
    with pytest.raises(TacitError, match="could not be fetched \\(the connection broke off\\): try again"):
        fetch.fetch(remote(host))
    assert names(tmp_path) == ["file.bin.part"]
    assert (tmp_path / "data/SET/raw/file.bin.part").read_bytes() == CONTENT[:262_144]
    host.asked.clear()
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["bytes=262144-"]
    assert names(tmp_path) == ["file.bin"]


def test_a_host_without_ranges_is_read_from_the_start(host: Host, tmp_path: Path) -> None:
    host.ranges, host.stops = False, [262_144]
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert host.asked == ["", "bytes=262144-"]


def test_a_host_that_always_breaks_off_is_given_up(host: Host, tmp_path: Path) -> None:
    host.ranges, host.stops = False, [131_072] * 50
    with pytest.raises(TacitError, match="the connection broke off"):
        fetch.fetch(remote(host))
    assert len(host.asked) == 2
    assert "file.bin" not in names(tmp_path)


def test_a_part_that_is_whole_already(host: Host, tmp_path: Path) -> None:
    part = tmp_path / "data/SET/raw/file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert names(tmp_path) == ["file.bin"]


def test_a_part_of_something_else_is_thrown_away(host: Host, tmp_path: Path) -> None:
    part = tmp_path / "data/SET/raw/file.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"other")
    with pytest.raises(TacitError, match="checksum of what came is wrong"):
        fetch.fetch(remote(host))
    assert names(tmp_path) == []
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT


def test_wrong_content_is_not_kept(host: Host, tmp_path: Path) -> None:
    host.content = CONTENT[:-1] + b"?"
    with pytest.raises(TacitError) as caught:
        fetch.fetch(remote(host))
    path = tmp_path / "data/SET/raw/file.bin"
    assert str(caught.value) == (
        f"{path} could not be fetched (the checksum of what came is wrong): "
        f"try again, or get {host.url} yourself and put it there"
    )
    assert names(tmp_path) == []


def test_two_that_fetch_the_same_file_take_turns(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second comes while the first downloads, waits for it, and finds the file."""
    second = Thread(target=lambda: found.append(fetch.fetch(remote(host))))
    found: list[Path] = []
    waits, lock, download = Event(), fcntl.flock, fetch._download

    def seen_lock(file: Any, how: int) -> None:
        if current_thread() is second:
            with pytest.raises(BlockingIOError):
                lock(file, how | fcntl.LOCK_NB)
            waits.set()
        lock(file, how)

    def slow_download(wanted: Remote, path: Path) -> None:
        assert current_thread() is not second
        second.start()
        assert waits.wait(60)
        download(wanted, path)

    monkeypatch.setattr(fcntl, "flock", seen_lock)
    monkeypatch.setattr(fetch, "_download", slow_download)
    path = fetch.fetch(remote(host))
    second.join()
    assert found == [path]
    assert path.read_bytes() == CONTENT
    assert host.asked == [""]
    assert not list((tmp_path / "data").rglob("*.lock"))


def test_after_a_failure_the_next_in_turn_fetches(host: Host, tmp_path: Path) -> None:
    host.status = [503]
    with pytest.raises(TacitError, match="503"):
        fetch.fetch(remote(host))
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT
    assert not list((tmp_path / "data").rglob("*.lock"))


def test_a_file_system_without_locks_is_no_reason_not_to_fetch(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert fetch.fetch(remote(host)).read_bytes() == CONTENT


def test_the_next_host_is_tried(host: Host, tmp_path: Path) -> None:
    host.status = [404]
    twice = Remote("SET/raw/file.bin", (host.url, host.url), MD5)
    assert fetch.fetch(twice).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_refusal_is_one_sentence(host: Host, tmp_path: Path, status: int) -> None:
    host.status = [status]
    with pytest.raises(TacitError, match=f"the host answered {status}"):
        fetch.fetch(remote(host))
    assert names(tmp_path) == []


def test_no_network_is_one_sentence_with_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port  # nobody listens there once the server is gone
    nowhere = Remote("SET/file.bin", (f"http://127.0.0.1:{port}/file.bin",), MD5)
    with pytest.raises(TacitError) as caught:
        fetch.fetch(nowhere)
    assert str(caught.value) == (
        f"{tmp_path / 'SET/file.bin'} could not be fetched (no connection to the host): "
        f"try again, or get http://127.0.0.1:{port}/file.bin yourself and put it there"
    )


def test_a_folder_that_can_not_be_written_is_one_sentence(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "file"))
    with pytest.raises(TacitError, match="can not be written.*: set TACIT_DATA to a folder") as caught:
        fetch.fetch(remote(host))
    assert "None" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_write_protected(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(*args: object, **options: object) -> None:
        raise PermissionError("a long text of pooch")

    monkeypatch.setattr("pooch.retrieve", denied)
    with pytest.raises(TacitError, match="can not be written \\(permission denied\\): set TACIT_DATA"):
        fetch.fetch(remote(host))


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    assert fetch.data_folder() == tmp_path
    monkeypatch.setenv("TACIT_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fetch.data_folder().name == "tacit"
    assert not (tmp_path / "cache").exists()


def test_local_takes_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    (tmp_path / "b").mkdir()
    (tmp_path / "c").write_text("")
    assert fetch.local("a", "b", "c") == tmp_path / "b"
    assert fetch.local("a", str(tmp_path / "c")) == tmp_path / "c"
    assert fetch.local("a") is None


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    fetch.verify(path, None, MD5)
    fetch.verify(path, b"unzipped", hashlib.sha256(b"unzipped").hexdigest())
    fetch.verify(path, b"anything", None)
    sentence = f"{path} is not the original .*: delete it and run again to fetch it, or put the original there"
    for content in (None, b"other"):
        with pytest.raises(TacitError, match=re.escape(sentence).replace(r"\.\*", ".*")):
            fetch.verify(path, content, hashlib.md5(b"another").hexdigest())
